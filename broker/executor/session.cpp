// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/session.hpp"

#include <utility>

#include "broker/executor/helper_pool.hpp"
#include "broker/executor/quiet_window.hpp"
#include "broker/executor/worker.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::size_t kMaxQueuedRecords = 4'096;
constexpr std::size_t kMaxQueuedBytes = 4u << 20;
constexpr std::size_t kMaxUnderWay = 1'024;  // jobs elsewhere and acts that wait

}  // namespace

Session::Session(ExecutorParts& parts, const ExecutorPacket& packet)
    : parts_(parts),
      id_(packet.header.session),
      client_pid_(packet.client_pid),
      context_{parts, channel_, id_},
      memory_(parts.driver, parts.control, parts.device, id_, packet.device_lease, packet.pinned_lease),
      streams_(context_) {}

Session::~Session() = default;

std::shared_ptr<Session> Session::open(ExecutorParts& parts, const ExecutorPacket& packet, proto::ReceivedFds& fds, CUresult& result) {
  const std::shared_ptr<Session> session(new Session(parts, packet));
  result = session->channel_.open(parts.driver, packet, fds);
  if (result == CUDA_SUCCESS) result = session->memory_.open();
  if (result == CUDA_SUCCESS) result = session->streams_.open();
  if (result == CUDA_SUCCESS) return session;
  parts.faults.check(result, session->id_, "opening a session");
  discard(session);
  return nullptr;
}

void Session::discard(const std::shared_ptr<Session>& session) {
  session->streams_.retire_all();
  (void)session->streams_.reap();  // never used, so all of them are idle
  session->parts_.window.submit(
      {"taking down a session that was not opened", session->id_, true, [session](WindowResult) { session->release_everything(); }});
}

void Session::set_worker(Worker* worker) {
  worker_ = worker;
  parts_.completion.add(id_, channel_);
}

bool Session::may_read() const {
  const QueuedTotal& queued = streams_.queued();
  // A GPU that does not get on may have met a fault: an idle session keeps its records in the ring, from where they move with it.
  if (parts_.engine_stalled.load(std::memory_order_relaxed) && streams_.is_idle()) return false;
  return is_reading() && queued.records < kMaxQueuedRecords && queued.bytes < kMaxQueuedBytes && waiting_.size() + jobs_ < kMaxUnderWay;
}

void Session::fail(const char* record, const std::string& reason) {
  if (std::exchange(failed_, true)) return;
  log_error("Session {} (pid {}): {} is malformed: {}. The session ends; its client gets CUDA_ERROR_MPS_RPC_FAILURE. Other sessions go on", id_,
            client_pid_, record, reason);
  channel_.set_failed(CUDA_ERROR_MPS_RPC_FAILURE);
  streams_.drop_queued();
}

bool Session::poll_waiting() {
  if (waiting_.empty() || failed_) return false;
  std::vector<Waiting> waiting = std::exchange(waiting_, {});
  std::vector<Waiting> left;
  for (Waiting& entry : waiting) {
    if (entry.completed ? StreamSet::has_completed(entry.mark) : StreamSet::has_issued(entry.mark)) {
      entry.act();
    } else {
      left.push_back(std::move(entry));
    }
  }
  for (Waiting& entry : waiting_) left.push_back(std::move(entry));  // what the acts have added
  waiting_ = std::move(left);
  return !waiting_.empty();
}

void Session::start_job(std::function<void(const std::shared_ptr<Session>&)> job) {
  ++jobs_;
  parts_.helpers.submit([self = shared_from_this(), job = std::move(job)] { job(self); });
}

void Session::start_window_job(const char* what, std::function<void()> job) {
  ++jobs_;
  parts_.window.submit({what, id_, true, [self = shared_from_this(), job = std::move(job)](WindowResult) {
                          job();
                          self->finish_job();
                        }});
}

void Session::finish_job(std::function<void()> act) {
  run_on_worker([self = shared_from_this(), act = std::move(act)] {
    if (act) act();
    --self->jobs_;
  });
}

void Session::launch_in_window(const std::shared_ptr<StreamQueue>& queue) {
  ++jobs_;
  const std::shared_ptr<LaunchOp> launch = queue->take_window_launch();
  parts_.window.submit({"a launch that needs more local memory", id_, false, [self = shared_from_this(), queue, launch](WindowResult window) {
                          if (window == WindowResult::open) {
                            queue->launch_in_window(*launch);
                          } else {
                            self->channel_.set_async_error(CUDA_ERROR_MPS_SERVER_NOT_READY);
                          }
                          self->finish_job([queue] { queue->window_launch_done(); });
                        }, true});
}

void Session::run_on_worker(std::function<void()> act) { worker_->post(std::move(act)); }

void Session::begin_close(std::function<void()> closed) {
  closing_ = true;
  closed_ = std::move(closed);
  streams_.drop_queued();
  streams_.retire_all();
}

bool Session::advance_close() {
  if (handed_over_) return true;
  if (streams_.reap() || jobs_ > 0) return false;
  handed_over_ = true;
  waiting_.clear();  // what they would release goes with everything else
  parts_.window.submit({"taking down a session", id_, true, [self = shared_from_this()](WindowResult) { self->release_everything(); }});
  return true;
}

// In a quiet window: nothing of the session is in flight, and no worker has it.
void Session::release_everything() {
  parts_.completion.remove(id_);
  channel_.unregister(parts_.driver);
  memory_.release_all();
  std::vector<proto::ModuleId> modules;
  modules_.for_each([&](proto::ModuleId id, SessionModule&) { modules.push_back(id); });
  for (const proto::ModuleId id : modules) (void)modules_.take(id);  // the store unloads what nobody else has
  if (closed_) std::exchange(closed_, nullptr)();
}

}  // namespace mpsshim::broker
