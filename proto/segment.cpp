// SPDX-License-Identifier: Apache-2.0
#include "proto/segment.hpp"

#include <cerrno>

#include <boost/interprocess/detail/os_file_functions.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/channel.hpp"
#include "proto/file_size_limit.hpp"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace mpsshim::proto {

namespace ipc = boost::interprocess;

namespace {

std::size_t round_to_pages(std::size_t size) { return (size + kPageBytes - 1) / kPageBytes * kPageBytes; }

int seals_of(Seal how) {
  int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  switch (how) {
    case Seal::size: break;
    case Seal::future_write: seals |= F_SEAL_FUTURE_WRITE; break;
    case Seal::content: seals |= F_SEAL_WRITE; break;
    case Seal::given_content: seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE; break;
  }
  return seals;
}

// What mapped_region asks of a "mappable": a file handle and a mode.
class MappableFile {
 public:
  MappableFile(int fd, Access access) : fd_(fd), mode_(access == Access::read_write ? ipc::read_write : ipc::read_only) {}
  [[nodiscard]] ipc::mapping_handle_t get_mapping_handle() const { return ipc::ipcdetail::mapping_handle_from_file_handle(fd_); }
  [[nodiscard]] ipc::mode_t get_mode() const { return mode_; }

 private:
  int fd_;
  ipc::mode_t mode_;
};

}  // namespace

FileDescriptor duplicate_of(int fd) { return FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

FileDescriptor FileDescriptor::duplicate() const { return duplicate_of(fd_); }

void FileDescriptor::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

FileDescriptor create_memory_file(const char* debug_name, std::size_t size_bytes) {
  const NoFileSizeSignal hold;
  FileDescriptor file(memfd_create(debug_name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.valid() && ftruncate(file.get(), static_cast<off_t>(round_to_pages(size_bytes))) != 0) file.reset();
  return file;
}

bool seal(const FileDescriptor& file, Seal how) { return fcntl(file.get(), F_ADD_SEALS, seals_of(how)) == 0; }

bool is_sealed(const FileDescriptor& file, Seal how) {
  const int seals = fcntl(file.get(), F_GET_SEALS);
  return seals >= 0 && (seals & seals_of(how)) == seals_of(how);
}

std::optional<std::size_t> sealed_size(const FileDescriptor& file) {
  constexpr int kSize = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = fcntl(file.get(), F_GET_SEALS);
  struct stat status {};
  if (seals < 0 || (seals & kSize) != kSize || fstat(file.get(), &status) != 0) return std::nullopt;
  return static_cast<std::size_t>(status.st_size);
}

struct Mapping::Regions {
  ipc::mapped_region first;
  ipc::mapped_region second;
};

Mapping::Mapping() = default;
Mapping::Mapping(Mapping&& other) noexcept
    : regions_(std::move(other.regions_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
Mapping& Mapping::operator=(Mapping&& other) noexcept {
  regions_ = std::move(other.regions_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}
Mapping::~Mapping() = default;

Mapping Mapping::map(const FileDescriptor& file, std::size_t offset, std::size_t size_bytes, Access access, std::uint64_t address, bool replace) {
  Mapping mapping;
  try {
    const MappableFile mappable(file.get(), access);
    auto regions = std::make_unique<Regions>();
    const ipc::mode_t mode = mappable.get_mode();
    if (address == 0) {
      regions->first = ipc::mapped_region(mappable, mode, static_cast<ipc::offset_t>(offset), size_bytes);
    } else {
      const ipc::map_options_t options = MAP_SHARED | (replace ? MAP_FIXED : MAP_FIXED_NOREPLACE);
      regions->first = ipc::mapped_region(mappable, mode, static_cast<ipc::offset_t>(offset), size_bytes,
                                          reinterpret_cast<void*>(address), options);  // NOLINT(performance-no-int-to-ptr)
    }
    mapping.data_ = static_cast<std::byte*>(regions->first.get_address());
    mapping.size_ = size_bytes;
    mapping.regions_ = std::move(regions);
    madvise(mapping.data_, round_to_pages(size_bytes), MADV_DONTFORK);
  } catch (const ipc::interprocess_exception& error) {
    errno = error.get_native_error() != 0 ? error.get_native_error() : EINVAL;
    return {};
  }
  return mapping;
}

Mapping Mapping::map_twice(const FileDescriptor& file, std::size_t offset, std::size_t size_bytes, Access access) {
  Mapping mapping;
  void* space = mmap(nullptr, 2 * size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return {};
  const auto base = reinterpret_cast<std::uint64_t>(space);
  try {
    const MappableFile mappable(file.get(), access);
    auto regions = std::make_unique<Regions>();
    const ipc::mode_t mode = mappable.get_mode();
    const auto at = [&](std::uint64_t address) {
      return ipc::mapped_region(mappable, mode, static_cast<ipc::offset_t>(offset), size_bytes,
                                reinterpret_cast<void*>(address), MAP_SHARED | MAP_FIXED);  // NOLINT(performance-no-int-to-ptr)
    };
    regions->first = at(base);
    regions->second = at(base + size_bytes);
    mapping.data_ = static_cast<std::byte*>(regions->first.get_address());
    mapping.size_ = size_bytes;
    mapping.regions_ = std::move(regions);
    madvise(space, 2 * size_bytes, MADV_DONTFORK);
  } catch (const ipc::interprocess_exception& error) {
    munmap(space, 2 * size_bytes);
    errno = error.get_native_error() != 0 ? error.get_native_error() : EINVAL;
    return {};
  }
  return mapping;
}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    reset();
    address_ = std::exchange(other.address_, 0);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Reservation Reservation::at(std::uint64_t address, std::size_t size_bytes) {
  Reservation reservation;
  void* wanted = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  void* got = mmap(wanted, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == MAP_FAILED) return reservation;
  if (got != wanted) {  // a kernel older than MAP_FIXED_NOREPLACE takes the address as a hint
    munmap(got, size_bytes);
    errno = EEXIST;
    return reservation;
  }
  madvise(got, size_bytes, MADV_DONTFORK);
  reservation.address_ = address;
  reservation.size_ = size_bytes;
  return reservation;
}

void Reservation::reset() {
  if (size_ != 0) munmap(reinterpret_cast<void*>(address_), size_);  // NOLINT(performance-no-int-to-ptr)
  address_ = 0;
  size_ = 0;
}

}  // namespace mpsshim::proto
