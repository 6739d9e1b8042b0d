// SPDX-License-Identifier: Apache-2.0
// Memory files and their mappings. The control process creates every segment, seals its size before anybody receives it, and hands out file
// descriptors; nothing has a name, so nothing is left behind after a crash. Errors are errno values; nothing here throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace mpsshim::proto {

// Owns a file descriptor; -1: none.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~FileDescriptor() { reset(); }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  [[nodiscard]] FileDescriptor duplicate() const;  // close-on-exec; invalid on failure (errno)
  void reset();

 private:
  int fd_ = -1;
};

// Of a descriptor that is somebody else's.
[[nodiscard]] FileDescriptor duplicate_of(int fd);

enum class Seal : std::uint8_t {
  size,           // fixed size, writable
  future_write,   // fixed size, no new writable mappings (the creator's stays)
  content,        // fixed size and content; needs that no writable mapping exists
  given_content,  // the same, and whoever is given the file may add seals, as brokers of earlier releases do
};

// A new memory file of exactly `size_bytes` (rounded up to pages). Not sealed yet. `debug_name` shows in /proc/PID/maps. Invalid on failure (errno).
[[nodiscard]] FileDescriptor create_memory_file(const char* debug_name, std::size_t size_bytes);
// Waits for whoever writes to the file; so only before a stranger has it, or where nobody else waits.
[[nodiscard]] bool seal(const FileDescriptor& file, Seal how);
// Whether it is sealed so. Asks for no lock that somebody who writes to the file may hold, as seal() does.
[[nodiscard]] bool is_sealed(const FileDescriptor& file, Seal how);
// The size in bytes of a file whose size is sealed; nullopt if it is not a sealed memory file (a peer could shrink it under our mapping: SIGBUS).
[[nodiscard]] std::optional<std::size_t> sealed_size(const FileDescriptor& file);

enum class Access : std::uint8_t { read_only, read_write };

// A shared mapping of a memory file (Boost.Interprocess mapped_region inside). Excluded from children of fork().
class Mapping {
 public:
  Mapping();
  Mapping(Mapping&&) noexcept;
  Mapping& operator=(Mapping&&) noexcept;
  ~Mapping();

  // Empty on failure (errno). `address` != 0: exactly there, and only if nothing is mapped there (or, with `replace`, over our own reservation).
  [[nodiscard]] static Mapping map(const FileDescriptor& file, std::size_t offset, std::size_t size_bytes, Access access,
                                   std::uint64_t address = 0, bool replace = false);
  // The range mapped twice back to back, so that a record may run over its end.
  [[nodiscard]] static Mapping map_twice(const FileDescriptor& file, std::size_t offset, std::size_t size_bytes, Access access);

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] explicit operator bool() const { return data_ != nullptr; }

 private:
  struct Regions;
  std::unique_ptr<Regions> regions_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Address space kept free of other mappings (PROT_NONE, no memory behind it), e.g. a client's device lease.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept : address_(std::exchange(other.address_, 0)), size_(std::exchange(other.size_, 0)) {}
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { reset(); }
  // Exactly [address, address + size_bytes); empty if any of it is in use (errno EEXIST).
  [[nodiscard]] static Reservation at(std::uint64_t address, std::size_t size_bytes);
  [[nodiscard]] std::uint64_t address() const { return address_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] explicit operator bool() const { return size_ != 0; }
  void reset();

 private:
  std::uint64_t address_ = 0;
  std::size_t size_ = 0;
};

}  // namespace mpsshim::proto
