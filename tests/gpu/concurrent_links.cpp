// SPDX-License-Identifier: Apache-2.0
// concurrent_links [--threads N] [--seconds S] [--exclusively] Threads of one process that link at the same time in its one context, as helpers
// of an executor do for its clients: PTX, and objects of relocatable code. Each result is compared with what the first one of its kind was.
//   --exclusively  one at a time
// Exit status 1: an error, or another result, which is printed. A crash is the driver's: docs/experiments/2026-11-23-concurrent-links.md.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {
namespace {

struct Options {
  unsigned threads = 4;
  double seconds = 10;
  bool exclusively = false;
};

struct Source {
  CUjitInputType type{};
  std::string bytes;
  std::string linked;  // by one thread, before the others start
};

std::string read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), std::string("cannot read ") + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string link(const Source& source) {
  CUlinkState state = nullptr;
  CU(cuLinkCreate(0, nullptr, nullptr, &state));
  std::string bytes = source.bytes;
  CU(cuLinkAddData(state, source.type, bytes.data(), bytes.size(), "source", 0, nullptr, nullptr));
  void* image = nullptr;
  std::size_t size = 0;
  CU(cuLinkComplete(state, &image, &size));
  std::string linked(static_cast<const char*>(image), size);
  CU(cuLinkDestroy(state));
  return linked;
}

int run(const Options& options) {
  CUcontext context = nullptr;
  CU(cuInit(0));
  CU(cuDevicePrimaryCtxRetain(&context, 0));
  CU(cuCtxSetCurrent(context));
  std::vector<Source> sources;
  sources.push_back({CU_JIT_INPUT_PTX, read_file(MPSSHIM_LINKED_TEXT) + '\0', {}});
  sources.push_back({CU_JIT_INPUT_CUBIN, read_file(MPSSHIM_LINKED_OBJECT), {}});
  for (Source& source : sources) source.linked = link(source);
  std::mutex one_at_a_time;
  std::atomic<unsigned> links{0}, wrong{0};
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.seconds);
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < options.threads; ++number) {
    threads.emplace_back([&, number] {
      try {
        CU(cuCtxSetCurrent(context));
        for (unsigned turn = number; std::chrono::steady_clock::now() < end; ++turn, ++links) {
          const Source& source = sources[turn % sources.size()];
          std::unique_lock lock(one_at_a_time, std::defer_lock);
          if (options.exclusively) lock.lock();
          if (link(source) != source.linked) ++wrong;
        }
      } catch (const Failure& failure) {
        std::fprintf(stderr, "thread %u: %s\n", number, failure.what());
        ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%u links by %u threads%s, %u wrong\n", links.load(), options.threads, options.exclusively ? ", one at a time" : "", wrong.load());
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace mpsshim::test

int main(int argc, char** argv) {
  mpsshim::test::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--exclusively") {
      options.exclusively = true;
    } else if (argument == "--threads" && i + 1 < argc) {
      options.threads = static_cast<unsigned>(std::atoi(argv[++i]));
    } else if (argument == "--seconds" && i + 1 < argc) {
      options.seconds = std::atof(argv[++i]);
    } else {
      std::fprintf(stderr, "usage: concurrent_links [--threads N] [--seconds S] [--exclusively]\n");
      return 2;
    }
  }
  try {
    return mpsshim::test::run(options);
  } catch (const mpsshim::test::Failure& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
