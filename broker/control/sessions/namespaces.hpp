// SPDX-License-Identifier: Apache-2.0
// Groups of clients that share limits (MPSSHIM_GROUP, `mpsctl namespace`), in the words of NVIDIA's version 3, where a namespace subdivides what a
// server has: device memory that all of them together may hold on a device, and a part of the multiprocessors that they have among them. What one
// leaves idle the others use. A namespace is its user's; it is there from its first client or the first command that names it on, until it is
// deleted. Device memory may also be kept for them: clients outside of it are refused what would touch it. Owned by SessionManager; the control
// process's thread. Names have been checked (proto::parse_group).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <sys/types.h>

#include "broker/control/base/handover.hpp"

namespace mpsshim::broker::control {

struct Namespace {
  std::uint64_t id = 0;                          // for executors
  std::uint64_t memory_limit_bytes = 0;          // on each device; 0: none
  std::uint64_t memory_request_bytes = 0;        // on each device, kept free of others; 0: none
  std::uint32_t thread_percentage = 0;           // in hundredths of a percent; 0: all
  std::uint32_t thread_percentage_request = 0;   // likewise, kept free of others while its clients are at work; 0: none
  std::optional<std::uint32_t> client_priority;  // of its clients that ask for none
  bool has_own_executor = false;                 // its clients are served by themselves, so that their faults reach nobody else
  bool has_directory = false;                    // made by operators: it is to have a socket of its own (NamespaceSockets)
};

class Namespaces {
 public:
  static constexpr std::size_t kMost = 1'024;         // clients make them
  static constexpr const char* kDefault = "default";  // that of clients without one: it has no limits
  using Key = std::pair<uid_t, std::string>;          // SessionLimits::house_of, and its name

  [[nodiscard]] const std::map<Key, Namespace>& all() const { return all_; }
  [[nodiscard]] const Namespace* find(const Key& key) const;
  // nullptr: there are as many as there may be.
  [[nodiscard]] Namespace* find_or_make(const Key& key);
  // By operators.
  void keep(Namespace& made) {
    made.has_directory = true;
    changed_();
  }
  void erase(const Key& key) {
    all_.erase(key);
    changed_();
  }
  void on_change(std::function<void()> changed) { changed_ = std::move(changed); }  // of which there are with a directory
  void drop_requests() {
    for (auto& [key, of] : all_) of.memory_request_bytes = 0;
  }
  // What is kept on each device for all of them but one (nullptr: for all).
  [[nodiscard]] std::uint64_t requested_besides(const Namespace* own) const;

  void save(StateWriter& state) const;
  void restore(StateReader& state);

 private:
  std::map<Key, Namespace> all_;
  std::uint64_t last_ = 0;
  std::function<void()> changed_ = [] {};
};

}  // namespace mpsshim::broker::control
