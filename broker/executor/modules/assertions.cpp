// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/assertions.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "broker/executor/base/helper_pool.hpp"
#include "broker/executor/base/issue_lock.hpp"
#include "broker/executor/base/own_memory.hpp"
#include "broker/executor/base/scoped_call.hpp"
#include "broker/executor/link/control_link.hpp"
#include "broker/executor/link/fault.hpp"
#include "broker/executor/modules/assertion_code.hpp"
#include "broker/log.hpp"
#include "proto/image/managed.hpp"

namespace mpsshim::broker {

namespace {

using image::AssertionArea;
using image::AssertionEntry;
using image::AssertionRecord;

constexpr std::size_t kPage = 4'096;
constexpr std::size_t kAreasPerBlock = 15;
constexpr std::size_t kTextPiece = 64;        // read at once; memory may end behind any of it
constexpr std::size_t kMaxTextBytes = 1'024;  // of a message or a name; C++ names are long
constexpr std::size_t kMaxWordsBytes = std::size_t{256} << 10;

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

// Pages of the executor's own, as the GPU sees them. They stay registered: giving them back would wait for every running kernel.
class Assertions::Memory {
 public:
  [[nodiscard]] static CUresult make(const Driver& driver, std::size_t bytes, std::unique_ptr<Memory>& made) {
    void* const pages = mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    made = std::make_unique<Memory>();
    made->bytes_ = {static_cast<std::byte*>(pages), whole_pages(bytes)};
    bool is_registered = false;
    return OwnMemory::enroll(driver, made->bytes_, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE, made->address_, is_registered);
  }

  [[nodiscard]] std::byte* at(std::size_t offset) const { return bytes_.data() + offset; }
  [[nodiscard]] CUdeviceptr address(std::size_t offset) const { return address_ + offset; }

 private:
  std::span<std::byte> bytes_;
  CUdeviceptr address_ = 0;
};

// Images of the executor's own; texts, wherever a kernel says that they are: the driver refuses what is no memory of the device's.
class AssertionCalls {
 public:
  [[nodiscard]] static CUresult load(const Driver& driver, CUmodule& module, std::span<const std::byte> code) {
    return driver->cuModuleLoadData(AddressKey(), &module, code.data());
  }
  [[nodiscard]] static CUresult read_addresses(const Driver& driver, CUmodule module, std::span<std::uint64_t> addresses) {
    CUdeviceptr variable = 0;
    std::size_t bytes = 0;
    const CUresult result = driver->cuModuleGetGlobal_v2(&variable, &bytes, module, kStubAddresses);
    if (result != CUDA_SUCCESS) return result;
    if (bytes != addresses.size_bytes()) return CUDA_ERROR_INVALID_IMAGE;
    return driver->cuMemcpyDtoH_v2(AddressKey(), addresses.data(), variable, bytes);
  }
  [[nodiscard]] static bool is_device_memory(const Driver& driver, std::uint64_t address) {
    unsigned type = 0;
    return driver->cuPointerGetAttribute(AddressKey(), &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE;
  }
  [[nodiscard]] static CUresult read(const Driver& driver, std::byte* to, std::uint64_t address, std::size_t bytes, CUstream stream) {
    return driver->cuMemcpyDtoHAsync_v2(AddressKey(), to, address, bytes, stream);
  }
};

Assertions::Assertions(const Driver& driver, ControlLink& control, const FaultReporter& faults, HelperPool& helpers)
    : driver_(driver), control_(control), faults_(faults), helpers_(helpers) {}

Assertions::~Assertions() = default;

bool Assertions::open(unsigned compute, IssueLock& issue_lock) {
  issue_lock_ = &issue_lock;
  const std::uint32_t count = driver_.is_cpu() ? kCpuEntries : kStubBlocks * kStubsPerBlock;
  const std::size_t word = count * sizeof(AssertionEntry);
  const std::size_t area = word + alignof(AssertionArea);
  const std::size_t text = area + sizeof(AssertionArea);
  CUresult result = Memory::make(driver_, text + kTextPiece, table_);
  if (result == CUDA_SUCCESS) result = driver_->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
  if (result == CUDA_SUCCESS) {
    nobodys_word_ = table_->address(word);
    nobodys_area_ = table_->address(area);
    if (driver_.is_cpu()) {
      for (std::uint32_t i = 0; i < count; ++i) address_of_.push_back(table_->address(i * sizeof(AssertionEntry)));
    } else {
      result = load_stubs(compute);
    }
  }
  const std::lock_guard lock(mutex_);
  if (result == CUDA_SUCCESS) result = make_areas();
  if (result != CUDA_SUCCESS) {
    log_warning("A failed assertion of a kernel ends this executor's context, as in NVIDIA's driver: its functions for them could not be had ({})",
                driver_.describe(result));
    return false;
  }
  for (std::uint32_t i = count; i > 0; --i) free_entries_.push_back(i - 1);
  return true;
}

CUresult Assertions::load_stubs(unsigned compute) {
  const std::span<const std::byte> code = assertion_code(compute);
  if (code.empty()) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  for (std::uint32_t block = 0; block < kStubBlocks; ++block) {
    std::vector<std::byte> placed(code.begin(), code.end());
    const image::Placement place{kStubEntries, table_->address(block * kStubsPerBlock * sizeof(AssertionEntry)), true};
    std::string why;
    if (!image::place_in_cubin(placed, {&place, 1}, why)) return log_error("{}", why), CUDA_ERROR_INVALID_IMAGE;
    CUmodule module = nullptr;
    std::array<std::uint64_t, kStubsPerBlock> addresses{};
    CUresult result = AssertionCalls::load(driver_, module, placed);
    if (result == CUDA_SUCCESS) result = AssertionCalls::read_addresses(driver_, module, addresses);
    if (result != CUDA_SUCCESS) return result;
    address_of_.insert(address_of_.end(), addresses.begin(), addresses.end());
  }
  return std::ranges::find(address_of_, 0u) == address_of_.end() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

CUresult Assertions::make_areas() {
  std::unique_ptr<Memory> block;
  if (const CUresult result = Memory::make(driver_, kAreasPerBlock * sizeof(AssertionArea), block); result != CUDA_SUCCESS) return result;
  for (std::size_t i = 0; i < kAreasPerBlock; ++i) {
    const std::size_t offset = i * sizeof(AssertionArea);
    free_areas_.emplace_back(new (block->at(offset)) AssertionArea(), block->address(offset));
  }
  blocks_.push_back(std::move(block));
  return CUDA_SUCCESS;
}

std::shared_ptr<const Assertions::Entry> Assertions::take() {
  std::uint32_t index = 0;
  {
    const std::lock_guard lock(mutex_);
    if (free_entries_.empty()) return nullptr;
    index = free_entries_.back();
    free_entries_.pop_back();
  }
  assign(index, 0);
  return std::make_shared<const Entry>(*this, index);
}

void Assertions::give_back(std::uint32_t index) {
  const std::lock_guard lock(mutex_);
  free_entries_.push_back(index);
}

// Before a kernel of the session can be launched from the copy, and after the last has ended: no thread reads it meanwhile.
void Assertions::assign(std::uint32_t index, std::uint64_t session) {
  const std::lock_guard lock(mutex_);
  const auto watched = sessions_.find(session);
  const bool is_somebodys = watched != sessions_.end();
  auto& entry = *reinterpret_cast<AssertionEntry*>(table_->at(index * sizeof(AssertionEntry)));
  std::atomic_ref(entry.area).store(is_somebodys ? watched->second.area_address : nobodys_area_, std::memory_order_relaxed);
  std::atomic_ref(entry.word).store(is_somebodys ? watched->second.word : nobodys_word_, std::memory_order_release);
}

CUresult Assertions::add(std::uint64_t session, CUdeviceptr word) {
  const std::lock_guard lock(mutex_);
  if (free_areas_.empty()) {
    if (const CUresult result = make_areas(); result != CUDA_SUCCESS) return result;
  }
  const auto [area, address] = free_areas_.back();
  free_areas_.pop_back();
  *area = AssertionArea();
  sessions_[session] = {.area = area, .area_address = address, .word = word};
  return CUDA_SUCCESS;
}

void Assertions::remove(std::uint64_t session) {
  const std::lock_guard reading(reading_);
  const std::lock_guard lock(mutex_);
  const auto watched = sessions_.find(session);
  if (watched == sessions_.end()) return;
  free_areas_.emplace_back(watched->second.area, watched->second.area_address);
  sessions_.erase(watched);
}

void Assertions::turn(const Progress& progress, Clock::time_point now) {
  const auto is_at_work = [&](std::uint64_t session) {
    for (std::uint32_t i = 0; i < progress.used(); ++i) {
      if (progress[i].session.load(std::memory_order_relaxed) == session && progress.is_busy(i)) return true;
    }
    return false;
  };
  const std::lock_guard lock(mutex_);
  for (auto& [session, watched] : sessions_) {
    // Written by the GPU. Acquire: so are the records before the words that say that they are complete.
    if (watched.is_told || std::atomic_ref(watched.area->count).load(std::memory_order_acquire) == 0) continue;
    if (watched.seen == Clock::time_point{}) watched.seen = now;
    if (now - watched.seen < kLongestWork && is_at_work(session)) continue;
    watched.is_told = true;
    helpers_.submit(HelperPool::kOfNobody, [this, id = session] {
      const std::lock_guard reading(reading_);  // remove() waits for it
      const AssertionArea* area = nullptr;
      {
        const std::lock_guard look(mutex_);
        if (const auto found = sessions_.find(id); found != sessions_.end()) area = found->second.area;
      }
      if (area != nullptr) tell(id, *area);
    });
  }
}

// As NVIDIA's driver prints it.
void Assertions::tell(std::uint64_t session, const AssertionArea& area) {
  const ScopedMark mark(session, "reading failed assertions", Patience::patient);
  std::map<std::uint64_t, std::string> texts;
  const auto text_of = [&](std::uint64_t address) -> const std::string& {
    const auto [text, is_new] = texts.try_emplace(address);
    if (is_new) text->second = text_at(address);
    return text->second;
  };
  std::string words;
  for (const AssertionRecord& shared : area.record) {
    if (std::atomic_ref(const_cast<std::uint32_t&>(shared.is_complete)).load(std::memory_order_acquire) != 1) continue;
    const AssertionRecord record = shared;  // kernels of the client may write it again
    const std::string line = fmt::format("{}:{}: {}: block: [{},{},{}], thread: [{},{},{}] Assertion `{}` failed.\n", text_of(record.file),
                                         static_cast<std::int32_t>(record.line), text_of(record.function), record.block[0], record.block[1],
                                         record.block[2], record.thread[0], record.thread[1], record.thread[2], text_of(record.message));
    if (words.size() + line.size() > kMaxWordsBytes) break;
    words += line;
  }
  const proto::FileDescriptor file = proto::create_memory_file("mpsshim-assertions", std::max<std::size_t>(words.size(), 1));
  const auto size = static_cast<ssize_t>(words.size());
  const bool is_written = file.valid() && pwrite(file.get(), words.data(), words.size(), 0) == size && proto::seal(file, proto::Seal::content);
  control_.send({message::Asserted{.session = session, .size_bytes = is_written ? words.size() : 0}, {.words = is_written ? file.get() : -1}});
}

// Up to its end, or that of the memory in which it lies. The driver is asked for less and less where it refuses.
std::string Assertions::text_at(std::uint64_t address) {
  std::string text;
  std::size_t piece = kTextPiece;
  const std::size_t offset = address_of_.size() * sizeof(AssertionEntry) + alignof(AssertionArea) + sizeof(AssertionArea);
  std::byte* const buffer = table_->at(offset);
  while (text.size() < kMaxTextBytes && AssertionCalls::is_device_memory(driver_, address + text.size())) {
    CUresult result = CUDA_SUCCESS;
    {
      const std::lock_guard lock(*issue_lock_);
      result = AssertionCalls::read(driver_, buffer, address + text.size(), piece, stream_);
    }
    if (result == CUDA_SUCCESS) result = driver_->cuStreamSynchronize(stream_);
    faults_.check(result, 0, "reading what has failed in an assertion");
    if (result != CUDA_SUCCESS) {
      if (piece == 1) break;
      piece /= 2;
      continue;
    }
    const auto* const characters = reinterpret_cast<const char*>(buffer);
    const std::size_t length = strnlen(characters, piece);
    text.append(characters, length);
    if (length < piece) break;
  }
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return text;
}

}  // namespace mpsshim::broker
