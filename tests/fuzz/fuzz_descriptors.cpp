// SPDX-License-Identifier: Apache-2.0
// The executor on descriptors that are not what it expects: channels, fences and segments whose files are too short, of another kind, not
// sealed, or written while they are read; sessions opened with them, and what comes through the control link in any order. An input:
//   u8 kinds of the four descriptors of a session's opening (2 bits each), u8 how many, then packets: u8 type, u8 kind of descriptor,
//   u16 object, u16 pages
// Nothing may be mapped that its owner could make shorter.
#include <array>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "broker/executor/link/client_channel.hpp"
#include "broker/executor/memory/memory_map.hpp"
#include "broker/log.hpp"
#include "tests/fuzz/support/fuzz_target.hpp"
#include "tests/wire/support/wire_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::fuzz;

namespace {

constexpr unsigned kInputsPerExecutor = 512;

std::unique_ptr<test::WireExecutor> executor;
std::uint64_t records = 0;
unsigned inputs = 0;

enum Kind : unsigned { right = 0, not_sealed = 1, short_file = 2, no_file = 3 };

proto::FileDescriptor make_file(unsigned kind, std::size_t bytes) {
  if (kind == Kind::no_file) return proto::FileDescriptor(open("/dev/null", O_RDWR | O_CLOEXEC));
  proto::FileDescriptor file = proto::create_memory_file("fuzz", kind == Kind::short_file ? bytes / 2 : bytes);
  if (kind != Kind::not_sealed) require(proto::seal(file, proto::Seal::size), "a file cannot be sealed");
  return file;
}

void open_channel(Reader& reader) {
  const unsigned kinds = reader.byte();
  proto::ReceivedFds fds;
  fds.count = std::min<std::size_t>(reader.byte() % 8, proto::kMaxMessageFds);
  if (fds.count == 3) fds.count = 4;  // most of the time
  const std::size_t sizes[] = {proto::kChannelBytes, proto::kFenceSegmentBytes, 0, 0};
  for (std::size_t i = 0; i < std::min<std::size_t>(fds.count, 4); ++i) {
    fds.fds[i] = sizes[i] != 0 ? make_file(kinds >> (2 * i) & 3, sizes[i]) : proto::FileDescriptor(eventfd(0, EFD_CLOEXEC));
  }
  const bool is_right = fds.count == 4 && (kinds & 15) == 0;
  if (fds.count > 0 && (kinds & 3) == 0) {
    const proto::Mapping page = proto::Mapping::map(fds.fds[0], 0, proto::kPageBytes, proto::Access::read_write);
    auto& header = *reinterpret_cast<proto::ChannelHeader*>(page.data());
    header.magic = proto::kChannelMagic;
    header.layout_major = proto::kLayoutMajor;
  }
  ++records;
  const broker::OutgoingMessage open(broker::message::SessionOpen{});
  broker::ReceivedMessage received;
  const std::size_t count = fds.count;
  const bool fits = received.assign(open.bytes(), fds, proto::MessageDirection::to_executor) == proto::Misfit::fits;
  require(fits == (count == 4), "a channel's opening is refused, or has other descriptors than are due");
  broker::ClientChannel channel;
  const CUresult result = fits ? channel.open(*executor->driver, received.take<broker::message::SessionOpen>()) : CUDA_ERROR_INVALID_VALUE;
  require(is_right == (result == CUDA_SUCCESS), is_right ? "a right channel is refused" : "a wrong channel is taken");
  channel.unregister(*executor->driver);
}

void map_segments(Reader& reader) {
  broker::MemoryMap map(*executor->driver, *executor->link, 0, 1, {test::kDeviceLease, test::kLeaseBytes}, {test::kPinnedLease, test::kLeaseBytes},
                        executor->parts->chunks, executor->parts->bulk_lane, 0);
  if (map.open() != CUDA_SUCCESS) std::abort();
  while (!reader.empty()) {
    const unsigned action = reader.byte();
    const unsigned kind = reader.byte();
    const std::uint64_t object = reader.word() % 16;
    const std::uint64_t pages = reader.word();
    ++records;
    if (action % 4 == 3) {
      (void)map.segments().forget(object);
      map.segments().release(object);
      map.segments().unmap(object);
      continue;
    }
    const bool is_pinned = action % 2 == 0;
    const std::size_t bytes = (1 + pages % 16) * proto::kPageBytes;
    const std::uint64_t address = is_pinned ? test::kPinnedLease - 8 * proto::kPageBytes + pages % 64 * proto::kPageBytes : 0;
    const proto::FileDescriptor file = make_file(kind % 4, bytes);
    std::uint64_t device = 0;
    const auto purpose = is_pinned ? proto::SegmentPurpose::pinned : proto::SegmentPurpose::staging;
    const CUresult result = map.segments().map(object, {purpose, address}, static_cast<unsigned>(kind >> 2), file, device);
    const bool is_mappable = kind % 4 == Kind::right || kind % 4 == Kind::short_file;
    const bool is_inside = !is_pinned || address >= test::kPinnedLease;  // the lease's end is out of reach
    require(result != CUDA_SUCCESS || is_mappable, "a segment is mapped whose size is not sealed");
    require(result != CUDA_SUCCESS || is_inside, "a segment is mapped outside its lease");
  }
  map.release_chunks();
  broker::TurnBudget all = broker::TurnBudget::unlimited();
  (void)map.segments().release_some(all);
  map.segments().unmap_all();
}

}  // namespace

// An executor just goes, with what it holds.
extern "C" __attribute__((visibility("default"), used)) const char* __asan_default_options() { return "detect_leaks=0"; }

namespace mpsshim::fuzz {

Input make_input(Random& random) {
  Input input;
  input.push_back(static_cast<std::uint8_t>(random() % 2 == 0 ? 0 : random()));
  input.push_back(static_cast<std::uint8_t>(random() % 4 == 0 ? random() : 4));
  for (std::uint64_t packets = random() % 24; packets > 0; --packets) {
    input.push_back(static_cast<std::uint8_t>(random()));
    input.push_back(static_cast<std::uint8_t>(random() % 4 == 0 ? random() : 0));
    append(input, static_cast<std::uint16_t>(random() % 16));
    append(input, static_cast<std::uint16_t>(random()));
  }
  return input;
}

std::uint64_t records_so_far() { return records; }
void finish() { executor.reset(); }

}  // namespace mpsshim::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (inputs++ % kInputsPerExecutor == 0) {
    (void)broker::open_log({.path = "", .identity = "Fuzz", .to_standard_error = false, .least = broker::LogLevel::error});
    executor.reset();
    executor = std::make_unique<test::WireExecutor>(broker::HelperPool::kByHand);
  }
  Reader reader(data, size);
  open_channel(reader);
  map_segments(reader);
  executor->fake.forget_calls();
  return 0;
}
