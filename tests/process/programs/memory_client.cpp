// SPDX-License-Identifier: Apache-2.0
// A small client for the memory tests, of which a machine can run hundreds: a command a line on standard input, an answer a line on standard
// output, as test_client.
//
//   hold, check      64 KiB with content of its own; is it still there
//   launch           a kernel on it (loads a module), the result checked
//   fill MIB         that much device memory in allocations of all sizes, and 1 MiB pinned, all words kSecret; a pageable copy as well
//   drop             frees what fill has taken
//   search MIB       takes device memory and 1 MiB pinned, answers "ok N": N words of another client's secret were found in it
//   take MIB         one allocation, kept: "ok" or the error
//   exhaust MIB      allocations of that size until one fails: "ok COUNT ERROR MICROSECONDS", the time is that of the call that failed
//   time KIB N       cuMemAlloc and cuMemFree of that size (0: of sizes from 1 byte to 8 MiB) over and over in N threads: "ok NS" for a pair
//   copy             a page to the end of each of those allocations and back: is it right
//   give             frees what take and exhaust have taken
//   import, seen     a memory file of 64 KiB imported and mapped, "ok ADDRESS", or the error; is what was written there in the file, and back
//   devices          how many it sees, and the first one's UUID and PCI bus: "ok COUNT GPU-UUID BUS"
//   free, total      what cuMemGetInfo says: "ok MIB"
//   freed MIB N      N allocations of that size, each freed and then asked what is free: "ok MIB", the least
//   piece MIB        one cuMemCreate, kept: "ok" or the error
//   array MIB        one array of so many rows of a MiB, kept: "ok" or the error
//   back             gives back what piece and array have made
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "tests/process/programs/conversation.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {
namespace {

constexpr std::size_t kMiB = 1 << 20;
constexpr unsigned kSecret = 0x5ec2e7a5;
constexpr std::size_t kPinnedWords = kMiB / sizeof(unsigned);
constexpr std::size_t kImportedBytes = 64 * 1024;

class Client {
 public:
  Client();
  std::string answer(const std::string& line);

 private:
  void hold();
  void launch();
  void fill(std::size_t bytes);
  void drop();
  [[nodiscard]] std::size_t search(std::size_t bytes);
  std::string exhaust(std::size_t bytes);
  [[nodiscard]] long time_pairs(std::size_t bytes, unsigned threads) const;
  void copy() const;
  [[nodiscard]] static std::string devices();
  [[nodiscard]] static std::size_t free_mib();
  [[nodiscard]] static std::size_t least_freed_mib(std::size_t bytes, unsigned count);
  [[nodiscard]] static std::size_t total_mib();
  CUresult make_piece(std::size_t bytes);
  CUresult make_array(std::size_t rows);
  void give_back();
  void give();
  std::string import();
  void seen() const;

  CUcontext context_ = nullptr;
  std::unique_ptr<Words> held_;
  std::optional<Device> device_;
  std::vector<CUdeviceptr> filled_;
  void* pinned_ = nullptr;
  std::vector<CUdeviceptr> taken_;
  std::size_t exhausted_bytes_ = 0;  // of each, after exhaust
  std::vector<CUmemGenericAllocationHandle> pieces_;
  std::vector<CUarray> arrays_;
  CUdeviceptr imported_ = 0;
  unsigned* file_ = nullptr;
};

Client::Client() {
  CU(cuInit(0));
  CUdevice device = 0;
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxRetain(&context_, device));
  CU(cuCtxSetCurrent(context_));
}

void Client::hold() {
  held_ = std::make_unique<Words>(16 * 1024, 4711);
  CU(cuCtxSynchronize());
}

void Client::launch() {
  if (!device_) device_.emplace();
  CU(device_->launch_add(held_->address, held_->count(), 3));
  held_->add(3);
  held_->check();
}

void Client::fill(std::size_t bytes) {
  const std::size_t sizes[] = {600, 4096, 100'000, kMiB, 2 * kMiB, 5'000'000, 40 * kMiB};
  for (std::size_t i = 0, left = bytes; left > 4096; ++i) {
    const std::size_t size = std::min(sizes[i % std::size(sizes)], left) / 4 * 4;
    filled_.emplace_back();
    CU(cuMemAlloc(&filled_.back(), size));
    CU(cuMemsetD32(filled_.back(), kSecret, size / 4));
    left -= size;
  }
  CU(cuMemHostAlloc(&pinned_, kMiB, 0));
  std::fill_n(static_cast<unsigned*>(pinned_), kPinnedWords, kSecret);
  const std::vector<unsigned> pageable(kPinnedWords, kSecret);
  CU(cuMemcpyHtoD(filled_.front(), pageable.data(), 600));
  CU(cuCtxSynchronize());
}

void Client::drop() {
  for (const CUdeviceptr address : filled_) CU(cuMemFree(address));
  filled_.clear();
  CU(cuMemFreeHost(pinned_));
}

std::size_t Client::search(std::size_t bytes) {
  std::size_t found = 0;
  std::vector<unsigned> words;
  const auto look = [&](CUdeviceptr address, std::size_t size) {
    words.assign(size / sizeof(unsigned), 0);
    CU(cuMemcpyDtoH(words.data(), address, size));
    found += static_cast<std::size_t>(std::ranges::count(words, kSecret));
  };
  for (std::size_t left = bytes; left > 0;) {
    const std::size_t size = std::min(left, left % 3 == 0 ? 8 * kMiB : kMiB);
    CUdeviceptr address = 0;
    CU(cuMemAlloc(&address, size));
    look(address, size);
    taken_.push_back(address);
    left -= size;
  }
  void* pinned = nullptr;
  CU(cuMemHostAlloc(&pinned, kMiB, 0));
  found += static_cast<std::size_t>(std::count(static_cast<unsigned*>(pinned), static_cast<unsigned*>(pinned) + kPinnedWords, kSecret));
  CU(cuMemFreeHost(pinned));
  return found;
}

void Client::copy() const {
  for (const CUdeviceptr address : taken_) {
    const std::vector<unsigned> words(1024, static_cast<unsigned>(address >> 20));
    std::vector<unsigned> back(words.size());
    const CUdeviceptr end = address + exhausted_bytes_ - words.size() * sizeof(unsigned);
    CU(cuMemcpyHtoD(end, words.data(), words.size() * sizeof(unsigned)));
    CU(cuMemcpyDtoH(back.data(), end, words.size() * sizeof(unsigned)));
    require(back == words, "an allocation does not hold what was copied to it");
  }
}

std::size_t Client::free_mib() {
  std::size_t free = 0, total = 0;
  CU(cuMemGetInfo(&free, &total));
  return free / kMiB;
}

std::size_t Client::least_freed_mib(std::size_t bytes, unsigned count) {
  std::size_t least = SIZE_MAX;
  for (unsigned i = 0; i < count; ++i) {
    CUdeviceptr address = 0;
    CU(cuMemAlloc(&address, bytes));
    CU(cuMemFree(address));
    least = std::min(least, free_mib());
  }
  return least;
}

std::size_t Client::total_mib() {
  std::size_t free = 0, total = 0;
  CU(cuMemGetInfo(&free, &total));
  return total / kMiB;
}

CUresult Client::make_piece(std::size_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle piece = 0;
  const CUresult result = cuMemCreate(&piece, bytes, &properties, 0);
  if (result == CUDA_SUCCESS) pieces_.push_back(piece);
  return result;
}

CUresult Client::make_array(std::size_t rows) {
  CUDA_ARRAY_DESCRIPTOR description{};
  description.Width = kMiB / 16;  // of 16 bytes each
  description.Height = rows;
  description.Format = CU_AD_FORMAT_FLOAT;
  description.NumChannels = 4;
  CUarray array = nullptr;
  const CUresult result = cuArrayCreate(&array, &description);
  if (result == CUDA_SUCCESS) arrays_.push_back(array);
  return result;
}

void Client::give_back() {
  for (const CUmemGenericAllocationHandle piece : pieces_) CU(cuMemRelease(piece));
  for (const CUarray array : arrays_) CU(cuArrayDestroy(array));
  pieces_.clear();
  arrays_.clear();
}

std::string Client::exhaust(std::size_t bytes) {
  exhausted_bytes_ = bytes;
  for (int count = 0;; ++count) {
    const auto start = std::chrono::steady_clock::now();
    CUdeviceptr address = 0;
    const CUresult result = cuMemAlloc(&address, bytes);
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
    if (result != CUDA_SUCCESS) return "ok " + std::to_string(count) + " " + describe(result) + " " + std::to_string(took.count());
    taken_.push_back(address);
  }
}

long Client::time_pairs(std::size_t bytes, unsigned threads) const {
  constexpr int kPairs = 20'000;
  const auto run = [&](unsigned seed) {
    CU(cuCtxSetCurrent(context_));
    std::mt19937 random(seed);
    CUdeviceptr kept[8] = {};
    for (int i = 0; i < kPairs; ++i) {
      CUdeviceptr& address = kept[i % std::size(kept)];
      if (address != 0) CU(cuMemFree(address));
      CU(cuMemAlloc(&address, bytes != 0 ? bytes : 1 + random() % (std::size_t{1} << (random() % 24))));
      if (bytes != 0) CU(cuMemFree(std::exchange(address, 0)));
    }
    for (const CUdeviceptr address : kept) CU(cuMemFree(address));
  };
  run(0);
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> others;
  for (unsigned i = 1; i <= threads; ++i) others.emplace_back(run, i);
  for (std::thread& other : others) other.join();
  return static_cast<long>(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kPairs);
}

void Client::give() {
  for (const CUdeviceptr address : taken_) CU(cuMemFree(address));
  taken_.clear();
}

std::string Client::import() {
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC description{};
  description.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  description.size = kImportedBytes;
  const int fd = description.handle.fd = memfd_create("exported", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  require(fd >= 0 && ftruncate(fd, kImportedBytes) == 0, "the system gives no memory file");
  file_ = static_cast<unsigned*>(mmap(nullptr, kImportedBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  CUexternalMemory memory = nullptr;
  if (const CUresult error = cuImportExternalMemory(&memory, &description); error != CUDA_SUCCESS) return describe(error);
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer{};
  buffer.size = kImportedBytes;
  CU(cuExternalMemoryGetMappedBuffer(&imported_, memory, &buffer));
  std::ostringstream answer;
  answer << "ok " << std::hex << imported_;
  return answer.str();
}

void Client::seen() const {
  CU(cuMemsetD32(imported_, kSecret, kImportedBytes / sizeof(unsigned)));
  CU(cuCtxSynchronize());
  require(std::count(file_, file_ + kImportedBytes / sizeof(unsigned), kSecret) == kImportedBytes / sizeof(unsigned),
          "the file lacks what was written");
  file_[7] = 8;
  unsigned word = 0;
  CU(cuMemcpyDtoH(&word, imported_ + 7 * sizeof word, sizeof word));
  require(word == 8, "the device does not see the file");
}

std::string Client::devices() {
  int count = 0;
  CUuuid uuid;
  int bus = -1;
  CU(cuDeviceGetCount(&count));
  CU(cuDeviceGetUuid(&uuid, 0));
  CU(cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0));
  std::string text = "ok " + std::to_string(count) + " GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text + " " + std::to_string(bus);
}

std::string Client::answer(const std::string& line) {
  std::istringstream words(line);
  std::string command;
  std::size_t mib = 0;
  unsigned threads = 1;
  words >> command >> mib >> threads;
  if (command == "hold") return hold(), "ok";
  if (command == "check") return held_->check(), "ok";
  if (command == "launch") return launch(), "ok";
  if (command == "fill") return fill(mib * kMiB), "ok";
  if (command == "drop") return drop(), "ok";
  if (command == "search") return "ok " + std::to_string(search(mib * kMiB));
  if (command == "exhaust") return exhaust(mib * kMiB);
  if (command == "time") return "ok " + std::to_string(time_pairs(mib << 10, threads));
  if (command == "copy") return copy(), "ok";
  if (command == "give") return give(), "ok";
  if (command == "import") return import();
  if (command == "seen") return seen(), "ok";
  if (command == "devices") return devices();
  if (command == "free") return "ok " + std::to_string(free_mib());
  if (command == "freed") return "ok " + std::to_string(least_freed_mib(mib * kMiB, threads));
  if (command == "total") return "ok " + std::to_string(total_mib());
  if (command == "back") return give_back(), "ok";
  if (command == "piece" || command == "array") {
    const CUresult made = command == "piece" ? make_piece(mib * kMiB) : make_array(mib);
    return made == CUDA_SUCCESS ? "ok" : describe(made);
  }
  if (command != "take") throw Failure("unknown command " + line);
  taken_.emplace_back();
  const CUresult result = cuMemAlloc(&taken_.back(), mib * kMiB);
  if (result == CUDA_SUCCESS) return "ok";
  taken_.pop_back();
  return describe(result);
}

}  // namespace
}  // namespace mpsshim::test

int main() { return mpsshim::test::converse<mpsshim::test::Client>(); }
