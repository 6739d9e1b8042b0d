// SPDX-License-Identifier: Apache-2.0
// executor_main for tests of the control process with real processes: opens and closes sessions, has no driver. The name of the "driver" says
// how it behaves:
//   serve    is ready at once              refuse   is ready with CUDA_ERROR_NO_DEVICE
//   busy     as serve; each session counts as having work in flight        crash    dies by a signal before it is ready
//   stubborn as serve, but does not end on Quit          narrow   refuses unless it has 3 connections, and 2 for copies
#include <csignal>
#include <cstdlib>
#include <array>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/personality.h>
#include <unistd.h>

#include "broker/control_messages.hpp"
#include "broker/executor/process/executor_main.hpp"
#include "broker/linker/linker_main.hpp"
#include "broker/progress_table.hpp"
#include "proto/device_facts.hpp"
#include "proto/socket.hpp"

namespace mpsshim::broker {

namespace {

// What the control process promises its executor; a broken promise is reported as a refusal, so that tests see it.
std::string broken_promise(const ExecutorOptions& options) {
  const int persona = personality(0xffffffff);
  if (persona < 0 || (persona & ADDR_NO_RANDOMIZE) == 0) return "address randomisation is on";
  if (std::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr || std::getenv("LD_PRELOAD") != nullptr) return "the environment is the client's";
  const auto is_number = [](const char* name, unsigned number) {
    const char* value = std::getenv(name);
    return value != nullptr && value == std::to_string(number);
  };
  if (!is_number("CUDA_DEVICE_MAX_CONNECTIONS", options.connections)) return "CUDA_DEVICE_MAX_CONNECTIONS is not what the command line says";
  if (!is_number("CUDA_DEVICE_MAX_COPY_CONNECTIONS", options.copy_connections))
    return "CUDA_DEVICE_MAX_COPY_CONNECTIONS is not what the command line says";
  for (int fd = kExecutorCountsFd + 1; fd < 1024; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) return "descriptor " + std::to_string(fd) + " is open";
  }
  return "";
}

}  // namespace

int linker_main(const LinkerOptions&) { return 5; }

int executor_main(const ExecutorOptions& options) {
  const std::string behaviour = options.driver_path.substr(options.driver_path.rfind('/') + 1);
  if (behaviour == "crash") std::raise(SIGKILL);
  const proto::Socket link{proto::FileDescriptor(kExecutorControlFd)};
  const proto::FileDescriptor progress(kExecutorProgressFd);
  const auto table = proto::Mapping::map(progress, 0, sizeof(ProgressTable), proto::Access::read_write);

  static proto::DriverFacts facts{};
  facts.size_bytes = sizeof facts;
  facts.device_count = 1;
  facts.device[0].total_memory_bytes = 1ull << 30;
  std::strcpy(facts.device[0].name, "Test device");
  if (pwrite(kExecutorFactsFd, &facts, sizeof facts, 0) != static_cast<ssize_t>(sizeof facts)) return 3;

  message::Ready ready;
  const std::string broken = broken_promise(options);
  const bool is_narrow = options.connections == 3 && options.copy_connections == 2;
  if (behaviour == "refuse" || (behaviour == "narrow" && !is_narrow) || !broken.empty()) ready.status = 100;
  set_text(ready.text, broken);
  const auto send = [&](const OutgoingMessage& message) { return link.send(message.bytes(), message.fds()) == proto::SocketStatus::ok; };
  if (!send(ready)) return 4;

  std::array<std::byte, kMaxExecutorPacketBytes> packet;
  std::size_t bytes = 0;
  proto::ReceivedFds fds;
  while (link.receive(packet, bytes, fds) == proto::SocketStatus::ok) {
    ReceivedMessage received;
    if (received.assign(std::span(packet).first(bytes), fds, proto::MessageDirection::to_executor) != proto::Misfit::fits) return 6;
    if (received.is<message::Quit>() && behaviour != "stubborn") return 0;
    if (received.is<message::SessionOpen>()) {
      auto& row = reinterpret_cast<ProgressTable*>(table.data())->stream[received.session()];
      row.session = received.session();
      row.issued = behaviour == "busy" ? 1 : 0;
      if (!send(message::SessionOpened{.session = received.session()})) return 5;
    } else if (received.is<message::SessionClose>() && behaviour != "busy") {
      if (!send(message::SessionClosed{.session = received.session()})) return 5;
    }
  }
  return 0;
}

}  // namespace mpsshim::broker
