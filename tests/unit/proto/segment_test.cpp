// SPDX-License-Identifier: Apache-2.0
#include "proto/segment.hpp"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/channel.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::proto;

TEST_CASE("a sealed file keeps its size") {
  const FileDescriptor file = create_memory_file("test", 5'000);
  REQUIRE(file.valid());
  CHECK_FALSE(sealed_size(file));
  REQUIRE(seal(file, Seal::size));
  CHECK(sealed_size(file) == 8'192u);
  CHECK(ftruncate(file.get(), 4'096) != 0);
  CHECK(ftruncate(file.get(), 1 << 20) != 0);
  CHECK((fcntl(file.get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("sealed content cannot be written, and is not sealed under a writable mapping") {
  const FileDescriptor file = create_memory_file("test", kPageBytes);
  {
    const Mapping writable = Mapping::map(file, 0, kPageBytes, Access::read_write);
    REQUIRE(writable);
    CHECK_FALSE(seal(file, Seal::content));
  }
  REQUIRE(seal(file, Seal::content));
  CHECK(pwrite(file.get(), "x", 1, 0) < 0);
  CHECK_FALSE(Mapping::map(file, 0, kPageBytes, Access::read_write));
  CHECK(Mapping::map(file, 0, kPageBytes, Access::read_only));
}

TEST_CASE("future writes are refused while the creator's mapping stays writable") {
  const FileDescriptor file = create_memory_file("test", kPageBytes);
  const Mapping writer = Mapping::map(file, 0, kPageBytes, Access::read_write);
  REQUIRE(seal(file, Seal::future_write));
  const Mapping reader = Mapping::map(file, 0, kPageBytes, Access::read_only);
  REQUIRE(reader);
  writer.data()[7] = std::byte{42};
  CHECK(reader.data()[7] == std::byte{42});
  CHECK_FALSE(Mapping::map(file, 0, kPageBytes, Access::read_write));
}

TEST_CASE("a range mapped twice runs over its end") {
  const FileDescriptor file = create_memory_file("test", 2 * kPageBytes);
  const Mapping ring = Mapping::map_twice(file, 0, 2 * kPageBytes, Access::read_write);
  REQUIRE(ring);
  std::memset(ring.data() + 2 * kPageBytes - 4, 0x5a, 8);
  CHECK(ring.data()[0] == std::byte{0x5a});
  CHECK(ring.data()[3] == std::byte{0x5a});
  CHECK(ring.data()[2 * kPageBytes + 3] == std::byte{0x5a});
}

TEST_CASE("a fixed address is taken only where nothing lies") {
#if defined(__SANITIZE_THREAD__)
  MPSSHIM_SKIP("ThreadSanitizer ends a program whose mapping lies outside the ranges it knows");
#endif
  constexpr std::uint64_t kAddress = 0x3000'0000'0000;
  const FileDescriptor file = create_memory_file("test", kPageBytes);
  const Reservation reservation = Reservation::at(kAddress, 4 * kPageBytes);
  REQUIRE(reservation);
  CHECK_FALSE(Reservation::at(kAddress + kPageBytes, kPageBytes));
  CHECK(errno == EEXIST);
  CHECK_FALSE(Mapping::map(file, 0, kPageBytes, Access::read_write, kAddress));
  const Mapping replaced = Mapping::map(file, 0, kPageBytes, Access::read_write, kAddress, true);
  REQUIRE(replaced);
  CHECK(reinterpret_cast<std::uint64_t>(replaced.data()) == kAddress);
  const Mapping elsewhere = Mapping::map(file, 0, kPageBytes, Access::read_write, kAddress + 8 * kPageBytes);
  CHECK(elsewhere);
}

TEST_CASE("mappings stay out of forked children") {
  const FileDescriptor file = create_memory_file("test", kPageBytes);
  const Mapping mapping = Mapping::map(file, 0, kPageBytes, Access::read_write);
  REQUIRE(mapping);
  const pid_t child = fork();
  if (child == 0) {
    unsigned char resident = 0;
    _exit(mincore(mapping.data(), kPageBytes, &resident) != 0 && errno == ENOMEM ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("nothing that fails to map is reported as mapped") {
  CHECK_FALSE(Mapping::map(FileDescriptor(), 0, kPageBytes, Access::read_write));
  CHECK_FALSE(Mapping::map_twice(FileDescriptor(), 0, kPageBytes, Access::read_write));
}
