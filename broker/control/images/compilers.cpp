// SPDX-License-Identifier: Apache-2.0
#include "broker/control/images/compilers.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "broker/compiler/compiler_messages.hpp"
#include "broker/compiler/sandbox.hpp"
#include "broker/control/base/complaints.hpp"
#include "broker/control_messages.hpp"
#include "broker/linker/linker_main.hpp"
#include "broker/log.hpp"
#include "broker/log_subject.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr unsigned kAttempts = 2;
constexpr std::chrono::seconds kLongestYield{30};  // of a job; executors wait for their images for minutes

const char* name_of(std::uint32_t restraint) {
  switch (static_cast<Restraint>(restraint)) {
    case Restraint::user: return "cannot leave root";
    case Restraint::limits: return "cannot limit its memory";
    case Restraint::privileges: return "cannot give up privileges (no_new_privs)";
    case Restraint::system_calls: return "cannot filter its system calls (seccomp)";
    case Restraint::none: break;
  }
  return "says something that is not understood";
}

}  // namespace

CompilerTrade trade_of_readers() { return {.job_time = kCompilerJobTime, .memory_mib = kCompilerMemoryBytes >> 20}; }

CompilerTrade trade_of_linkers(std::chrono::seconds job_time) {
  return {"links", "link", "linked", "linking", job_time, kLinkerMemoryBytes >> 20, CUDA_ERROR_INVALID_PTX};
}

Compilers::Compilers(EventLoop& loop, CompilerLauncher& launcher, ProcessorShares& shares, const CompilerLimits& limits, const CompilerTrade& trade)
    : loop_(loop), launcher_(launcher), limits_(limits), trade_(trade), shares_(shares), idle_times_(limits.idle, limits.most_idle) {
  shares_.on_end([this] { go_on_yielding(); });
}

void Compilers::prepare(const Image& image, int file, const Asker& asker, Done done) {
  const auto known = std::ranges::find_if(kept_, [&](const Kept& kept) { return kept.image == image; });
  if (known != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, known);
    return done(CUDA_SUCCESS, {}, kept_.front().file.get());
  }
  User* const user = start(whose(image));
  if (user == nullptr) return done(CUDA_ERROR_OUT_OF_MEMORY, fmt::format("the process that {} images cannot be started", trade_.does), -1);
  const auto is_same = [&](const Job& job) { return job.image == image; };
  if (user->current && is_same(*user->current)) return user->current->waiters.push_back({asker, std::move(done)});
  if (const auto same = std::ranges::find_if(user->waiting, is_same); same != user->waiting.end()) {
    return same->waiters.push_back({asker, std::move(done)});
  }
  const auto is_its = [&](const Job& job) { return job.waiters.front().asker.session == asker.session; };
  if (user->waiting.size() >= limits_.jobs || static_cast<std::size_t>(std::ranges::count_if(user->waiting, is_its)) >= limits_.session_jobs) {
    complain("{}: {} images of user {} wait to be {} already, and {} may, {} of a client; one more is refused.", asker.name, user->waiting.size(),
             image.uid, trade_.done, limits_.jobs, limits_.session_jobs);
    return done(CUDA_ERROR_OUT_OF_MEMORY, fmt::format("too many images wait to be {}", trade_.done), -1);
  }
  proto::FileDescriptor copy = proto::duplicate_of(file);
  if (!copy.valid()) return done(CUDA_ERROR_OUT_OF_MEMORY, "the broker has no descriptor left", -1);
  Job& job = user->waiting.emplace_back();
  job.image = image;
  job.file = std::move(copy);
  job.waiters.push_back({asker, std::move(done)});
  next(whose(image));
}

void Compilers::expect(uid_t uid, unsigned device) { (void)start({uid, device}); }

Compilers::User* Compilers::start(Whose whose) {
  if (const auto running = users_.find(whose); running != users_.end()) return &running->second;
  auto life = launcher_.launch(whose.device);
  if (!life) {
    complain("The process that {} images of user {} cannot be started ({}); its images are refused. Free memory, or raise its limits.", trade_.does,
             whose.uid, std::strerror(errno));
    return nullptr;
  }
  idle_times_.note_start(whose, EventLoop::Clock::now());
  User& user = users_[whose];
  user.life = std::move(*life);
  user.life.link.set_blocking(false);
  user.link_watch = loop_.watch(user.life.link.fd(), EPOLLIN, [this, whose](EventLoop::Events) { heard(whose); });
  user.death_watch = loop_.watch(user.life.pidfd.get(), EPOLLIN, [this, whose](EventLoop::Events) { died(whose); });
  next(whose);
  return &user;
}

// Sessions have turns, in the order of their numbers.
std::list<Compilers::Job>::iterator Compilers::choose(User& user) const {
  const auto session_of = [](const Job& job) { return job.waiters.front().asker.session; };
  auto chosen = user.waiting.begin();
  const auto rank = [&](const Job& job) { return std::pair(session_of(job) <= user.last_session, session_of(job)); };
  for (auto job = user.waiting.begin(); job != user.waiting.end(); ++job) {
    if (rank(*job) < rank(*chosen)) chosen = job;
  }
  return chosen;
}

void Compilers::next(Whose whose) {
  User& user = users_.at(whose);
  if (user.current || user.is_idle) return;
  if (user.waiting.empty()) {
    user.yields = false;
    user.timer = loop_.after(idle_times_.of(whose), [this, whose] {
      User& idle = users_.at(whose);
      idle.is_idle = true;
      idle_times_.note_end(whose, EventLoop::Clock::now());
      launcher_.kill(idle.life);  // it keeps nothing
    });
    return;
  }
  if (has_to_yield(whose, user)) return;
  const auto chosen = choose(user);
  user.last_session = chosen->waiters.front().asker.session;
  user.current = std::make_unique<Job>(std::move(*chosen));
  user.waiting.erase(chosen);
  user.current->number = ++last_number_;
  ++user.current->attempts;
  user.is_overdue = false;
  user.at_work = shares_.begin(whose.uid);
  user.timer = loop_.after(limits_.job, [this, whose] { overdue(whose); });
  send(whose, user);
}

// While it does, its timer is for that. Others of its user wait behind the job.
bool Compilers::has_to_yield(Whose whose, User& user) {
  const auto now = EventLoop::Clock::now();
  const auto overdrawn_for = shares_.budget.overdrawn_for(whose.uid, now);
  if (!user.yields) user.yields_until = now + kLongestYield;
  user.yields = overdrawn_for.count() > 0 && !shares_.is_alone(whose.uid) && now < user.yields_until;
  if (!user.yields) return false;
  if (shares_.budget.take_news(whose.uid)) {
    const LogSubject subject(whose.uid);
    complain("User {}: reading, compiling and linking its images has taken more than {} s of the processor within a minute; for a while they wait as "
             "long as another user's are under way (--user-compiler-s).",
             whose.uid, std::chrono::duration_cast<std::chrono::seconds>(shares_.budget.a_minute()).count());
  }
  const auto wait = std::min<std::chrono::nanoseconds>(overdrawn_for, user.yields_until - now);
  user.timer = loop_.after(std::chrono::ceil<std::chrono::milliseconds>(wait), [this, whose] { next(whose); });
  return true;
}

// A job of another user has ended. Who is overdrawn comes behind those who are not, which next() has started by then.
void Compilers::go_on_yielding() {
  std::vector<Whose> yielding;
  for (const auto& [whose, user] : users_) {
    if (user.yields) yielding.push_back(whose);
  }
  for (const Whose whose : yielding) {
    if (users_.contains(whose)) next(whose);
  }
}

void Compilers::charge(Whose whose, User& user) {
  const auto used = launcher_.processor_time(user.life);
  shares_.budget.charge(whose.uid, used - std::exchange(user.charged, used), EventLoop::Clock::now());
}

// To serve() of the process. Its answer comes to heard().
void Compilers::send(Whose whose, User& user) {
  const Job& job = *user.current;
  const CompilerJob message{job.number, job.image.compute, job.image.flags};
  const int file = job.file.get();
  const proto::SocketStatus status = proto::send_message(user.life.link, message, {&file, 1});
  if (status == proto::SocketStatus::ok) return;
  const bool is_short = status == proto::SocketStatus::would_block || (status == proto::SocketStatus::failed && proto::is_shortage(errno));
  if (!is_short) return;                                                  // it is dying, which its pidfd tells
  user.timer = loop_.after(std::chrono::milliseconds(2), [this, whose] {  // descriptors of the user's own that are in sockets: they go
    User& same = users_.at(whose);
    same.timer = loop_.after(limits_.job, [this, whose] { overdue(whose); });
    send(whose, same);
  });
}

void Compilers::heard(Whose whose) {
  const LogSubject subject(whose.uid);
  User& user = users_.at(whose);
  CompilerAnswer answer;
  std::size_t received = 0;
  proto::ReceivedFds fds;
  const proto::SocketStatus status = user.life.link.receive(std::as_writable_bytes(std::span(&answer, 1)), received, fds);
  if (status == proto::SocketStatus::would_block) return;
  const bool is_answer = status == proto::SocketStatus::ok && received == sizeof answer;
  if (is_answer && answer.number == 0) {
    if (answer.restraint != 0 && !std::exchange(has_complained_, true)) {
      log_warning("The process that {} images {} ({}): what an image could do to it is bounded by the rest alone.", trade_.does,
                  name_of(answer.restraint), std::strerror(static_cast<int>(answer.status)));
    }
    return;
  }
  if (!is_answer || !user.current || answer.number != user.current->number) {
    user.link_watch.reset();  // an end, or nonsense: either way it is over
    return launcher_.kill(user.life);
  }
  std::unique_ptr<Job> job = std::move(user.current);
  user.at_work.reset();
  job->may_be_kept = answer.status == CUDA_SUCCESS && (job->image.flags & kImageIsInput) == 0;
  charge(whose, user);
  next(whose);
  shares_.tell_ended();
  const bool is_file = fds.count == 1 && proto::is_sealed(fds.fds[0], proto::Seal::content);
  if (is_file) return complete(std::move(job), CUDA_SUCCESS, {}, std::move(fds.fds[0]));
  complain("{}: image {} cannot be {} within {} MiB; it is refused.",
           job->waiters.empty() ? "A client that is gone" : job->waiters.front().asker.name, job->image.image, trade_.done, trade_.memory_mib);
  complete(std::move(job), CUDA_ERROR_OUT_OF_MEMORY, fmt::format("it cannot be {} within {} MiB of memory", trade_.done, trade_.memory_mib), {});
}

void Compilers::overdue(Whose whose) {
  const LogSubject subject(whose.uid);
  User& user = users_.at(whose);
  user.is_overdue = true;
  launcher_.kill(user.life);
}

void Compilers::died(Whose whose) {
  const LogSubject subject(whose.uid);
  auto gone = users_.extract(whose);
  User& user = gone.mapped();
  user.link_watch.reset();
  user.death_watch.reset();
  user.timer.reset();
  charge(whose, user);
  const CompilerEnd end = launcher_.reap(user.life);
  std::unique_ptr<Job> job = std::move(user.current);
  user.at_work.reset();
  const bool is_over_time = user.is_overdue || end.signal == SIGXCPU;
  const bool is_tried_again = job && !is_over_time && job->attempts < kAttempts && !job->waiters.empty();
  if (job && !job->waiters.empty()) {  // else its clients are gone, and so it was ended
    const std::string& name = job->waiters.front().asker.name;
    if (is_over_time) {
      complain("{}: image {} took longer to {} than {} s of the processor or {} s; it is refused.", name, job->image.image, trade_.to_do,
               trade_.job_time.count(), limits_.job.count() / 1000);
    } else {
      complain("{}: the process that {} images {} while it {} image {}; {}.", name, trade_.does, end.text, trade_.done, job->image.image,
               is_tried_again ? "another one tries again, once" : "the image is refused");
    }
  }
  if (is_tried_again) user.waiting.push_front(std::move(*job));
  if (is_tried_again) job.reset();
  std::list<Job> waiting = std::move(user.waiting);
  if (!waiting.empty()) {
    if (User* const anew = start(whose)) {
      anew->last_session = is_tried_again ? waiting.front().waiters.front().asker.session - 1 : user.last_session;
      anew->waiting = std::move(waiting);
      next(whose);
    }
  }
  shares_.tell_ended();
  for (Job& left : waiting) {  // none could be started
    complete(std::make_unique<Job>(std::move(left)), CUDA_ERROR_OUT_OF_MEMORY,
             fmt::format("the process that {} images cannot be started", trade_.does), {});
  }
  if (!job) return;
  complete(std::move(job), trade_.died,
           is_over_time ? fmt::format("{} it took more than {} s", trade_.doing, trade_.job_time.count())
                        : fmt::format("the process that {} images {} while it {} this one", trade_.does, end.text, trade_.done),
           {});
}

void Compilers::complete(std::unique_ptr<Job> job, CUresult status, const std::string& why, proto::FileDescriptor prepared) {
  const int file = prepared.get();
  for (const Waiter& waiter : job->waiters) waiter.done(status, why, file);
  if (status == CUDA_SUCCESS && job->may_be_kept) keep(job->image, std::move(prepared));
}

void Compilers::keep(const Image& image, proto::FileDescriptor file) {
  const auto size = proto::sealed_size(file);
  if (!size || *size > limits_.kept_bytes) return;
  kept_.push_front({image, *size, std::move(file)});
  std::uint64_t total = 0;
  std::size_t count = 0;
  const auto beyond =
      std::ranges::find_if(kept_, [&](const Kept& kept) { return (total += kept.size_bytes) > limits_.kept_bytes || ++count > limits_.kept; });
  kept_.erase(beyond, kept_.end());
}

void Compilers::drop(std::uint64_t session) {
  std::vector<Done> waited;
  const auto drop_from = [&](Job& job) {
    std::erase_if(job.waiters, [&](Waiter& waiter) {
      if (waiter.asker.session != session) return false;
      waited.push_back(std::move(waiter.done));
      return true;
    });
  };
  for (auto& [whose, user] : users_) {
    if (user.current) drop_from(*user.current);
    for (Job& job : user.waiting) drop_from(job);
    std::erase_if(user.waiting, [](const Job& job) { return job.waiters.empty(); });
    // Nobody waits for it: the next one need not either.
    if (user.current && user.current->waiters.empty()) launcher_.kill(user.life);
  }
  for (const Done& done : waited) done(CUDA_ERROR_MPS_SERVER_NOT_READY, "its session has ended", -1);
}

void Compilers::forget(const std::function<bool(std::uint64_t image)>& is_there) {
  kept_.remove_if([&](const Kept& kept) { return !is_there(kept.image.image); });
}

void Compilers::stop() {
  while (!users_.empty()) {
    auto gone = users_.extract(users_.begin());
    User& user = gone.mapped();
    launcher_.kill(user.life);
    (void)launcher_.reap(user.life);
    if (user.current) user.waiting.push_back(std::move(*user.current));
    for (Job& job : user.waiting) {
      complete(std::make_unique<Job>(std::move(job)), CUDA_ERROR_MPS_SERVER_NOT_READY, "the broker ends", {});
    }
  }
}

}  // namespace mpsshim::broker::control
