// SPDX-License-Identifier: Apache-2.0
// One client's connection: the handshake of proto/handshake.hpp, its requests one at a time, its end by hang-up or by its pidfd.
// Owned by Server; the control process's thread. Nothing from the client is trusted: form is checked here, meaning in SessionManager and
// ImageStore. Anything malformed ends this client and nothing else. While a request is under way nothing more is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "broker/control/base/event_loop.hpp"
#include "broker/control/manager/session_manager.hpp"
#include "broker/control/processes/disposal.hpp"
#include "proto/client_requests.hpp"
#include "proto/handshake.hpp"
#include "proto/socket.hpp"

namespace mpsshim::broker::control {

class ClientConnection {
 public:
  // `on_end` is called once; the connection is to be destroyed after the current callback has returned (EventLoop::defer).
  // `files` closes what it was sent and has no use for. `group`: whose directory it came in by; "": the broker's own.
  ClientConnection(EventLoop& loop, SessionManager& manager, Closer& files, proto::Socket socket, std::string group, std::function<void()> on_end);
  // One that another control process has handed over: what save() wrote. A request for a session that it had under way is made anew.
  ClientConnection(EventLoop& loop, SessionManager& manager, Closer& files, StateReader& state, std::function<void()> on_end);
  void save(StateWriter& state) const;
  [[nodiscard]] bool has_ended() const { return ended_; }
  void resume();  // once the manager has all sessions again
  ClientConnection(const ClientConnection&) = delete;
  ClientConnection& operator=(const ClientConnection&) = delete;
  ~ClientConnection();  // ends the session

  [[nodiscard]] std::uint64_t session() const { return session_; }  // 0: none
  void facts_published();  // answers a Hello that came before any executor was ready
  void refuse_sessions();  // the broker is about to quit
  [[nodiscard]] pid_t pid() const { return client_.pid; }
  [[nodiscard]] uid_t uid() const { return client_.uid; }

  [[nodiscard]] Remains take_remains();

 private:
  enum class Stage { expects_hello, awaits_facts, greeted };

  void on_events(EventLoop::Events events);
  [[nodiscard]] bool is_well_formed(std::span<const std::byte> message, bool carries_fds);
  void dispatch(std::span<const std::byte> message, proto::FileDescriptor fd);
  template <typename Message>
  void serve(std::span<const std::byte> bytes, proto::FileDescriptor fd);
  void refuse_offer(std::span<const std::byte> message, proto::FileDescriptor fd);
  // A message of a client that has no handler here does not compile.
  void on(const proto::Hello& request, proto::FileDescriptor pidfd);
  void on(const proto::ProvisionAsk& request);
  void on(const proto::PartitionAsk& request);
  void on(const proto::DeviceOrderAsk& request);
  void on(const proto::Attach& request);
  void on(const proto::ImageOpen& request);
  void on(const proto::ImageOffer& request);
  template <typename Open>
  void open_image(std::uint64_t size_bytes, Open&& open);
  void on(const proto::ImageSeal& request);
  void on(const proto::MemoryShare& request);
  void on(const proto::MemoryOpen& request);
  void on(const proto::ExternalOffer& request, proto::FileDescriptor descriptor);
  void on(const proto::SegmentCreate& request);
  void on(const proto::SegmentOpen& request);
  void on(const proto::LeaseAdd& request);
  void on(const proto::PeerLease& request);
  void on(const proto::PeerSegment& request);
  void on(const proto::OutputTake& request);
  void on(const proto::TrialEnded& request);
  void on(const proto::LeaseReplace& request);

  [[nodiscard]] CUresult check_identity(const proto::Hello& request, proto::FileDescriptor pidfd);
  void welcome(CUresult status);
  [[nodiscard]] bool has_its_partition(unsigned device) const;
  void attached(CUresult status, ClientSession& session);
  [[nodiscard]] ClientSession* live_session(CUresult& status);

  // A refusal lends nothing.
  template <typename Message>
  void answer(Message message, CUresult status, const proto::LentFds<Message>& fds = {});
  void send(std::span<const std::byte> message, std::span<const int> fds);
  void set_busy(bool busy);
  void malformed(const std::string& what);
  void end(const char* why);

  // An answer that could not be sent yet.
  struct Unsent {
    std::vector<std::byte> message;
    std::vector<proto::FileDescriptor> fds;
    EventLoop::Timer timer;
  };

  EventLoop& loop_;
  SessionManager& manager_;
  Closer& files_;
  proto::Socket socket_;
  proto::ReceivedFds strange_;  // which it has sent in place of its pidfd
  std::optional<Unsent> unsent_;
  const std::function<void()> on_end_;
  proto::PeerCredentials peer_;
  Stage stage_ = Stage::expects_hello;
  bool ended_ = false;
  bool refusing_ = false;
  ClientIdentity client_;
  std::uint64_t session_ = 0;
  std::string group_;                     // whose directory it came in by; "": the broker's own
  proto::ProvisionAsk asked_;             // nothing, if its client has not asked
  proto::PartitionAsk asked_partitions_;  // likewise
  Spread::Place place_;        // nothing, likewise
  bool attaches_ = false;  // handed over with an Attach under way
  proto::FileDescriptor pidfd_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for answers that may come after our end
  EventLoop::Watch socket_watch_;
  EventLoop::Watch death_watch_;
  EventLoop::Timer deadline_;  // for the Hello to come, then for the facts it waits for
};

template <typename Message>
void ClientConnection::answer(Message message, CUresult status, const proto::LentFds<Message>& fds) {
  message.header.status = static_cast<std::uint32_t>(status);
  if (ended_) return;
  proto::LentFds<Message> lent = fds;
  const proto::LentList list = status == CUDA_SUCCESS ? proto::LentList(proto::kRowOf<Message>, lent.list()) : proto::LentList();
  send(std::as_bytes(std::span(&message, 1)), list.in_order());
}

}  // namespace mpsshim::broker::control
