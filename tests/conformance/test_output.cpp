// SPDX-License-Identifier: Apache-2.0
// Text that kernels print: where it comes, and by when.
#include <fcntl.h>
#include <sys/mman.h>

#include <cstdio>
#include <string>

#include "graph_calls.hpp"
#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

namespace {

// What the process writes to standard output until text() is called.
class StandardOutput {
 public:
  StandardOutput() : kept_(dup_flushed()), file_(memfd_create("stdout", 0)) { dup2(file_, STDOUT_FILENO); }
  ~StandardOutput() {
    give_back();
    close(file_);
  }
  StandardOutput(const StandardOutput&) = delete;
  StandardOutput& operator=(const StandardOutput&) = delete;
  std::string text() {
    give_back();
    std::string text(1 << 20, '\0');
    const ssize_t got = pread(file_, text.data(), text.size(), 0);
    text.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return text;
  }

 private:
  static int dup_flushed() {
    std::fflush(stdout);
    return dup(STDOUT_FILENO);
  }
  void give_back() {
    if (kept_ < 0) return;
    std::fflush(stdout);
    dup2(kept_, STDOUT_FILENO);
    close(kept_);
    kept_ = -1;
  }
  int kept_;
  int file_;
};

std::string line(int number) { return "the number is " + std::to_string(number) + "\n"; }

}  // namespace

TEST_CASE("what kernels print is there when a call has waited for them", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction say = image.function("say");
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  StandardOutput output;
  OK(launch(say, stream, 1, 1, 1));
  OK(CU(cuStreamSynchronize)(stream));
  std::printf("first\n");
  std::fflush(stdout);
  OK(launch(say, nullptr, 1, 1, 2));
  OK(CU(cuCtxSynchronize)());
  std::printf("second\n");
  std::fflush(stdout);
  OK(launch(say, stream, 1, 1, 3));
  OK(CU(cuEventRecord)(event, stream));
  OK(CU(cuEventSynchronize)(event));
  std::printf("third\n");
  CHECK(output.text() == line(1) + "first\n" + line(2) + "second\n" + line(3) + "third\n");
  OK(CU(cuEventDestroy)(event));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("launches of a stream print in order, with others between them", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction say = image.function("say");
  const CUfunction store = image.function("store");
  const DeviceArray<unsigned> word(1);
  const CUstream stream = new_stream();
  StandardOutput output;
  std::string expected;
  for (int i = 0; i < 50; ++i) {
    OK(launch(say, stream, 1, 1, i));
    if (i % 3 == 0) OK(launch(store, stream, 1, 1, word.address(), static_cast<unsigned>(i)));
    expected += line(i);
  }
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(output.text() == expected);
  CHECK(word[0] == 48);
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("kernels of a graph print", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUgraph graph = new_graph();
  int number = 5;
  void* arguments[] = {&number};
  CUDA_KERNEL_NODE_PARAMS parameters{};
  parameters.func = image.function("say");
  parameters.gridDimX = parameters.gridDimY = parameters.gridDimZ = 1;
  parameters.blockDimX = parameters.blockDimY = parameters.blockDimZ = 1;
  parameters.kernelParams = arguments;
  CUgraphNode node = nullptr;
  OK(CU(cuGraphAddKernelNode)(&node, graph, nullptr, 0, &parameters));
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
  const CUstream stream = new_stream();
  StandardOutput output;
  for (int turn = 0; turn < 3; ++turn) OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(output.text() == line(5) + line(5) + line(5));
  OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
}

TEST_CASE("a stream that is destroyed prints what it holds", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction say = image.function("say");
  StandardOutput output;
  const CUstream stream = new_stream();
  OK(launch(say, stream, 1, 1, 11));
  OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuCtxSynchronize)());
  CHECK(output.text() == line(11));
}
