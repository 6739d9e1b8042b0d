// SPDX-License-Identifier: Apache-2.0
#include "broker/control/server/client_connection.hpp"

#include <array>
#include <cstring>

#include <unistd.h>

#include "broker/control/base/complaints.hpp"
#include "broker/control/base/descriptor_kind.hpp"
#include "broker/control/base/process_identity.hpp"
#include "broker/log.hpp"
#include "broker/log_subject.hpp"
#include "proto/device_facts.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::chrono::milliseconds kFactsLimit{50'000};  // a GPU that deals with others' faults may take seconds; clients wait for 60
constexpr std::chrono::milliseconds kHelloLimit{30'000};  // far beyond what a busy machine takes from connect() to the first message
constexpr std::chrono::milliseconds kAnswerAgain{5};
constexpr EventLoop::Events kReading = EPOLLIN | EPOLLRDHUP;
constexpr EventLoop::Events kBusy = EPOLLRDHUP;  // the next request stays in the socket

}  // namespace

ClientConnection::ClientConnection(EventLoop& loop, SessionManager& manager, Closer& files, proto::Socket socket, std::string group,
                                   std::function<void()> on_end)
    : loop_(loop),
      manager_(manager),
      files_(files),
      socket_(std::move(socket)),
      on_end_(std::move(on_end)),
      peer_(socket_.peer()),
      group_(std::move(group)) {
  set_text(asked_.group, group_);  // a library that does not ask is of it as well
  client_ = {.pid = peer_.pid, .uid = peer_.uid, .command = command_of(peer_.pid), .pod = pod_of(peer_.pid)};
  socket_watch_ = loop_.watch(socket_.fd(), kReading, [this](EventLoop::Events events) { on_events(events); });
  deadline_ = loop_.after(kHelloLimit, [this] { end("it said nothing"); });
}

ClientConnection::ClientConnection(EventLoop& loop, SessionManager& manager, Closer& files, StateReader& state, std::function<void()> on_end)
    : loop_(loop), manager_(manager), files_(files), socket_(state.file()), on_end_(std::move(on_end)) {
  peer_ = socket_.peer();
  stage_ = state.number() != 0 ? Stage::greeted : Stage::expects_hello;
  client_.pid = static_cast<pid_t>(state.number());
  client_.uid = static_cast<uid_t>(state.number());
  client_.command = state.text();
  client_.pod = pod_of(client_.pid);
  client_.layout_minor = static_cast<std::uint32_t>(state.number());
  session_ = state.number();
  pidfd_ = state.file();
  attaches_ = state.number() != 0;
  if (state.version() < 10) return;
  asked_.thread_percentage = static_cast<std::uint32_t>(state.number());
  asked_.client_priority = static_cast<std::uint32_t>(state.number());
  if (state.version() >= 11) set_text(asked_.group, state.text());
  if (state.version() < 13) return;
  std::vector<unsigned> order(std::min<std::uint64_t>(state.number(), proto::kMaxDevices));
  for (unsigned& device : order) device = static_cast<unsigned>(state.number());
  if (!order.empty()) place_ = manager_.spread().adopt(client_, std::move(order), session_ == 0);
  if (state.version() < 14) return;
  for (std::uint32_t& partition : asked_partitions_.partition) partition = static_cast<std::uint32_t>(state.number());
  if (state.version() >= 16) group_ = state.text();
}

void ClientConnection::save(StateWriter& state) const {
  const ClientSession* session = manager_.find(session_);
  state.file(socket_.fd());
  state.number(stage_ == Stage::expects_hello ? 0 : 1);
  state.number(static_cast<std::uint64_t>(client_.pid));
  state.number(client_.uid);
  state.text(client_.command);
  state.number(client_.layout_minor);
  state.number(session_);
  state.file(pidfd_);
  state.number(session != nullptr && session->answer ? 1 : 0);
  state.number(asked_.thread_percentage);
  state.number(asked_.client_priority);
  state.text(asked_.group);
  const std::vector<unsigned> order = place_.order();
  state.number(order.size());
  for (const unsigned device : order) state.number(device);
  for (const std::uint32_t partition : asked_partitions_.partition) state.number(partition);
  state.text(group_);
}

void ClientConnection::resume() {
  socket_watch_ = loop_.watch(socket_.fd(), kReading, [this](EventLoop::Events events) { on_events(events); });
  if (pidfd_.valid()) death_watch_ = loop_.watch(pidfd_.get(), EPOLLIN, [this](EventLoop::Events) { end("the client died"); });
  if (stage_ == Stage::expects_hello) deadline_ = loop_.after(kHelloLimit, [this] { end("it said nothing"); });
  const ClientSession* session = manager_.find(session_);
  if (!attaches_ || session == nullptr) return;
  proto::Attach request;
  request.device = session->device;
  on(request);
}

ClientConnection::~ClientConnection() {
  const LogSubject subject(client_.uid);
  if (ClientSession* session = manager_.find(session_)) manager_.end(*session);
}

Remains ClientConnection::take_remains() {
  Remains remains{std::move(socket_), {}};
  for (std::size_t i = 0; i < strange_.count; ++i) remains.strange.push_back(std::move(strange_.fds[i]));
  return remains;
}

void ClientConnection::end(const char* why) {
  if (ended_) return;
  ended_ = true;
  unsent_.reset();
  log_debug("pid {} ({}): connection ended, {}.", client_.pid, client_.command, why);
  socket_watch_.reset();
  death_watch_.reset();
  deadline_.reset();
  on_end_();  // Server::forget_client, at the end of this turn: the destructor ends the session
}

void ClientConnection::malformed(const std::string& what) {
  complain("pid {} ({}): {}; its connection is closed.", client_.pid, client_.command, what);
  end("malformed message");
}

// One answer at a time always has room in the socket, unless the client does not read. But descriptors of all of a user's processes that are in
// sockets are counted together: whoever sends too many of them makes others wait, and ends nobody.
void ClientConnection::send(std::span<const std::byte> message, std::span<const int> fds) {
  const proto::SocketStatus status = socket_.send(message, fds);
  if (status == proto::SocketStatus::ok) {
    unsent_.reset();
    return set_busy(false);
  }
  if (status != proto::SocketStatus::failed || !proto::is_shortage(errno)) return end("it does not take its answers");
  if (!unsent_) {
    complain("pid {} ({}): its answer has to wait ({}): uid {} has as many descriptors in sockets as the limit of open files allows.", client_.pid,
             client_.command, std::strerror(errno), geteuid());
    unsent_.emplace();
    unsent_->message.assign(message.begin(), message.end());
    for (const int fd : fds) unsent_->fds.push_back(proto::duplicate_of(fd));
    set_busy(true);
  }
  unsent_->timer = loop_.after(kAnswerAgain, [this] {
    std::vector<int> again;
    for (const proto::FileDescriptor& fd : unsent_->fds) again.push_back(fd.get());
    send(std::vector(unsent_->message), again);
  });
}

void ClientConnection::set_busy(bool busy) { socket_watch_.set_events(busy ? kBusy : kReading); }

void ClientConnection::on_events(EventLoop::Events events) {
  const LogSubject subject(client_.uid);
  if ((events & EPOLLIN) == 0) return end("the client hung up");
  std::array<std::byte, proto::kMaxMessageBytes> buffer;
  std::size_t bytes = 0;
  bool carries_fds = false;
  switch (socket_.peek(buffer, bytes, carries_fds)) {
    case proto::SocketStatus::ok: break;
    case proto::SocketStatus::would_block: return;
    case proto::SocketStatus::truncated: return malformed("sent a message that is too long");
    case proto::SocketStatus::closed:
    case proto::SocketStatus::failed: return end("the client hung up");
  }
  const std::span message(buffer.data(), bytes);
  if (!is_well_formed(message, carries_fds)) return;
  proto::FileDescriptor fd;
  if (carries_fds) {
    const bool is_hello = stage_ == Stage::expects_hello;
    fd = socket_.peek_fd(strange_);
    if (!fd.valid()) return malformed("sent other descriptors than the one that is due");
    if (is_hello && !is_pidfd(fd)) {
      strange_.fds[strange_.count++] = std::move(fd);
      return dispatch(message, {});  // which refuses it; what it has sent stays in the socket
    }
    if (!is_hello && look_at(fd.get()).kind == DescriptorKind::other) return refuse_offer(message, std::move(fd));
  }
  socket_.drop();
  dispatch(message, std::move(fd));
}

// Whether it is a message that a client may send now. Looked at while it is in the socket still: else its descriptors would have to be closed here.
bool ClientConnection::is_well_formed(std::span<const std::byte> message, bool carries_fds) {
  proto::MessageHeader header;
  bool is_one = message.size() >= sizeof header;
  if (is_one) std::memcpy(&header, message.data(), sizeof header);
  is_one = is_one && header.magic == proto::kMessageMagic;
  if (!is_one) malformed("sent a message that is not of this protocol");
  if (!is_one) return false;
  const proto::MessageRow* const row = proto::find_row(proto::kClientMessages, static_cast<std::uint32_t>(header.type));
  const proto::Misfit misfit = proto::misfit(row, proto::MessageDirection::from_client, message, carries_fds ? 1 : 0);
  if (misfit != proto::Misfit::fits) {
    malformed(fmt::format("sent {} that {}", row != nullptr ? row->name : "a message", proto::words_for(misfit)));
    return false;
  }
  const bool has_its_turn = (stage_ == Stage::expects_hello) == (header.type == proto::MessageType::hello);
  if (!has_its_turn) malformed("sent its messages in a wrong order");
  return has_its_turn;
}

// Nothing else is read before it is closed: so many files of one process make the closer wait.
void ClientConnection::refuse_offer(std::span<const std::byte> message, proto::FileDescriptor fd) {
  socket_.drop();
  dispatch(message, {});
  if (ended_) {
    strange_.fds[strange_.count++] = std::move(fd);
    return;
  }
  set_busy(true);
  std::vector<proto::FileDescriptor> files;
  files.push_back(std::move(fd));
  files_.close(std::move(files), [this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired() && !ended_) set_busy(false);
  });
}

// What is_well_formed() has let through.
void ClientConnection::dispatch(std::span<const std::byte> message, proto::FileDescriptor fd) {
  proto::MessageHeader header;
  std::memcpy(&header, message.data(), sizeof header);
  switch (header.type) {
#define MPSSHIM_FROM_CLIENT(enumerator, Structure) \
  case proto::MessageType::enumerator: return serve<proto::Structure>(message, std::move(fd));
#define MPSSHIM_TO_CLIENT(enumerator, Structure) \
  case proto::MessageType::enumerator: return;
#include "gen/message_names.inc"
  }
}

template <typename Message>
void ClientConnection::serve(std::span<const std::byte> bytes, proto::FileDescriptor fd) {
  Message message;
  std::memcpy(&message, bytes.data(), sizeof message);
  if constexpr (proto::kDescriptors<Message> != 0) {
    on(message, std::move(fd));
  } else {
    on(message);
  }
}

CUresult ClientConnection::check_identity(const proto::Hello& request, proto::FileDescriptor pidfd) {
  if (peer_.uid != geteuid() && !manager_.limits().serves_all_users) {
    complain("pid {} ({}) of uid {} is refused: this broker serves uid {} alone; start one for that user, or this one with --multiuser-server.",
             client_.pid, client_.command, peer_.uid, geteuid());
    return CUDA_ERROR_MPS_CONNECTION_FAILED;
  }
  const proto::Version version{request.layout_major, request.layout_minor};
  const proto::Agreement agreement = proto::agree(proto::kVersion, version);
  if (agreement != proto::Agreement::served) {
    complain("pid {} ({}) is refused: its libmpsshim.so speaks protocol {}.{}, which is too {} for this broker's {}.{}; {}.", client_.pid,
             client_.command, version.major, version.minor, agreement == proto::Agreement::too_old ? "old" : "new", proto::kLayoutMajor,
             proto::kLayoutMinor,
             agreement == proto::Agreement::too_old ? "install the library of this release" : "install the newer mpsbroker and run `mpsctl restart`");
    return CUDA_ERROR_MPS_CONNECTION_FAILED;
  }
  client_.layout_minor = version.minor;
  const bool has_sent_one = pidfd.valid() || strange_.count != 0;
  pidfd_ = has_sent_one ? std::move(pidfd) : open_pidfd(peer_.pid);
  const pid_t pid = pid_of(pidfd_);
  // 0 or less: of a pid namespace we do not see; then the kernel's word for the socket stands alone.
  if (pid == kNotAPidfd || (pid > 0 && peer_.pid > 0 && pid != peer_.pid)) {
    complain("pid {} ({}) is refused: it sent no pidfd of its own process.", client_.pid, client_.command);
    return CUDA_ERROR_MPS_CONNECTION_FAILED;
  }
  return CUDA_SUCCESS;
}

void ClientConnection::on(const proto::Hello& request, proto::FileDescriptor pidfd) {
  if (const CUresult status = check_identity(request, std::move(pidfd)); status != CUDA_SUCCESS) {
    welcome(status);
    return end("refused");
  }
  // A forked child keeps the socket open; the pidfd tells the death of the process itself.
  death_watch_ = loop_.watch(pidfd_.get(), EPOLLIN, [this](EventLoop::Events) { end("the client died"); });
  log_debug("pid {} ({}): says hello, layout {}.{}, protocol {:016x}.", client_.pid, client_.command, request.layout_major, request.layout_minor,
            request.protocol_hash);
  if (manager_.facts_file() >= 0) return welcome(CUDA_SUCCESS);
  stage_ = Stage::awaits_facts;
  set_busy(true);
  deadline_ = loop_.after(kFactsLimit, [this] {
    log_warning("pid {} ({}): no executor was ready within {} s.", client_.pid, client_.command, kFactsLimit.count() / 1000);
    welcome(CUDA_ERROR_MPS_SERVER_NOT_READY);
    end("no executor");
  });
}

void ClientConnection::welcome(CUresult status) {
  stage_ = Stage::greeted;
  deadline_.reset();
  proto::Welcome message;
  if (status == CUDA_SUCCESS) message.layout_minor = client_.layout_minor;
  answer(message, status, {.facts = manager_.facts_file()});
}

void ClientConnection::facts_published() {
  if (stage_ == Stage::awaits_facts) welcome(CUDA_SUCCESS);
}

void ClientConnection::refuse_sessions() { refusing_ = true; }

void ClientConnection::on(const proto::Attach& request) {
  if (refusing_) return answer(proto::Attached{}, CUDA_ERROR_MPS_SERVER_NOT_READY);
  ClientSession* session = manager_.find(session_);
  if (session == nullptr) {
    if (!has_its_partition(request.device)) return answer(proto::Attached{}, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    if (!client_.program) client_.program = manager_.faults().programs().identify(client_.pid, client_.uid, pidfd_);
    const CUresult status = manager_.create(client_, request.device, session);
    if (status != CUDA_SUCCESS) return answer(proto::Attached{}, status);
    session_ = session->id;
    place_.has_session();
    session->asked_memory_limit_bytes = std::uint64_t{request.memory_limit_mib} << 20;
    session->asked_thread_percentage = asked_.thread_percentage;
    session->name_space = asked_.group;
    if (manager_.limits().has_static_partitions) session->sm_partition = asked_partitions_.partition[request.device];
    if (asked_.client_priority != 0) session->asked_client_priority = asked_.client_priority - 1;
    if (const std::string names = unenforced_variables_of(client_.pid); !names.empty()) {
      complain("{}: {} set and without effect: this broker does not enforce that yet.", session->name(),
               names + (names.find(',') == std::string::npos ? " is" : " are"));
    }
  } else if (session->device != request.device) {
    complain("{}: asks for device {} besides device {}; a process has one device so far.", session->name(), request.device, session->device);
    return answer(proto::Attached{}, CUDA_ERROR_NOT_SUPPORTED);
  }
  set_busy(true);
  manager_.attach(*session, [this](CUresult status, ClientSession& answered) { attached(status, answered); });
}

void ClientConnection::attached(CUresult status, ClientSession& session) {
  proto::Attached message;
  message.session = session.id;
  message.epoch = session.epoch;
  message.device_lease = session.device_lease;
  message.pinned_lease = session.pinned_lease;
  message.thread_percentage = manager_.terms_of(session).told_percentage();
  message.lost = static_cast<std::uint32_t>(session.lost_error);
  if (status != CUDA_SUCCESS || message.lost != 0) return answer(message, status);
  answer(message, status, session.channel->lent());
}

}  // namespace mpsshim::broker::control
