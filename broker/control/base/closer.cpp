// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/closer.hpp"

#include <csignal>
#include <deque>
#include <mutex>
#include <utility>

#include <pthread.h>
#include <sys/eventfd.h>

#include "broker/rights/rights.hpp"
#include "proto/cond_var.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr int kHurry = SIGURG;  // of no other use here, and without harm where it is not handled
constexpr std::chrono::milliseconds kHurryEvery{1};

// With no signal to be taken but kHurry: all others are the main thread's.
std::thread start_quietly(std::function<void()> body) {
  struct sigaction nothing {};
  nothing.sa_handler = [](int) {};  // without SA_RESTART: what waits in the kernel returns
  sigaction(kHurry, &nothing, nullptr);
  sigset_t others, before;
  sigfillset(&others);
  sigdelset(&others, kHurry);
  pthread_sigmask(SIG_SETMASK, &others, &before);
  std::thread thread([body = std::move(body)] {
    (void)keep_capabilities({});  // a thread has its own, and this one needs none
    body();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

struct Closer::Shared {
  struct Job {
    std::vector<proto::FileDescriptor> files;
    std::function<void()> closed;
  };
  Mutex mutex;
  CondVar changed;
  std::deque<Job> waiting GUARDED_BY(mutex);
  std::vector<std::function<void()>> done GUARDED_BY(mutex);
  bool is_stopping GUARDED_BY(mutex) = false;
  const proto::FileDescriptor bell{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};  // rung when there is something in `done`
};

Closer::Closer(EventLoop& loop) : loop_(loop), shared_(std::make_shared<Shared>()) {
  watch_ = loop_.watch(shared_->bell.get(), EPOLLIN, [this](EventLoop::Events) { hear(); });
  thread_ = start_quietly([shared = shared_] { run(shared); });
}

Closer::~Closer() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->is_stopping = true;
  }
  shared_->changed.notify_one();
  if (pending_ == 0) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void Closer::run(const std::shared_ptr<Shared>& shared) {
  pthread_setname_np(pthread_self(), "closer");
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->changed.wait(lock, [&]() REQUIRES(shared->mutex) { return shared->is_stopping || !shared->waiting.empty(); });
    if (shared->is_stopping) return;
    Shared::Job job = std::move(shared->waiting.front());
    shared->waiting.pop_front();
    lock.unlock();
    job.files.clear();
    lock.lock();
    shared->done.push_back(std::move(job.closed));
    eventfd_write(shared->bell.get(), 1);
  }
}

void Closer::close(std::vector<proto::FileDescriptor> files, std::function<void()> closed) {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->waiting.push_back({std::move(files), std::move(closed)});
  }
  shared_->changed.notify_one();
  if (pending_++ == 0) hurry();
}

void Closer::hurry() {
  timer_ = loop_.after(kHurryEvery, [this] {
    if (pending_ == 0) return;
    pthread_kill(thread_.native_handle(), kHurry);
    hurry();
  });
}

void Closer::hear() {
  eventfd_t rung = 0;
  (void)eventfd_read(shared_->bell.get(), &rung);
  std::vector<std::function<void()>> done;
  {
    const std::lock_guard lock(shared_->mutex);
    done.swap(shared_->done);
  }
  pending_ -= done.size();
  for (const std::function<void()>& closed : done) closed();
}

}  // namespace mpsshim::broker::control
