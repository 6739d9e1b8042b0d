// SPDX-License-Identifier: Apache-2.0
#include "tests/process/programs/topics.hpp"

#include <cstdio>
#include <cstring>
#include <utility>

using namespace mpsshim::test;

namespace {

constexpr std::pair<const char*, void (*)(const Device&)> kTopics[] = {
    {"pageable_copies", pageable_copies},
    {"pinned_memory", pinned_memory},
    {"memsets", memsets},
    {"unified_copies", unified_copies},
    {"pointer_facts", pointer_facts},
    {"stream_order", stream_order},
    {"legacy_order", legacy_order},
    {"events", events},
    {"many_streams", many_streams},
    {"per_thread_streams", per_thread_streams},
    {"many_threads", many_threads},
    {"ending_streams", ending_streams},
    {"modules_and_globals", modules_and_globals},
    {"refused_launches", refused_launches},
    {"contexts", contexts},
};

}  // namespace

int main(int argc, char** argv) {
  for (const auto& [name, run] : kTopics) {
    if (argc != 2 || std::strcmp(name, argv[1]) != 0) continue;
    try {
      run(Device());
      std::printf("%s right\n", name);
      return 0;
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "%s: %s\n", name, failure.what());
      return 1;
    }
  }
  std::fprintf(stderr, "usage: driver_topics NAME\n");
  return 2;
}
