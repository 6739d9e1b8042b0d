// SPDX-License-Identifier: Apache-2.0
// odd_host HOW: what programs do to themselves, and may, while a library that they do not know of works in them. Ends with "ok".
//   files      closes every descriptor that it does not know, and opens files of its own in their place; then it calls on
//   doorbells  puts files in the place of every eventfd
//   counters   puts eventfds of its own there
//   cancelled  threads in calls are cancelled, again and again; the program goes on
//   no_files   ulimit -f 0: no file may grow
#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/programs/driver.hpp"

using namespace mpsshim::test;
namespace fs = std::filesystem;

namespace {

constexpr unsigned kCount = 1000;

// Launches and copies, whatever they answer: it is not the calls that matter.
void call_on(const Device& device, CUdeviceptr data) {
  std::array<unsigned, kCount> words{};
  for (int i = 0; i < 20; ++i) {
    (void)device.launch_add(data, kCount, 1);
    (void)cuStreamQuery(nullptr);
    usleep(2'000);  // by then an executor sleeps, and is to be woken
    if (i % 4 == 0) (void)cuCtxSynchronize();
    if (i % 5 == 0) (void)cuMemcpyDtoH(words.data(), data, sizeof words);
  }
  CUmodule module = nullptr;
  (void)cuModuleLoadData(&module, kGlobalPtx);
}

int own_file() {
  char name[] = "/tmp/odd_host.XXXXXX";
  const int file = mkstemp(name);
  require(file >= 0 && unlink(name) == 0, "no file");
  return file;
}

void require_untouched(int file) {
  struct stat status {};
  require(fstat(file, &status) == 0, "a file of the program's own was closed");
  require(S_ISREG(status.st_mode) && status.st_size == 0, "bytes were written into a file of the program's own");
}

void files(const Device& device, CUdeviceptr data) {
  const int first = own_file();  // the lowest that is free: what is below is known
  require(syscall(SYS_close_range, 3, ~0u, 0) == 0, "close_range");
  (void)first;
  for (int i = 0; i < 64; ++i) (void)own_file();
  call_on(device, data);
  for (int i = 3; i < 67; ++i) require_untouched(i);
}

std::vector<int> eventfds() {
  std::vector<int> found;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (fs::read_symlink(entry.path(), gone) == "anon_inode:[eventfd]") found.push_back(std::stoi(entry.path().filename()));
  }
  return found;
}

void doorbells(const Device& device, CUdeviceptr data, bool by_eventfds) {
  const std::vector<int> bells = eventfds();
  require(!bells.empty(), "the library has no doorbell, so there is nothing to be tried");
  for (const int bell : bells) {
    const int own = by_eventfds ? eventfd(0, EFD_NONBLOCK) : own_file();
    require(dup2(own, bell) == bell && close(own) == 0, "dup2");
  }
  call_on(device, data);
  for (const int bell : bells) {
    eventfd_t rings = 0;
    if (by_eventfds) require(eventfd_read(bell, &rings) != 0, "an eventfd of the program's own was written to");
    if (!by_eventfds) require_untouched(bell);
  }
}

struct Worker {
  const Device* device;
  CUdeviceptr data;
  int kind;
};

void* work(void* argument) {
  const Worker& worker = *static_cast<const Worker*>(argument);
  std::vector<unsigned> words(kCount);
  (void)cuCtxSetCurrent(worker.device->context);
  for (int i = 0;; ++i) {
    pthread_testcancel();
    switch (worker.kind % 4) {
      case 0:
        (void)worker.device->launch_add(worker.data, kCount, 0);
        (void)cuCtxSynchronize();
        break;
      case 1: (void)cuMemcpyHtoD(worker.data + kCount * sizeof(unsigned), words.data(), words.size() * sizeof(unsigned)); break;
      case 2: {
        CUmodule module = nullptr;
        if (cuModuleLoadData(&module, kGlobalPtx) == CUDA_SUCCESS) (void)cuModuleUnload(module);
        break;
      }
      default: {
        CUdeviceptr memory = 0;
        if (cuMemAlloc(&memory, 64u << 20) == CUDA_SUCCESS) (void)cuMemFree(memory);
        usleep(100);
      }
    }
  }
}

void cancelled(const Device& device, CUdeviceptr data) {
  for (int turn = 0; turn < 200; ++turn) {
    Worker worker{&device, data, turn};
    pthread_t thread{};
    require(pthread_create(&thread, nullptr, work, &worker) == 0, "no thread");
    usleep(static_cast<useconds_t>(turn * 37 % 3'000));
    pthread_cancel(thread);
    void* result = nullptr;
    require(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED, "a thread was not cancelled");
  }
}

void require_right(const Device& device, CUdeviceptr data) {
  CU(cuMemsetD32(data, 5, kCount));
  CU(device.launch_add(data, kCount, 2));
  std::vector<unsigned> words(kCount);
  CU(cuMemcpyDtoH(words.data(), data, words.size() * sizeof(unsigned)));
  for (const unsigned word : words) require(word == 7, "a wrong word");
}

// Back at the end: its own output may be a file.
class NoFiles {
 public:
  NoFiles() {
    require(getrlimit(RLIMIT_FSIZE, &before_) == 0, "getrlimit");
    const rlimit none{0, before_.rlim_max};
    require(setrlimit(RLIMIT_FSIZE, &none) == 0, "setrlimit");
  }
  ~NoFiles() { setrlimit(RLIMIT_FSIZE, &before_); }
  NoFiles(const NoFiles&) = delete;
  NoFiles& operator=(const NoFiles&) = delete;

 private:
  rlimit before_{};
};

// Also what it says goes to a file.
void no_files() {
  const NoFiles hold;
  const Device device;
  CUdeviceptr data = 0;
  CU(cuMemAlloc(&data, 2 * kCount * sizeof(unsigned)));
  require_right(device, data);
  CUmemGenericAllocationHandle memory = 0;
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CU(cuMemCreate(&memory, 2u << 20, &kind, 0));
  int shared = -1;
  (void)cuMemExportToShareableHandle(&shared, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

void run(const std::string& how) {
  if (how == "no_files") return no_files();
  const Device device;
  CUdeviceptr data = 0;
  CU(cuMemAlloc(&data, 2 * kCount * sizeof(unsigned)));
  require_right(device, data);
  if (how == "files") return files(device, data);
  if (how == "doorbells") return doorbells(device, data, false);
  if (how == "counters") return doorbells(device, data, true);
  if (how == "cancelled") cancelled(device, data);
  require_right(device, data);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "");
    std::puts("ok");
    return 0;
  } catch (const std::exception& failure) {
    std::printf("%s\n", failure.what());
    return 1;
  }
}
