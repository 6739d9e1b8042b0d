// SPDX-License-Identifier: Apache-2.0
#include "broker/control/sessions/session_counts_store.hpp"

#include <cerrno>
#include <cstring>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

SessionCountsStore::SessionCountsStore() : file_(proto::create_memory_file("mpsshim-counts", sizeof(SessionCountsFile))) {
  if (file_.valid() && proto::seal(file_, proto::Seal::size)) {
    memory_ = proto::Mapping::map(file_, 0, sizeof(SessionCountsFile), proto::Access::read_write);
  }
  if (!memory_) log_warning("What sessions do will not be counted ({}): ps shows neither launches nor GPU time.", std::strerror(errno));
  if (!memory_) return;
  for (std::uint32_t index = 1; index < kCountedSessions; ++index) free_.push_back(index);
}

SessionCountsStore::Row SessionCountsStore::take(std::uint64_t session) {
  if (free_.empty()) return {};
  Row taken(this, free_.front());
  free_.pop_front();
  taken.set({});
  row(taken.index_).session.store(session, std::memory_order_release);
  return taken;
}

SessionCountsStore::Row& SessionCountsStore::Row::operator=(Row&& other) noexcept {
  if (this != &other) {
    reset();
    store_ = std::exchange(other.store_, nullptr);
    index_ = other.index_;
  }
  return *this;
}

void SessionCountsStore::Row::reset() {
  if (store_ == nullptr) return;
  store_->row(index_).session.store(0, std::memory_order_release);
  store_->free_.push_back(index_);
  store_ = nullptr;
}

std::optional<SessionCountsStore::Values> SessionCountsStore::Row::read() const {
  if (store_ == nullptr) return std::nullopt;
  const SessionCounts& counts = store_->row(index_);
  return Values{counts.gpu_ns.load(std::memory_order_relaxed), counts.launches.load(std::memory_order_relaxed),
                counts.waits.load(std::memory_order_relaxed), counts.wait_ns.load(std::memory_order_relaxed)};
}

void SessionCountsStore::Row::set(const Values& values) {
  if (store_ == nullptr) return;
  SessionCounts& counts = store_->row(index_);
  counts.gpu_ns.store(values.gpu_ns, std::memory_order_relaxed);
  counts.launches.store(values.launches, std::memory_order_relaxed);
  counts.waits.store(values.waits, std::memory_order_relaxed);
  counts.wait_ns.store(values.wait_ns, std::memory_order_relaxed);
}

}  // namespace mpsshim::broker::control
