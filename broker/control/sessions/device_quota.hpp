// SPDX-License-Identifier: Apache-2.0
// How much device memory the clients of each user hold on each device, and how much they may. What is held is a DeviceCharge: it counts from the
// moment that an executor is allowed to make the memory until the last session that has it has let it go, so one piece that several sessions of a
// user share counts once, whichever executors they are in.
// Owned by DeviceChunks; the control process's thread. Charges may outlive it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace mpsshim::broker::control {

class DeviceCharge {
 public:
  using Held = std::shared_ptr<std::uint64_t>;  // by a user on a device
  // `by_maker`: what the session that has made it holds; others that open it pay nothing.
  DeviceCharge(unsigned device, Held held, Held by_maker, std::uint64_t number, std::uint64_t size_bytes)
      : device_(device), held_(std::move(held)), by_maker_(std::move(by_maker)), number_(number), size_bytes_(size_bytes) {
    *held_ += size_bytes_;
    *by_maker_ += size_bytes_;
  }
  DeviceCharge(const DeviceCharge&) = delete;
  ~DeviceCharge() {
    *held_ -= size_bytes_;
    *by_maker_ -= size_bytes_;
  }
  // Tells pieces of memory apart in a hand-over.
  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] unsigned device() const { return device_; }  // that has the memory, whichever sessions hold it

 private:
  const unsigned device_;
  const Held held_;
  const Held by_maker_;
  const std::uint64_t number_;
  const std::uint64_t size_bytes_;
};
using DeviceChargeRef = std::shared_ptr<const DeviceCharge>;

class DeviceQuota {
 public:
  // Of a user on each device; 0: no limit.
  explicit DeviceQuota(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // nullptr: so much more is beyond the limit.
  [[nodiscard]] DeviceChargeRef take(unsigned device, uid_t user, const DeviceCharge::Held& by_maker, std::uint64_t size_bytes) {
    return size_bytes <= left(device, user) ? add(device, user, by_maker, size_bytes) : nullptr;
  }
  // Memory that is there already, whatever the limit.
  [[nodiscard]] DeviceChargeRef add(unsigned device, uid_t user, const DeviceCharge::Held& by_maker, std::uint64_t size_bytes) {
    DeviceCharge::Held& held = held_[{user, device}];
    if (held == nullptr) held = std::make_shared<std::uint64_t>(0);
    return std::make_shared<const DeviceCharge>(device, held, by_maker, ++last_number_, size_bytes);
  }
  [[nodiscard]] std::uint64_t limit() const { return limit_bytes_; }
  [[nodiscard]] std::uint64_t held(unsigned device, uid_t user) const {
    const auto found = held_.find({user, device});
    return found != held_.end() ? *found->second : 0;
  }
  [[nodiscard]] std::vector<std::uint64_t> held(uid_t user) const {  // by device
    std::vector<std::uint64_t> all;
    for (auto at = held_.lower_bound({user, 0}); at != held_.end() && at->first.first == user; ++at) {
      all.resize(at->first.second + 1);
      all.back() = *at->second;
    }
    return all;
  }
  [[nodiscard]] std::uint64_t held_by_all(unsigned device) const {
    std::uint64_t bytes = 0;
    for (const auto& [of, held] : held_) bytes += of.second == device ? *held : 0;
    return bytes;
  }
  // UINT64_MAX: there is no limit.
  [[nodiscard]] std::uint64_t left(unsigned device, uid_t user) const {
    const std::uint64_t now = held(device, user);
    return limit_bytes_ == 0 ? UINT64_MAX : limit_bytes_ - std::min(limit_bytes_, now);
  }

 private:
  const std::uint64_t limit_bytes_;
  std::map<std::pair<uid_t, unsigned>, DeviceCharge::Held> held_;  // as many as users have come
  std::uint64_t last_number_ = 0;
};

}  // namespace mpsshim::broker::control
