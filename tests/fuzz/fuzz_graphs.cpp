// SPDX-License-Identifier: Apache-2.0
// Descriptions of graphs: nodes of every kind, bodies within bodies, changes, launches while work is under way, and memory, events and conditions
// that end meanwhile (support/executor_stage.hpp).
#include <cstdlib>
#include <memory>

#include "tests/fuzz/support/executor_stage.hpp"

using namespace mpsshim;
using namespace mpsshim::fuzz;

namespace {

constexpr unsigned kInputsPerStage = 256;

std::unique_ptr<ExecutorStage> stage;
unsigned inputs = 0;

}  // namespace

namespace mpsshim::fuzz {

Input make_input(Random& random) {
  return ExecutorStage::make_input(random, 2, [&](RecordMaker& maker) {
    switch (random() % 8) {
      case 0: return maker.add_memory(maker.some_stream());
      case 1: return random() % 4 == 0 ? maker.add_plain(maker.some_stream()) : maker.add_end();
      default: return maker.add_graph(maker.some_stream());
    }
  });
}

std::uint64_t records_so_far() { return stage ? stage->records() : 0; }
void finish() { stage.reset(); }

}  // namespace mpsshim::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (inputs++ % kInputsPerStage == 0) {
    const std::uint64_t records = records_so_far();
    finish();
    stage = std::make_unique<ExecutorStage>();
    stage->count_from(records);
    if (inputs == 1) (void)std::atexit(finish);  // before the log ends, which the stage has opened
  }
  stage->run({data, size});
  return 0;
}
