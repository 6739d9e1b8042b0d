// SPDX-License-Identifier: Apache-2.0
// Who has which image read by whom, and who has what compiled and linked: a compiler process (broker/compiler) for each user, or a linker process
// (broker/linker) for each user and device, as CompilerTrade says; started when a client or a job comes and ended when no job has come for a while,
// with one job at a time. A job is one image for one kind of device; who asks for the same meanwhile gets the same answer. A user whose images have
// taken more of the processor's time than is its own, in processes of either kind, has its jobs wait, for a while, as long as another user's is under
// way in one of either (ProcessorShares). A process that dies in
// a job costs that job one attempt, and nobody anything else. What has been made is kept, within limits. The processes are not trusted: what they
// send is looked at for its form alone, and passed on as a file to an executor, whose reader is wary. Owned by ImageService; the control process's
// thread.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <cuda.h>
#include <sys/types.h>

#include "broker/control/base/event_loop.hpp"
#include "broker/control/images/idle_times.hpp"
#include "broker/control/images/processor_budget.hpp"
#include "broker/control/processes/compiler_process.hpp"

namespace mpsshim::broker::control {

// What the processes are for, in words for the log, and what they are bounded by themselves.
struct CompilerTrade {
  std::string does = "reads";
  std::string to_do = "read";
  std::string done = "read";
  std::string doing = "reading";
  std::chrono::seconds job_time{10};  // of the processor
  std::uint64_t memory_mib = 0;
  CUresult died = CUDA_ERROR_INVALID_IMAGE;  // of a job that two processes have died in, or that took too long
};
[[nodiscard]] CompilerTrade trade_of_readers();
[[nodiscard]] CompilerTrade trade_of_linkers(std::chrono::seconds job_time);

struct CompilerLimits {
  std::chrono::milliseconds job{20'000};  // on the clock: a machine may be busy. Of the processor's time: CompilerTrade
  std::chrono::milliseconds idle{5'000};  // at least; twice as long for one that is wanted again soon after its end,
  std::chrono::milliseconds most_idle{5'000};  // up to this
  std::size_t jobs = 64;  // of a user, that wait
  std::size_t session_jobs = 16;
  std::uint64_t kept_bytes = 256ull << 20;
  std::size_t kept = 128;  // descriptors
};

class Compilers {
 public:
  struct Image {
    uid_t uid = 0;
    std::uint64_t image = 0;
    bool is_compiled = false;  // what a linker has made of it
    std::uint32_t compute = 0;
    std::uint32_t flags = 0;  // kImage...
    unsigned device = 0;      // of linkers
    auto operator<=>(const Image&) const = default;
  };
  struct Asker {
    std::uint64_t session = 0;  // 0: none
    std::string name;           // for the log
  };
  // `prepared` is a file where `status` is CUDA_SUCCESS; it says itself what has become of the image. Otherwise `why` is a sentence.
  using Done = std::function<void(CUresult status, const std::string& why, int prepared)>;

  // `shares` outlives it; no job begins or ends in the others once it has gone.
  Compilers(EventLoop& loop, CompilerLauncher& launcher, ProcessorShares& shares, const CompilerLimits& limits,
            const CompilerTrade& trade = trade_of_readers());
  Compilers(const Compilers&) = delete;
  ~Compilers() { stop(); }

  // Calls `done` once, now or later. `file` is the image's, sealed; it is duplicated.
  void prepare(const Image& image, int file, const Asker& asker, Done done);
  // An image of that user may come soon: its process starts.
  void expect(uid_t uid, unsigned device = 0);
  // The session waits for nothing any more.
  void drop(std::uint64_t session);
  // What is kept of other images.
  void forget(const std::function<bool(std::uint64_t image)>& is_there);
  // Ends all processes, and waits for that; jobs fail.
  void stop();

  [[nodiscard]] std::size_t processes() const { return users_.size(); }  // those that end included
  [[nodiscard]] std::size_t kept() const { return kept_.size(); }

 private:
  struct Waiter {
    Asker asker;
    Done done;
  };
  struct Job {
    Image image;
    proto::FileDescriptor file;
    std::vector<Waiter> waiters;
    unsigned attempts = 0;
    bool may_be_kept = true;  // what has become of it
    std::uint64_t number = 0;
  };
  struct Whose {
    uid_t uid = 0;
    unsigned device = 0;
    auto operator<=>(const Whose&) const = default;
  };
  [[nodiscard]] static Whose whose(const Image& image) { return {image.uid, image.device}; }
  struct User {
    CompilerLife life;
    EventLoop::Watch link_watch;
    EventLoop::Watch death_watch;
    EventLoop::Timer timer;  // for the job, or while there is none
    std::list<Job> waiting;
    std::unique_ptr<Job> current;
    std::uint64_t last_session = 0;
    std::chrono::nanoseconds charged{};  // of the time of its process
    ProcessorShares::Work at_work;       // while there is a current job
    bool yields = false;                 // to other users
    EventLoop::Clock::time_point yields_until;  // at the latest
    bool is_overdue = false;
    bool is_idle = false;  // and ends
  };
  struct Kept {
    Image image;
    std::uint64_t size_bytes = 0;
    proto::FileDescriptor file;
  };

  [[nodiscard]] User* start(Whose whose);
  void next(Whose whose);
  [[nodiscard]] bool has_to_yield(Whose whose, User& user);
  void charge(Whose whose, User& user);
  void go_on_yielding();
  [[nodiscard]] std::list<Job>::iterator choose(User& user) const;
  void send(Whose whose, User& user);
  void heard(Whose whose);
  void died(Whose whose);
  void overdue(Whose whose);
  void complete(std::unique_ptr<Job> job, CUresult status, const std::string& why, proto::FileDescriptor prepared);
  void keep(const Image& image, proto::FileDescriptor file);

  EventLoop& loop_;
  CompilerLauncher& launcher_;
  const CompilerLimits limits_;
  const CompilerTrade trade_;
  ProcessorShares& shares_;
  IdleTimes<Whose> idle_times_;
  std::map<Whose, User> users_;  // those that have a process
  std::list<Kept> kept_;         // the last used one in front
  std::uint64_t last_number_ = 0;
  bool has_complained_ = false;
};

}  // namespace mpsshim::broker::control
