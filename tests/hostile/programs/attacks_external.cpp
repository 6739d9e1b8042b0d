// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdio>
#include <sstream>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "tests/hostile/programs/attacks.hpp"

namespace mpsshim::test {

namespace {

constexpr std::uint32_t kOpaqueFd = 1, kInvalidValue = 1, kInvalidHandle = 400;
constexpr std::uint64_t kBytes = 64 * 1024;

proto::ExternalMemoryId id(std::uint32_t number) { return proto::ExternalMemoryId::make(number, 1); }

std::uint32_t offer(RawSession& session, int fd, std::uint32_t number, std::uint64_t size_bytes = kBytes, std::uint32_t type = kOpaqueFd) {
  proto::ExternalOffer request;
  request.memory = id(number).value;
  request.size_bytes = size_bytes;
  request.handle_type = type;
  return session.connection.ask<proto::ExternalTaken>(request, {&fd, 1}).header.status;
}

RawReply import(RawSession& session, std::uint32_t number, std::uint64_t size_bytes = kBytes, std::uint32_t flags = 0) {
  return session.call(proto::ExternalImportRecord{id(number), size_bytes, flags, 0});
}

RawReply map(RawSession& session, std::uint32_t number, std::uint64_t offset = 0, std::uint64_t size_bytes = kBytes) {
  return session.call(proto::ExternalMapRecord{id(number), offset, size_bytes, 0, 0});
}

void require_status(const RawReply& reply, std::uint32_t status, const char* what) {
  if (reply.status != status) throw Failure(std::string(what) + ": " + std::to_string(reply.status));
}

void wait_for_all(RawSession& session) {
  const std::uint32_t value = session.fence(0).value.load() + 1;
  session.post(proto::FenceRecord{value, 0});
  session.await_fence(value);
}

template <typename Record>
void require_refused(RawSession& session, const Record& record, const char* what) {
  session.post(record);
  wait_for_all(session);
  if (session.header().async_error.exchange(0) == 0) throw Failure(std::string(what) + " is not refused");
}

// Made right, imported under that number.
proto::FileDescriptor import_file(RawSession& session, std::uint32_t number) {
  proto::FileDescriptor file = proto::create_memory_file("hostile", kBytes);
  if (const std::uint32_t status = offer(session, file.get(), number)) throw Failure("a memory file is refused: " + std::to_string(status));
  require_status(import(session, number), 0, "its import");
  return file;
}

}  // namespace

std::string descriptors_as_memory(Hostile& hostile) {
  RawSession& session = hostile.own();
  std::array<int, 2> pipe_ends{}, socket_ends{};
  if (pipe2(pipe_ends.data(), O_CLOEXEC) != 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socket_ends.data()) != 0) return "no descriptors";
  std::FILE* const file = std::tmpfile();
  const proto::FileDescriptor memory = proto::create_memory_file("hostile", kBytes);
  const std::string path = "/proc/self/fd/" + std::to_string(memory.get());
  const std::array others = {proto::FileDescriptor(pipe_ends[0]),
                             proto::FileDescriptor(pipe_ends[1]),
                             proto::FileDescriptor(socket_ends[0]),
                             proto::FileDescriptor(socket_ends[1]),
                             proto::FileDescriptor(dup(fileno(file))),
                             proto::FileDescriptor(dup(session.connection.socket.fd())),
                             proto::FileDescriptor(open("/dev/null", O_RDWR | O_CLOEXEC)),
                             proto::FileDescriptor(open("/", O_RDONLY | O_CLOEXEC)),
                             proto::FileDescriptor(open("/proc/self/mem", O_RDWR | O_CLOEXEC)),
                             proto::FileDescriptor(open(path.c_str(), O_PATH | O_CLOEXEC)),
                             proto::FileDescriptor(eventfd(0, EFD_CLOEXEC)),
                             proto::FileDescriptor(epoll_create1(EPOLL_CLOEXEC)),
                             proto::FileDescriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC))};
  for (const proto::FileDescriptor& other : others) {
    for (const std::uint32_t type : {1u, 2u, 8u, 9u, 0u, ~0u}) {
      if (offer(session, other.get(), 1, kBytes, type) != kInvalidValue) throw Failure("a descriptor of another kind is taken");
    }
  }
  std::fclose(file);
  for (const std::uint32_t type : {0u, 2u, 8u, 9u, ~0u}) {
    if (offer(session, memory.get(), 1, kBytes, type) != kInvalidValue) throw Failure("a memory file is taken as something else");
  }
  if (offer(session, memory.get(), 1, kBytes + 1) != kInvalidValue) throw Failure("more is taken than there is");
  // Taken, and then made shorter, or what cannot be sealed or written.
  if (offer(session, memory.get(), 2) != 0 || ftruncate(memory.get(), 4096) != 0) throw Failure("a memory file is refused");
  require_status(import(session, 2), kInvalidValue, "less than was offered");
  const proto::FileDescriptor unsealable(memfd_create("hostile", MFD_CLOEXEC));
  if (ftruncate(unsealable.get(), kBytes) != 0 || offer(session, unsealable.get(), 3) != 0) throw Failure("a memory file is refused");
  require_status(import(session, 3), kInvalidValue, "what nobody can seal");
  const proto::FileDescriptor constant = proto::create_memory_file("hostile", kBytes);
  if (!proto::seal(constant, proto::Seal::content) || offer(session, constant.get(), 4) != 0) throw Failure("a memory file is refused");
  if (import(session, 4).status == 0) require_status(map(session, 4), kInvalidValue, "what nobody may write");
  // What has been imported stays as long as it is.
  const proto::FileDescriptor held = import_file(session, 5);
  if (ftruncate(held.get(), 0) == 0) throw Failure("imported memory was made shorter");
  if (!session.is_active()) throw Failure("the session has ended");
  return "ok";
}

std::string external(Hostile& hostile) {
  RawSession& session = hostile.own();
  const proto::FileDescriptor file = import_file(session, 1);
  require_status(import(session, 1), 807, "an import of what was not offered");
  require_status(import(session, 9), 807, "an import of what was not offered");
  if (offer(session, file.get(), 2) != 0) throw Failure("a second offer is refused");
  require_status(import(session, 2, kBytes + 1), kInvalidValue, "an import of more than was offered");
  if (offer(session, file.get(), 2) != 0) throw Failure("a second offer is refused");
  require_status(import(session, 2, kBytes, ~0u), kInvalidValue, "an import with unknown flags");
  for (const auto& [offset, bytes] : {std::pair<std::uint64_t, std::uint64_t>{0, 0}, {0, kBytes + 1}, {kBytes, 1}, {~0ull, 2}, {4096, ~0ull}}) {
    require_status(map(session, 1, offset, bytes), kInvalidValue, "a buffer beyond the memory");
  }
  require_status(map(session, 9), kInvalidHandle, "a buffer of nothing");
  proto::ExternalMapArrayRecord array{};
  array.memory = id(1);
  array.array = proto::ArrayId::make(1, 1);
  array.width = array.height = 1u << 16;
  array.format = 0x20;
  array.channels = 4;
  array.levels = ~0u;
  if (session.call(array).status == 0) throw Failure("an array beyond the memory is mapped");
  const RawReply mapped = map(session, 1);
  require_status(mapped, 0, "a buffer");
  const std::uint64_t address = mapped.body<proto::ExternalMapReply>().address;
  session.post(proto::FillRecord{address, 0, kBytes, 1, 0x11, 1});
  wait_for_all(session);
  if (session.header().async_error.exchange(0) != 0) throw Failure("its own buffer is refused");
  require_refused(session, proto::FillRecord{address, 0, kBytes + 1, 1, 0x11, 1}, "a fill beyond the buffer");
  require_refused(session, proto::ExternalUnmapRecord{address + 4096}, "the end of no buffer");
  require_refused(session, proto::ChunkReleaseRecord{address}, "a buffer as a chunk");
  require_refused(session, proto::ExternalReleaseRecord{id(9)}, "the end of nothing");
  RawSession other;
  require_refused(other, proto::FillRecord{address, 0, 16, 1, 0, 1}, "a fill of another session's buffer");
  require_refused(other, proto::ExternalUnmapRecord{address}, "the end of another session's buffer");
  require_refused(other, proto::ExternalReleaseRecord{id(1)}, "the end of another session's memory");
  require_status(map(other, 1), kInvalidHandle, "a buffer of another session's memory");
  session.post(proto::ExternalReleaseRecord{id(1)});
  session.post(proto::FillRecord{address, 0, kBytes, 1, 0x22, 1});
  wait_for_all(session);
  if (session.header().async_error.exchange(0) != 0) throw Failure("a buffer of destroyed memory is refused");
  std::ostringstream answer;
  answer << "ok " << std::hex << address;
  return answer.str();
}

std::string externals(Hostile& hostile) {
  RawSession& session = hostile.own();
  std::uint32_t offered = 0, imported = 0, mapped = 0;
  const proto::FileDescriptor file = proto::create_memory_file("hostile", kBytes);
  while (offered < 10'000 && offer(session, file.get(), 100'000 + offered) == 0) ++offered;  // and never imported
  for (std::uint32_t number = 0; number < offered; ++number) (void)import(session, 100'000 + number);
  while (imported < 100'000) {
    if (offer(session, file.get(), 1 + imported) != 0 || import(session, 1 + imported).status != 0) break;
    ++imported;
  }
  while (mapped < 100'000 && map(session, 1).status == 0) ++mapped;
  if (!session.is_active()) throw Failure("the session has ended");
  return "ok " + std::to_string(offered) + " " + std::to_string(imported) + " " + std::to_string(mapped);
}

}  // namespace mpsshim::test
