// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/workers/worker.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include "broker/executor/base/thread_priority.hpp"
#include "broker/executor/records/dispatch.hpp"
#include "broker/executor/sessions/session.hpp"
#include "broker/executor/workers/worker_set.hpp"
#include "broker/log.hpp"
#include "proto/futex.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::size_t kQuantumBytes = 64 * 1024;
static_assert(kQuantumBytes >= proto::kMaxRecordBytes);
// In one turn, whatever a session asks for; each is exceeded by one step at most. With many sessions at work each gets less, so that a turn of
// all stays short.
constexpr std::chrono::microseconds kLongestTurn{150};   // of reading; of issuing; of writing progress
constexpr std::chrono::microseconds kShortestTurn{30};
constexpr std::chrono::microseconds kTurnOfAll{600};
constexpr std::chrono::microseconds kMailTurn{150};
constexpr unsigned kDryVisits = 4;  // visits without work after which progress is written
constexpr std::chrono::microseconds kShortestIdlePause{20};
constexpr std::chrono::microseconds kLongestIdlePause{1'000};
constexpr std::chrono::microseconds kLongestPauseForCredit{100};  // a full stream's work lasts some hundred microseconds at least
constexpr unsigned kTurnsBetweenLooks = 16;  // at the clock, for the interval
constexpr std::chrono::microseconds kIdleSleepLimit{1'000'000};
// Where the next record is foreseen nothing is gained by spinning on after a step, as far as its last replies do not come that way.
constexpr std::chrono::microseconds kSpinBeforeForeseen{15};

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
      scattering_(index + 1),
      look_out_(parts, gate_) {
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
  session->set_owner(this);  // mail for it comes here from now on, behind this
  post([this, session = std::move(session)] { start_watching(session); });
}

void Worker::start_watching(const std::shared_ptr<Session>& session) {
  sessions_.push_back(session);
  session->await_share();
  if (!watch(epoll_, session->channel().ring_doorbell())) {
    log_error("Session {}: its doorbell cannot be watched (errno {}); its records wait up to a second", session->id(), errno);
  }
}

// What is left over when the time is up comes first the next time.
bool Worker::run_mailbox() {
  if (has_mail_.load(std::memory_order_acquire)) {
    std::lock_guard lock(mutex_);
    for (std::function<void()>& act : mailbox_) mail_.push_back(std::move(act));
    mailbox_.clear();
    has_mail_.store(false, std::memory_order_relaxed);
  }
  TurnBudget budget(kMailTurn);
  while (!mail_.empty()) {
    const std::function<void()> act = std::move(mail_.front());
    mail_.pop_front();
    act();
    if (!mail_.empty() && budget.look()) return false;
  }
  return true;
}

void Worker::turn() {
  (void)run_mailbox();
  (void)visit_all();
}

void Worker::loop() {
  if (has_spare_cores()) prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  serve_before_others();
  delay_.emplace();
  parts_.driver->cuCtxSetCurrent(parts_.context);
  while (!stopping_.load(std::memory_order_relaxed)) {
    const bool has_read_mail = run_mailbox();
    Visit visit = visit_all();
    visit.worked |= !has_read_mail;
    if (++turns_ % kTurnsBetweenLooks == 0) rebalance();
    if (visit.worked) {
      idle_.note_work();
      pause_ = kShortestIdlePause;
    } else if (visit.gathers) {
      idle_.note_idle(Clock::now());  // for no longer than Gathering::kLongest
      proto::cpu_relax();
    } else {
      idle(visit);
    }
  }
}

// A turn had nothing to do: spins for a while, or as long as somebody is about to come, then sleeps.
void Worker::idle(Visit& visit) {
  const Clock::time_point now = Clock::now();
  const bool has_fallen_quiet = !idle_.is_idle();
  idle_.note_idle(now);
  if (has_fallen_quiet) look_out_.fall_quiet(sessions_, now);
  if (idle_.so_far() < (look_out_.are_all_foreseen() ? std::min(spin_, kSpinBeforeForeseen) : spin_) || look_out_.is_due(sessions_, now)) {
    return proto::cpu_relax();
  }
  if (write_progress() && prepare_sleep(visit)) sleep(visit, now);
}

// Of all sessions, before it sleeps. False: there is more.
bool Worker::write_progress() {
  TurnBudget budget(turn_);
  for (const std::shared_ptr<Session>& session : sessions_) {
    if (!session->streams().write_progress(budget)) return false;
  }
  return true;
}

Worker::Visit Worker::visit_all() {
  Visit all;
  unsigned at_work = 0;
  Clock::time_point last = Clock::now();
  gate_.begin_visit();
  for (std::size_t i = 0; i < sessions_.size();) {
    if (i + 1 < sessions_.size()) sessions_[i + 1]->channel().ring().prefetch();
    const std::shared_ptr<Session>& session = sessions_[i];
    const Visit one = visit(*session);
    if (one.worked) {
      const Clock::time_point now = Clock::now();
      session->turn_time += now - std::exchange(last, now);
    }
    all.worked |= one.worked;
    at_work += one.worked ? 1 : 0;
    all.polls |= one.polls;
    all.lacks_credit |= one.lacks_credit;
    all.awaits_fences |= one.awaits_fences;
    all.gathers |= one.gathers;
    if (session->is_closing() && session->advance_close()) {
      time_of_gone_ += session->turn_time;
      drop(i);
      continue;
    }
    ++i;
  }
  gate_.end_visit();
  turn_ = std::clamp(kTurnOfAll / std::max(1U, at_work), kShortestTurn, kLongestTurn);
  return all;
}

Worker::Visit Worker::visit(Session& session) {
  Visit visit;
  visit.worked = read_ring(session);
  issue(session, visit);
  StreamSet& streams = session.streams();
  visit.awaits_fences = !streams.settle_fences();
  if (visit.awaits_fences && streams.has_wanted_fences()) [[unlikely]]
    look_for_owed(session);
  if (streams.queued().records == 0) streams.set_held(false);
  session.dry_visits = visit.worked || visit.gathers ? 0 : session.dry_visits + 1;
  // A window that is wanted waits for progress, of streams beside those that still have work as well.
  const bool is_asked = parts_.window.is_pending() || session.is_closing();
  if (session.dry_visits == kDryVisits || is_asked) {
    TurnBudget budget(turn_);
    bool is_owed = false;
    if (!(is_asked ? streams.write_progress(budget) : streams.offer_progress(budget, is_owed))) {
      visit.worked = true;
      session.dry_visits = kDryVisits - 1;
    } else if (is_owed) {
      session.dry_visits = 0;  // asked again a few visits later, and before this thread sleeps
    }
  }
  if (session.channel().has_long_wait()) [[unlikely]]
    await_interrupt(session);
  if (streams.reap()) visit.polls = true;
  if (session.poll_output()) visit.polls = visit.lacks_credit = true;
  TurnBudget acts(turn_);
  if (session.poll_waiting(acts) || session.is_closing()) visit.polls = true;
  visit.worked |= acts.is_spent();
  if (session.poll_rest()) visit.polls = true;
  return visit;
}

bool Worker::read_ring(Session& session) {
  if (!session.may_read() || !session.channel().ring().has_records()) return false;
  session.channel().tell_awake_us(parts_.awake_waits.limit_us());
  if (session.arrivals().is_quiet()) look_out_.note_arrival(session);
  if (session.home().has_streams_to_move()) [[unlikely]]
    session.home().move_streams();
  if (session.streams().has_other_places()) [[unlikely]]
    session.streams().take_places();
  session.streams().set_held(true);  // before the ring gives the room back
  TurnBudget budget(turn_, session.streams().appended());
  proto::RingConsumer& ring = session.channel().ring();
  // What came meanwhile belongs to it more often than not: the fence behind a launch.
  for (std::size_t used = 0; used <= kQuantumBytes && session.may_read() && ring.has_records();) {
    const proto::RingConsumer::Batch batch = ring.peek(std::span(batch_).subspan(used, kQuantumBytes));
    const proto::trace::Span span("ring", "records", {"session", session.id()}, {"bytes", batch.bytes});
    const ScopedMark mark(session.id(), "serving records");
    const Dispatched done = dispatch_batch(session, std::span<const std::byte>(batch_.data() + used, batch.bytes), budget);
    ring.release(done.bytes, done.records);  // what is left is read again, since the client may have changed it
    const bool is_whole = done.bytes == batch.bytes;
    if (batch.fault != proto::RingFault::none && is_whole) session.fail("the ring", proto::to_string(batch.fault));
    used += done.bytes;
    if (batch.bytes == 0 || !is_whole || budget.is_spent()) break;
  }
  session.full_turns += budget.is_spent() ? 1 : 0;
  return true;
}

void Worker::issue(Session& session, Visit& visit) {
  StreamSet& streams = session.streams();
  if (streams.queued().records == 0) return;
  if (!gate_.enter()) {
    // A window is closing. It waits for the progress of what was issued; everything else waits for it.
    TurnBudget budget(turn_);
    visit.worked |= !streams.write_progress(budget);
    streams.own_borrowed();
    visit.polls = true;
    return;
  }
  StreamSet::Issue issued;
  {
    const ScopedMark mark(session.id(), "issuing work");
    TurnBudget budget(turn_);
    issued = streams.issue(budget, shortage_.is_short() || parts_.stress.gather);
    session.full_turns += budget.is_spent() ? 1 : 0;
  }
  gate_.leave();
  streams.own_borrowed();
  if (issued.needs_window) session.launch_in_window(issued.needs_window);
  visit.worked |= issued.any;
  visit.gathers |= issued.gathers;
  has_gathered_ |= issued.gathers;
  visit.polls |= issued.waits_for_gpu;
  visit.lacks_credit |= issued.lacks_credit;
}

// While a window closes both are asked again.
void Worker::look_for_owed(Session& session) {
  if (!gate_.enter()) return;
  const ScopedMark mark(session.id(), "cuEventQuery");
  session.streams().look_for_owed();
  gate_.leave();
}

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
  return mail_.empty() && !has_mail_.load(std::memory_order_acquire);
}

void Worker::drop(std::size_t index) {
  const std::shared_ptr<Session> session = std::move(sessions_[index]);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, session->channel().ring_doorbell(), nullptr);
  sessions_.erase(sessions_.begin() + static_cast<std::ptrdiff_t>(index));
}

void Worker::sleep(const Visit& visit, Clock::time_point now) {
  std::chrono::nanoseconds limit = visit.polls ? pause_ : kIdleSleepLimit;
  pause_ = visit.polls ? std::min(pause_ * 2, visit.lacks_credit ? kLongestPauseForCredit : kLongestIdlePause) : kShortestIdlePause;
  if (visit.awaits_fences) {  // a client waits for what the GPU does
    limit = std::min(limit, completion_pause(idle_.so_far(), has_spare_cores() && !parts_.pressure.is_high(now)));
  }
  limit = look_out_.begin_sleep(now, limit);
  pollfd ready{epoll_.get(), POLLIN, 0};
  const timespec timeout{limit.count() / 1'000'000'000, limit.count() % 1'000'000'000};
  const bool is_woken = ppoll(&ready, 1, &timeout, nullptr) > 0;
  const Clock::time_point end = Clock::now();
  idle_.note_idle(end);
  if (!is_woken) return look_out_.end_sleep(end);
  std::array<epoll_event, 64> edges;
  (void)epoll_wait(epoll_.get(), edges.data(), static_cast<int>(edges.size()), 0);
}

}  // namespace mpsshim::broker
