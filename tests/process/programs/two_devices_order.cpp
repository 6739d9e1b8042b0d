// SPDX-License-Identifier: Apache-2.0
// What crosses the two devices, and what is ordered.
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/process/programs/two_devices.hpp"

namespace mpsshim::test {

void events(Sides& sides) {
  CUevent event = nullptr;
  sides[0].use();
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(event, sides[1].stream));
  for (unsigned round = 1; round <= 10; ++round) {
    sides[0].use();
    sides[0].launch_fill(sides[0].data, round);
    CU(cuEventRecord(event, sides[0].stream));
    sides[1].use();
    CU(cuStreamWaitEvent(sides[1].stream, event, 0));
    CU(cuMemcpyPeerAsync(sides[1].data, sides[1].context, sides[0].data, sides[0].context, kBytes, sides[1].stream));
    sides[1].launch_add(sides[1].data, 0);
    CU(cuStreamSynchronize(sides[1].stream));
    CU(cuEventQuery(event));
    require_index(sides[1].read(sides[1].data), round, "what another device has written before an event");
  }
  CU(cuEventSynchronize(event));  // with the other device's context current
  CU(cuEventDestroy(event));
}

void copies(Sides& sides) {
  sides[0].use();
  sides[0].launch_fill(sides[0].data, 5);
  CU(cuStreamSynchronize(sides[0].stream));
  CU(cuMemcpyPeer(sides[1].data, sides[1].context, sides[0].data, sides[0].context, kBytes));
  sides[1].use();
  require_index(sides[1].read(sides[1].data), 5, "cuMemcpyPeer");
  CU(cuMemsetD32(sides[1].data, 0, kWords));
  CU(cuMemcpyDtoD(sides[1].data, sides[0].data, kBytes));
  require_index(sides[1].read(sides[1].data), 5, "cuMemcpyDtoD");
  CU(cuMemsetD32(sides[1].data, 0, kWords));
  CU(cuMemcpy(sides[1].data, sides[0].data, kBytes));
  require_index(sides[1].read(sides[1].data), 5, "cuMemcpy");
  // In the NULL stream of the current context, whichever device is written to.
  sides[0].use();
  Side in_null = sides[0];
  in_null.stream = nullptr;
  for (unsigned round = 2; round < 6; ++round) {
    in_null.launch_fill(sides[0].data, round);
    CU(cuMemcpyAsync(sides[1].data, sides[0].data, kBytes, nullptr));
    in_null.launch_fill(sides[0].data, 1);
    CU(cuStreamSynchronize(nullptr));
    sides[1].use();
    require_index(sides[1].read(sides[1].data), round, "a copy in the NULL stream");
    sides[0].use();
  }
  // What names no stream is in that order, too.
  in_null.launch_fill(sides[0].data, 11);
  CU(cuMemcpyAsync(sides[1].data, sides[0].data, kBytes, nullptr));
  require_index(sides[0].read(sides[1].data), 11, "a download of the other device's memory");
  for (unsigned round = 0; round < 5; ++round) {
    const std::vector<unsigned> words(kWords, round);
    CU(cuMemcpyHtoD(sides[1].data, words.data(), kBytes));
    CU(cuMemcpyAsync(sides[0].data, sides[1].data, kBytes, nullptr));
    CU(cuStreamSynchronize(nullptr));
    require_all(sides[0].read(sides[0].data), round, "an upload to the other device's memory");
  }
  // Pageable memory is the program's again when the call returns, whatever stream it was in.
  std::vector<unsigned> words(kWords, 8);
  in_null.launch_fill(sides[0].data, 1);
  CU(cuMemcpyHtoDAsync(sides[1].data, words.data(), kBytes, nullptr));
  words.assign(kWords, 0);
  CU(cuMemcpyDtoHAsync(words.data(), sides[1].data, kBytes, nullptr));
  require_all(words, 8, "pageable memory to and from the other device");
  // Memory is not given back before a copy has been made.
  CUdeviceptr soon_free = 0;
  CU(cuMemAlloc(&soon_free, kBytes));
  CU(cuMemsetD32(soon_free, 3, kWords));
  in_null.launch_fill(sides[0].data, 1);
  CU(cuMemcpyAsync(sides[1].data, soon_free, kBytes, nullptr));
  CU(cuMemFree(soon_free));
  CU(cuStreamSynchronize(nullptr));
  require_all(sides[0].read(sides[1].data), 3, "a copy of memory that was freed behind it");
  sides[1].use();
  // In the source's stream, of odd size, and larger than what goes at once.
  constexpr std::size_t kLarge = (9u << 20) + 4;
  CUdeviceptr from = 0, to = 0;
  CU(cuMemAlloc(&to, kLarge));
  sides[0].use();
  CU(cuMemAlloc(&from, kLarge));
  CU(cuMemsetD32Async(from, 0xabcd, kLarge / 4, sides[0].stream));
  CU(cuMemcpyAsync(to, from, kLarge, sides[0].stream));
  CU(cuMemsetD32Async(from, 0, kLarge / 4, sides[0].stream));
  CU(cuStreamSynchronize(sides[0].stream));
  std::vector<unsigned> found(kLarge / 4);
  CU(cuMemcpyDtoH(found.data(), to, kLarge));
  require_all(found, 0xabcd, "a large copy in the source's stream");
  CU(cuMemFree(from));
  CU(cuMemFree(to));
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyPeer(sides[1].data, sides[1].context, sides[0].data, sides[0].context, std::size_t{1} << 40));
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoDAsync(sides[1].data + kBytes, sides[0].data, std::size_t{1} << 40, sides[0].stream));
}

// What was freed in a NULL stream is another stream's only behind that one's work.
void null_streams(Sides& sides) {
  for (const Side& side : sides) {
    side.use();
    Side in_null = side;
    in_null.stream = nullptr;
    for (unsigned round = 0; round < 5; ++round) {
      CUdeviceptr first = 0, second = 0;
      CU(cuMemAllocAsync(&first, kBytes, nullptr));
      in_null.launch_fill(first, 1);
      CU(cuMemFreeAsync(first, nullptr));
      CU(cuMemAllocAsync(&second, kBytes, side.stream));
      CU(cuMemsetD32Async(second, 9, kWords, side.stream));
      CU(cuStreamSynchronize(side.stream));
      CU(cuStreamSynchronize(nullptr));
      require_all(side.read(second), 9, "memory that was freed in the NULL stream");
      CU(cuMemFreeAsync(second, side.stream));
    }
    in_null.launch_fill(side.data, 2);
    CU(cuCtxSynchronize());
    require_index(side.read(side.data), 2, "work in the NULL stream");
    // More pageable memory than a driver takes in before it has to wait for what it has.
    std::vector<unsigned> words(kWords);
    for (unsigned round = 0; round < 1000; ++round) {
      words[round] = round;
      CU(cuMemcpyHtoDAsync(side.data, words.data(), kBytes, nullptr));
    }
    CU(cuStreamSynchronize(nullptr));
    require(side.read(side.data) == words, "uploads in the NULL stream");
  }
}

void threads(Sides& sides) {
  std::vector<std::thread> all;
  std::array<std::string, 6> faults;
  for (unsigned t = 0; t < faults.size(); ++t) {
    all.emplace_back([&, t] {
      try {
        for (unsigned round = 0; round < 30; ++round) {
          const Side& side = sides[(t + round) % 2];
          side.use();
          CUdeviceptr words = 0;
          CUstream stream = nullptr;
          CU(cuMemAlloc(&words, kBytes));
          CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
          CU(cuMemsetD32Async(words, t, kWords, stream));
          Side own = side;
          own.stream = stream;
          own.launch_add(words, round);
          CU(cuStreamSynchronize(stream));
          require_all(own.read(words), t + round, "work of several threads");
          CU(cuStreamDestroy(stream));
          CU(cuMemFree(words));
        }
      } catch (const std::exception& fault) {
        faults[t] = fault.what();
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  for (const std::string& fault : faults) require(fault.empty(), fault);
}

// A child has registered memory of both contexts as it was.
void forks(Sides& sides) {
  std::array<std::vector<unsigned>, 2> words;
  for (unsigned i = 0; i < 2; ++i) {
    sides[i].use();
    words[i].assign(kWords, 20 + i);
    CU(cuMemHostRegister(words[i].data(), kBytes, 0));
    CU(cuMemcpyHtoDAsync(sides[i].data, words[i].data(), kBytes, sides[i].stream));
    CU(cuStreamSynchronize(sides[i].stream));
  }
  for (int round = 0; round < 3; ++round) {
    const pid_t child = fork();
    require(child >= 0, "fork failed");
    if (child == 0) _exit(words[0][7] == 20 && words[1][kWords - 1] == 21 ? 0 : 1);
    int status = 0;
    require(waitpid(child, &status, 0) == child && status == 0, "the child has other words in registered memory");
  }
  for (unsigned i = 0; i < 2; ++i) {
    sides[i].use();
    CU(cuMemsetD32Async(sides[i].data, 30 + i, kWords, sides[i].stream));
    CU(cuMemcpyDtoHAsync(words[i].data(), sides[i].data, kBytes, sides[i].stream));
    CU(cuStreamSynchronize(sides[i].stream));
    require_all(words[i], 30 + i, "registered memory after a fork");
    CU(cuMemHostUnregister(words[i].data()));
  }
}

}  // namespace mpsshim::test
