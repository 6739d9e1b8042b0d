// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/worker.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include "broker/executor/dispatch.hpp"
#include "broker/executor/session.hpp"
#include "broker/executor/worker_set.hpp"
#include "broker/log.hpp"
#include "proto/futex.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::size_t kQuantumBytes = 64 * 1024;
static_assert(kQuantumBytes >= proto::kMaxRecordBytes);
constexpr unsigned kDryVisits = 4;  // visits without work after which progress is written
constexpr std::chrono::microseconds kShortestIdlePause{20};
constexpr std::chrono::microseconds kLongestIdlePause{1'000};
constexpr std::chrono::microseconds kLongestPauseForCredit{100};  // a full stream's work lasts some hundred microseconds at least
constexpr std::chrono::milliseconds kRebalanceInterval{5};
constexpr unsigned kTurnsBetweenLooks = 16;  // at the clock, for the interval
constexpr std::chrono::microseconds kIdleSleepLimit{1'000'000};

// How long a worker without work spins before it sleeps: a spinning worker must not take the core from the client it waits for.
std::chrono::microseconds spin_time() {
  const unsigned cores = std::thread::hardware_concurrency();
  if (cores >= 8) return std::chrono::microseconds(50);
  if (cores >= 4) return std::chrono::microseconds(20);
  return std::chrono::microseconds(4);
}

bool watch(const proto::FileDescriptor& epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;  // edges only: nobody ever reads the counter, so a client cannot make a read block or fail
  return epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

Worker::Worker(ExecutorParts& parts, WorkerSet& set, unsigned index, bool has_thread)
    : parts_(parts),
      set_(set),
      index_(index),
      gate_(parts.window.gate(index)),
      spin_(spin_time()),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      batch_(2 * kQuantumBytes),
      scattering_(index + 1) {
  if (!watch(epoll_, wake_event_.get())) log_error("Worker {} cannot watch its own wake event: errno {}", index, errno);
  if (!has_thread) return;
  thread_ = std::thread([this, index] {
    pthread_setname_np(pthread_self(), ("worker-" + std::to_string(index)).c_str());
    loop();
  });
}

Worker::~Worker() {
  stopping_.store(true, std::memory_order_relaxed);
  wake();
  if (thread_.joinable()) thread_.join();
}

void Worker::wake() const { eventfd_write(wake_event_.get(), 1); }

// Woken under the lock: once it has dealt with the mail, nobody who posted it touches this worker.
void Worker::post(std::function<void()> act) {
  const std::lock_guard lock(mutex_);
  mailbox_.push_back(std::move(act));
  has_mail_.store(true, std::memory_order_release);
  wake();
}

void Worker::add(std::shared_ptr<Session> session) {
  load_.fetch_add(1, std::memory_order_relaxed);
  session->set_worker(this);  // mail for it comes here from now on, behind this
  post([this, session = std::move(session)] { start_watching(session); });
}

void Worker::start_watching(const std::shared_ptr<Session>& session) {
  sessions_.push_back(session);
  if (!watch(epoll_, session->channel().ring_doorbell())) {
    log_error("Session {}: its doorbell cannot be watched (errno {}); its records wait up to a second", session->id(), errno);
  }
}

void Worker::run_mailbox() {
  if (!has_mail_.load(std::memory_order_acquire)) return;
  std::vector<std::function<void()>> mail;
  {
    std::lock_guard lock(mutex_);
    mail.swap(mailbox_);
    has_mail_.store(false, std::memory_order_relaxed);
  }
  for (const std::function<void()>& act : mail) act();
}

void Worker::turn() {
  run_mailbox();
  (void)visit_all();
}

void Worker::loop() {
  if (has_spare_cores()) prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  parts_.driver->cuCtxSetCurrent(parts_.context);
  Clock::time_point idle_since{};
  while (!stopping_.load(std::memory_order_relaxed)) {
    run_mailbox();
    Visit visit = visit_all();
    if (++turns_ % kTurnsBetweenLooks == 0) rebalance();
    if (visit.worked) {
      idle_since = {};
      pause_ = kShortestIdlePause;
      continue;
    }
    const Clock::time_point now = Clock::now();
    if (idle_since == Clock::time_point{}) idle_since = now;
    if (now - idle_since < spin_) {
      proto::cpu_relax();
      continue;
    }
    for (const std::shared_ptr<Session>& session : sessions_) session->streams().write_progress();
    if (prepare_sleep(visit)) sleep(visit, now - idle_since);
  }
}

Worker::Visit Worker::visit_all() {
  Visit all;
  for (std::size_t i = 0; i < sessions_.size();) {
    if (i + 1 < sessions_.size()) sessions_[i + 1]->channel().ring().prefetch();
    const std::shared_ptr<Session>& session = sessions_[i];
    const Visit one = visit(*session);
    all.worked |= one.worked;
    all.polls |= one.polls;
    all.lacks_credit |= one.lacks_credit;
    all.awaits_fences |= one.awaits_fences;
    if (session->is_closing() && session->advance_close()) {
      drop(i);
      continue;
    }
    ++i;
  }
  return all;
}

Worker::Visit Worker::visit(Session& session) {
  Visit visit;
  visit.worked = read_ring(session);
  issue(session, visit);
  StreamSet& streams = session.streams();
  visit.awaits_fences = !streams.settle_fences();
  if (streams.queued().records == 0) streams.set_held(false);
  session.dry_visits = visit.worked ? 0 : session.dry_visits + 1;
  // A window that is wanted waits for progress, of streams beside those that still have work as well.
  if (session.dry_visits == kDryVisits || parts_.window.is_pending() || session.is_closing()) streams.write_progress();
  if (session.channel().has_long_wait()) [[unlikely]]
    await_interrupt(session);
  if (streams.reap()) visit.polls = true;
  if (session.poll_output()) visit.polls = visit.lacks_credit = true;
  if (session.poll_waiting() || session.is_closing()) visit.polls = true;
  if (session.poll_rest()) visit.polls = true;
  return visit;
}

bool Worker::read_ring(Session& session) {
  if (!session.may_read() || !session.channel().ring().has_records()) return false;
  if (session.home().has_streams_to_move()) [[unlikely]]
    session.home().move_streams();
  session.streams().set_held(true);  // before the ring gives the room back
  // What came meanwhile belongs to it more often than not: the fence behind a launch.
  for (std::size_t used = 0; used <= kQuantumBytes && session.may_read() && session.channel().ring().has_records();) {
    const proto::RingConsumer::Batch batch = session.channel().ring().copy_out(std::span(batch_).subspan(used, kQuantumBytes));
    const proto::trace::Span span("ring", "records", {"session", session.id()}, {"bytes", batch.bytes});
    const ScopedMark mark(session.id(), "serving records");
    dispatch_batch(session, std::span<const std::byte>(batch_.data() + used, batch.bytes));
    if (batch.fault != proto::RingFault::none) session.fail("the ring", proto::to_string(batch.fault));
    used += batch.bytes;
    if (batch.bytes == 0) break;
  }
  return true;
}

void Worker::issue(Session& session, Visit& visit) {
  StreamSet& streams = session.streams();
  if (streams.queued().records == 0) return;
  if (!gate_.enter()) {
    // A window is closing. It waits for the progress of what was issued; everything else waits for it.
    streams.write_progress();
    streams.own_borrowed();
    visit.polls = true;
    return;
  }
  StreamSet::Issue issued;
  {
    const ScopedMark mark(session.id(), "issuing work");
    issued = streams.issue();
  }
  gate_.leave();
  streams.own_borrowed();
  if (issued.needs_window) session.launch_in_window(issued.needs_window);
  visit.worked |= issued.any;
  visit.polls |= issued.waits_for_gpu;
  visit.lacks_credit |= issued.lacks_credit;
}

// While a window closes it is asked again.
void Worker::await_interrupt(Session& session) {
  if (!gate_.enter()) return;
  const StreamQueue* const queue = session.streams().find_busy(session.channel().take_long_wait());
  if (queue != nullptr && !queue->is_in_green()) {
    const ScopedMark mark(session.id(), "cuEventRecord");
    parts_.faults.check(parts_.interrupts.ask(session.id(), queue->handle()), session.id(), "cuEventRecord");
  }
  gate_.leave();
}

// False if a record came meanwhile. A session whose ring is not read for the moment keeps the worker polling, not awake.
bool Worker::prepare_sleep(Visit& visit) {
  for (const std::shared_ptr<Session>& session : sessions_) {
    if (session->may_read()) {
      if (!session->channel().ring().prepare_sleep()) return false;
    } else if (session->is_reading()) {
      visit.polls = true;  // nobody rings for it
    }
  }
  return !has_mail_.load(std::memory_order_acquire);
}

// Sessions whose pace of late says so go to another worker.
void Worker::rebalance() {
  const Clock::time_point now = Clock::now();
  const Clock::duration since = now - rebalanced_.load(std::memory_order_relaxed);
  if (parts_.stress.move_ms != 0) {
    if (since < std::chrono::milliseconds(parts_.stress.move_ms)) return;
    rebalanced_.store(now, std::memory_order_relaxed);
    return scatter();
  }
  if (since < kRebalanceInterval) return;
  const auto elapsed_ms = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(since).count());
  rebalanced_.store(now, std::memory_order_relaxed);
  std::size_t waiting = 0;
  std::shared_ptr<Session> last;
  for (std::size_t i = 0; i < sessions_.size();) {
    const std::shared_ptr<Session> session = sessions_[i];
    const StreamSet::Pace done = session->take_pace();
    const bool waits = waits_often(done, elapsed_ms);
    session->home().note_waiting(waits, now);
    const bool is_at_home = session->home().worker() == index_;
    const Placement place = placement(done, elapsed_ms, is_at_home);
    if (place == Placement::stay || session->is_closing() || !set_.move(session, place)) {
      waiting += is_at_home && session->home().has_waited(now) ? 1 : 0;
      if (is_at_home && waits && session->home().may_change(now)) last = session;
      ++i;
      continue;
    }
    drop(i);
  }
  waiting_.store(waiting, std::memory_order_relaxed);
  if (last) find_better_home(last, waiting);
}

// For tests: half of the sessions get another home, or another worker, or both.
void Worker::scatter() {
  for (std::size_t i = sessions_.size(); i-- > 0;) {
    const std::shared_ptr<Session> session = sessions_[i];
    if (scattering_() / 2 % 2 == 0 || session->is_closing()) continue;
    if (session->home().has_few_streams()) session->home().change_to(static_cast<unsigned>(scattering_() / 2 % (parts_.sides.count() + 1)));
    const unsigned worker = scattering_() / 2 % 2 == 0 ? session->home().worker() : static_cast<unsigned>(scattering_() / 2 % set_.count());
    if (!set_.move_to(session, worker)) continue;
    parts_.stress.sessions_moved.fetch_add(1, std::memory_order_relaxed);
    drop(i);
  }
}

// One at a time: the others' counts are to show it before the next one goes.
void Worker::find_better_home(const std::shared_ptr<Session>& session, std::size_t waiting) {
  const std::optional<unsigned> home = set_.better_home(waiting, session->streams().count(), rebalanced_.load(std::memory_order_relaxed));
  if (!home && needs_more_homes(waiting)) parts_.sides.want();
  if (!home || session->is_closing()) return;
  const unsigned before = session->home().worker();
  session->home().change_to(*home);
  if (!set_.move(session, Placement::home)) return session->home().change_to(before);  // it is being closed
  log_info("Session {}: waits often, as {} others do: worker {} serves it from now on", session->id(), waiting - 1, *home);
  drop(static_cast<std::size_t>(std::find(sessions_.begin(), sessions_.end(), session) - sessions_.begin()));
}

std::size_t Worker::waiting(Clock::time_point now) const {
  return now - rebalanced_.load(std::memory_order_relaxed) < SessionHome::kWaitingCounts ? waiting_.load(std::memory_order_relaxed) : 0;
}

void Worker::drop(std::size_t index) {
  const std::shared_ptr<Session> session = std::move(sessions_[index]);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, session->channel().ring_doorbell(), nullptr);
  sessions_.erase(sessions_.begin() + static_cast<std::ptrdiff_t>(index));
}

void Worker::sleep(const Visit& visit, Clock::duration idle) {
  std::chrono::nanoseconds limit = visit.polls ? pause_ : kIdleSleepLimit;
  pause_ = visit.polls ? std::min(pause_ * 2, visit.lacks_credit ? kLongestPauseForCredit : kLongestIdlePause) : kShortestIdlePause;
  if (visit.awaits_fences) limit = std::min(limit, completion_pause(idle, has_spare_cores()));  // a client waits for what the GPU does
  pollfd ready{epoll_.get(), POLLIN, 0};
  const timespec timeout{limit.count() / 1'000'000'000, limit.count() % 1'000'000'000};
  if (ppoll(&ready, 1, &timeout, nullptr) <= 0) return;
  std::array<epoll_event, 64> edges;
  (void)epoll_wait(epoll_.get(), edges.data(), static_cast<int>(edges.size()), 0);
}

}  // namespace mpsshim::broker
