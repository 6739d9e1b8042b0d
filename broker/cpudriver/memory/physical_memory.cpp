// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/memory/physical_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "broker/cpudriver/config.hpp"
#include "broker/cpudriver/device/devices.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::cpudriver {
namespace {

constexpr int kNeededSeals = F_SEAL_SHRINK | F_SEAL_GROW;
// Of files, so that who imports one knows what it is: behind this stands the device's number among the machine's.
constexpr const char* kName = "cuda_cpu device memory";
constexpr const char* kCompressibleName = "cuda_cpu compressible device memory";
constexpr const char* kDeviceMark = " device memory ";

unsigned own_device() { return Devices::get().machine_index(Devices::get().used()); }

// Which memory a descriptor names, whatever its number and whichever process made it.
using FileIdentity = std::pair<dev_t, ino_t>;

struct KnownFiles {
  Mutex mutex;
  std::map<FileIdentity, std::weak_ptr<PhysicalMemory>> files GUARDED_BY(mutex);

  static KnownFiles& get() {
    static KnownFiles& known = *new KnownFiles;
    return known;
  }
};

bool identify(int fd, FileIdentity& identity, std::size_t& size_bytes) {
  struct stat status {};
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= 0) return false;
  identity = {status.st_dev, status.st_ino};
  size_bytes = static_cast<std::size_t>(status.st_size);
  return true;
}

PhysicalMemory::Properties named_properties(int fd) {
  std::array<char, 128> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  PhysicalMemory::Properties properties{true, false, false};
  if (readlink(link.c_str(), target.data(), target.size() - 1) <= 0) return properties;
  const std::string_view name(target.data());
  properties.is_compressible = name.find(kCompressibleName) != std::string_view::npos;
  const std::size_t mark = name.find(kDeviceMark);
  if (mark == std::string_view::npos) return properties;
  properties.is_elsewhere = std::strtoul(target.data() + mark + std::strlen(kDeviceMark), nullptr, 10) != own_device();
  return properties;
}

}  // namespace

MemoryBudget& MemoryBudget::get() {
  static MemoryBudget& budget = *new MemoryBudget;
  return budget;
}

bool MemoryBudget::take(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::size_t total = Config::get().memory_bytes;
  if (used_bytes_ > total || bytes > total - used_bytes_) return false;
  used_bytes_ += bytes;
  return true;
}

void MemoryBudget::take_without_limit(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  used_bytes_ += bytes;
}

void MemoryBudget::give_back(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  used_bytes_ -= bytes;
}

std::size_t MemoryBudget::free_bytes() const {
  const std::lock_guard lock(mutex_);
  const std::size_t total = Config::get().memory_bytes;
  return used_bytes_ > total ? 0 : total - used_bytes_;
}

PhysicalMemory::PhysicalMemory(int fd, std::size_t size_bytes, Properties properties)
    : fd_(fd), size_bytes_(size_bytes), properties_(properties) {}

PhysicalMemory::~PhysicalMemory() {
  FileIdentity identity;
  std::size_t size_bytes = 0;
  if (identify(fd_, identity, size_bytes)) {
    KnownFiles& known = KnownFiles::get();
    const std::lock_guard lock(known.mutex);
    const auto found = known.files.find(identity);
    // A new object of the same file may have taken the place already; it is not expired.
    if (found != known.files.end() && found->second.expired()) known.files.erase(found);
  }
  close(fd_);
  if (!properties_.is_elsewhere) MemoryBudget::get().give_back(size_bytes_);
}

CUresult PhysicalMemory::create(std::size_t size_bytes, Properties properties, std::shared_ptr<PhysicalMemory>& memory) {
  if (!MemoryBudget::get().take(size_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::string name = std::string(properties.is_compressible ? kCompressibleName : kName) + " " + std::to_string(own_device());
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(size_bytes)) != 0 || fcntl(fd, F_ADD_SEALS, kNeededSeals) != 0) {
    if (fd >= 0) close(fd);
    MemoryBudget::get().give_back(size_bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory = std::make_shared<PhysicalMemory>(fd, size_bytes, properties);
  FileIdentity identity;
  if (identify(fd, identity, size_bytes)) {
    KnownFiles& known = KnownFiles::get();
    const std::lock_guard lock(known.mutex);
    known.files[identity] = memory;
  }
  return CUDA_SUCCESS;
}

CUresult PhysicalMemory::import(int fd, std::shared_ptr<PhysicalMemory>& memory) {
  FileIdentity identity;
  std::size_t size_bytes = 0;
  if (!identify(fd, identity, size_bytes) || size_bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kNeededSeals) != kNeededSeals) return CUDA_ERROR_INVALID_VALUE;

  KnownFiles& known = KnownFiles::get();
  const std::lock_guard lock(known.mutex);
  std::weak_ptr<PhysicalMemory>& entry = known.files[identity];
  if (auto existing = entry.lock()) {
    memory = std::move(existing);
    return CUDA_SUCCESS;
  }
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  const Properties properties = named_properties(own);
  if (!properties.is_elsewhere) MemoryBudget::get().take_without_limit(size_bytes);
  memory = std::make_shared<PhysicalMemory>(own, size_bytes, properties);
  entry = memory;
  return CUDA_SUCCESS;
}

int PhysicalMemory::duplicate_fd() const { return fcntl(fd_, F_DUPFD_CLOEXEC, 0); }

MemoryHandles& MemoryHandles::get() {
  static MemoryHandles& handles = *new MemoryHandles;
  return handles;
}

CUmemGenericAllocationHandle MemoryHandles::add(std::shared_ptr<PhysicalMemory> memory) {
  const std::lock_guard lock(mutex_);
  const CUmemGenericAllocationHandle handle = next_++;
  entries_[handle].memory = std::move(memory);
  return handle;
}

CUmemGenericAllocationHandle MemoryHandles::retain(const std::shared_ptr<PhysicalMemory>& memory) {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [handle, entry] : entries_) {
      if (entry.memory != memory) continue;
      ++entry.references;
      return handle;
    }
  }
  return add(memory);
}

std::shared_ptr<PhysicalMemory> MemoryHandles::find(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(handle);
  return found == entries_.end() ? nullptr : found->second.memory;
}

bool MemoryHandles::release(CUmemGenericAllocationHandle handle) {
  std::shared_ptr<PhysicalMemory> last;  // closed after the mutex
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(handle);
  if (found == entries_.end()) return false;
  if (--found->second.references == 0) {
    last = std::move(found->second.memory);
    entries_.erase(found);
  }
  return true;
}

}  // namespace mpsshim::cpudriver
