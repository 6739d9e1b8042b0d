// SPDX-License-Identifier: Apache-2.0
// The control process on hostile connections: the input is what a client's socket brings, message after message, each whole or not, with
// descriptors or without; several clients at a time. An input is a row of steps:
//   u8 action   bits 0-1: which of four connections; bits 2-4: descriptors that go with it (0-2 of the right kind, 3: a pidfd of another
//               process, 4: a closed pipe, 6: a memory file, 5, 7: none); bit 7: that connection hangs up instead
//   u16 length, then as many bytes: the message; behind a hang-up a packet on the link between control process and an executor, in the direction
//               of bit 5, with as many descriptors as bits 2-4 say
// Whatever comes, what the executor is told must hold together (control_stage.cpp), and when all have hung up nothing of them is left.
#include <array>
#include <cstring>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "broker/executor_message.hpp"
#include "proto/client_requests.hpp"
#include "proto/ids.hpp"
#include "tests/fuzz/support/control_stage.hpp"
#include "tests/fuzz/support/fuzz_target.hpp"

using namespace mpsshim;
using namespace mpsshim::fuzz;

namespace {

constexpr std::size_t kConnections = 4;
constexpr std::size_t kLongestMessage = 5000;  // beyond what the protocol allows

std::unique_ptr<ControlStage> stage;
std::uint64_t records = 0;

struct Descriptors {
  proto::FileDescriptor self{static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))};
  proto::FileDescriptor parent{static_cast<int>(syscall(SYS_pidfd_open, getppid(), 0))};
  proto::FileDescriptor null{open("/dev/null", O_RDONLY | O_CLOEXEC)};
  proto::FileDescriptor memory = proto::create_memory_file("fuzz", 1u << 20);
};

std::vector<int> descriptors_for(unsigned kind, const Descriptors& known) {
  switch (kind) {
    case 1: return {known.self.get()};
    case 2: return {known.self.get(), known.self.get()};
    case 3: return {known.parent.get()};
    case 4: return {known.null.get()};
    case 6: return {known.memory.get()};
    default: return {};
  }
}

class Client {
 public:
  void send(std::span<const std::byte> message, std::span<const int> fds) {
    if (!socket_.valid() || socket_.peer_has_hung_up()) socket_ = stage->connect();
    ++records;
    (void)socket_.send(message, fds);
    stage->settle();
    read_answers();
  }
  void hang_up() { socket_.reset(); }

 private:
  // What was answered is not looked at, but memory files are used as a client would: filled, and sometimes not let go.
  void read_answers() {
    std::array<std::byte, proto::kMaxMessageBytes> buffer;
    std::size_t bytes = 0;
    proto::ReceivedFds fds;
    while (socket_.receive(buffer, bytes, fds) == proto::SocketStatus::ok) {
      for (std::size_t i = 0; i < fds.count; ++i) {
        if (pwrite(fds.fds[i].get(), "text", 4, 0) < 0) continue;  // sealed
      }
    }
  }
  proto::Socket socket_;
};

// Only what has the form of its row may fit.
void hold_against_row(std::span<const std::byte> packet, std::size_t count, proto::MessageDirection direction) {
  proto::ReceivedFds fds;
  for (; fds.count < count; ++fds.count) fds.fds[fds.count] = proto::duplicate_of(STDERR_FILENO);
  broker::ReceivedMessage received;
  if (received.assign(packet, fds, direction) != proto::Misfit::fits) return;
  ++records;
  const proto::MessageRow* const row = proto::find_row(broker::kExecutorMessages, static_cast<std::uint32_t>(received.id()));
  require(row != nullptr && row->direction == direction, "a message fits that goes the other way");
  require(packet.size() == sizeof(broker::ExecutorHeader) + row->size_bytes, "a message fits that has another size");
  require(count >= row->least_descriptors && count <= row->most_descriptors, "a message fits that has other descriptors");
  if (received.is<broker::message::ModuleNote>()) require(is_known(received.read<broker::message::ModuleNote>().kind), "a log's entry has no kind");
  if (received.is<broker::message::SegmentAdd>()) require(is_known(received.read<broker::message::SegmentAdd>().purpose), "a segment has no purpose");
}

// As it should be, or nearly.
void add_packet(Input& input, Random& random) {
  const proto::MessageRow& row = broker::kExecutorMessages[random() % std::size(broker::kExecutorMessages)];
  const unsigned direction = (row.direction == proto::MessageDirection::to_executor) != (random() % 16 == 0) ? 1 : 0;
  const std::size_t count = random() % 8 == 0 ? random() % 8 : row.most_descriptors;
  const std::size_t bytes = sizeof(broker::ExecutorHeader) + row.size_bytes + (random() % 16 == 0 ? random() % 9 : 0);
  input.push_back(static_cast<std::uint8_t>(0x80 | direction << 5 | (count % 8) << 2));
  append(input, static_cast<std::uint16_t>(bytes));
  append(input, broker::ExecutorHeader{static_cast<broker::ExecutorMessage>(row.id)});
  for (std::size_t i = sizeof(broker::ExecutorHeader); i < bytes; ++i) {
    input.push_back(static_cast<std::uint8_t>(random() % 4 == 0 ? random() % 6 : 0));
  }
}

template <typename Message>
void add_step(Input& input, unsigned connection, unsigned descriptors, const Message& message) {
  input.push_back(static_cast<std::uint8_t>(connection | descriptors << 2));
  append(input, static_cast<std::uint16_t>(sizeof message));
  append(input, message);
}

// Often the same, of the first sessions.
std::uint64_t pinned_address(Random& random) { return 0x4000'0000'0000 + (random() % 2 == 0 ? random() % 4 : random() % (1ull << 21)) * 4096; }

}  // namespace

namespace mpsshim::fuzz {

Input make_input(Random& random) {
  Input input;
  const auto connection = [&] { return static_cast<unsigned>(random() % kConnections); };
  const auto size = [&] { return random() % 3 == 0 ? random() : random() % (1u << 20); };
  for (unsigned i = 0; i < kConnections; ++i) {
    add_step(input, i, random() % 4 == 0 ? 5 : 1, proto::Hello{});
    if (random() % 8 != 0) add_step(input, i, 0, proto::Attach{.device = static_cast<std::uint32_t>(random() % 16 == 0)});
  }
  for (std::uint64_t steps = random() % 64; steps > 0; --steps) {
    switch (random() % 14) {
      case 0: add_step(input, connection(), 0, proto::Attach{.device = static_cast<std::uint32_t>(random() % 3)}); break;
      case 1: add_step(input, connection(), 0, proto::ImageOpen{.size_bytes = size()}); break;
      case 2: {
        proto::ImageOffer offer{.size_bytes = size()};
        std::memset(&offer.digest, static_cast<int>(random() % 2), sizeof offer.digest);
        add_step(input, connection(), 0, offer);
        break;
      }
      // Ids are random; a client's own is found only in its answer, so most of these name nothing.
      case 3: add_step(input, connection(), 0, proto::ImageSeal{.image = random() % 64}); break;
      case 4:
      case 5: {
        proto::SegmentCreate segment{.purpose = static_cast<proto::SegmentPurpose>(random() % 4), .size_bytes = size() / 4096 * 4096};
        if (random() % 2 == 0) segment.address = pinned_address(random);
        add_step(input, connection(), 0, segment);
        break;
      }
      case 6: add_step(input, connection(), 0, proto::LeaseAdd{.size_bytes = size()}); break;
      case 7: add_step(input, connection(), 0, proto::LeaseReplace{.refused = {0x2000'0000'0000 + random() % 4 * (2ull << 20), 0}}); break;
      case 8:
        input.push_back(static_cast<std::uint8_t>(0x80 | connection()));
        append(input, std::uint16_t{0});
        break;
      case 9: {
        proto::ExternalOffer offer{.size_bytes = size(), .handle_type = static_cast<std::uint32_t>(random() % 16 == 0 ? 9 : 1)};
        offer.memory = proto::ExternalMemoryId::make(static_cast<std::uint32_t>(random() % 256), 1).value;
        add_step(input, connection(), random() % 8 == 0 ? 4 : 6, offer);
        break;
      }
      case 10: add_packet(input, random); break;
      // Of the first sessions, of nobody, and beside.
      case 11:
        add_step(input, connection(), 0, proto::PeerLease{.address = 0x2000'0000'0000 + random() % 8 * (64ull << 30) + random() % (8u << 20)});
        break;
      case 12:
        if (random() % 4 == 0) add_step(input, connection(), 0, proto::DeviceOrderAsk{});
        add_step(input, connection(), 0, proto::PeerSegment{.address = pinned_address(random)});
        break;
      default:
        add_step(input, connection(), static_cast<unsigned>(random() % 8), proto::Hello{.layout_major = static_cast<std::uint32_t>(random() % 3)});
    }
  }
  return input;
}

std::uint64_t records_so_far() { return records; }
void finish() { stage.reset(); }

}  // namespace mpsshim::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Descriptors known;
  if (!stage) stage = std::make_unique<ControlStage>();
  {
    std::array<Client, kConnections> clients;
    Reader reader(data, size);
    while (!reader.empty()) {
      const std::uint8_t action = reader.byte();
      std::size_t length = reader.word() % kLongestMessage;
      const std::uint8_t* bytes = reader.take(length);
      Client& client = clients[action & 3];
      if ((action & 0x80) != 0) {
        client.hang_up();
        stage->settle();
        const auto direction = (action & 0x20) != 0 ? proto::MessageDirection::to_executor : proto::MessageDirection::from_executor;
        if (length != 0) hold_against_row(std::as_bytes(std::span(bytes, length)), action >> 2 & 7, direction);
        continue;
      }
      client.send(std::as_bytes(std::span(bytes, length)), descriptors_for(action >> 2 & 7, known));
    }
  }
  stage->await_end();
  return 0;
}
