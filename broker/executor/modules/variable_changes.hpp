// SPDX-License-Identifier: Apache-2.0
// What may have changed the variables of one copy of an image, counted; and which of them have addresses that a kernel may have although its code
// does not name them: given out to the client, or left in memory by a kernel that had it.
//
// Owned by its LoadedImage; a copy with variables is one session's. Threads: note() by whoever issues for the session, behind the progress table's
// `issued` and before the driver gets the work; counts are read by the VariableKeeper's thread, which looks whether the session is idle afterwards:
// who has seen a part of a note finds the session at work.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace mpsshim::broker {

class VariableChanges {
 public:
  explicit VariableChanges(std::size_t variables) : size_(variables), one_(std::make_unique<One[]>(variables)) {}
  VariableChanges(const VariableChanges&) = delete;

  // What a kernel may do; of a function that has none it may do nothing.
  struct Use {
    VariableChanges* changes = nullptr;
    std::vector<std::uint32_t> variables;
    bool all = false;  // in place of those
    bool leaves_addresses = false;
  };

  [[nodiscard]] std::size_t size() const { return size_; }
  // The copy is another session's from now on: what addresses the last one's kernels have is of no matter. By its worker.
  void begin(std::uint64_t session) {
    if (std::exchange(session_, session) == session) return;
    for (std::size_t i = 0; i < size_; ++i) one_[i].is_out.store(false, std::memory_order_relaxed);
  }

  void note(const Use& use) {
    if (use.all) return note_all();
    for (const std::uint32_t variable : use.variables) note(variable);
  }
  void note(std::size_t variable) { one_[variable].count.fetch_add(1, std::memory_order_release); }
  void note_all() { all_.fetch_add(1, std::memory_order_release); }
  [[nodiscard]] std::uint64_t count(std::size_t variable) const {
    const std::uint64_t own = one_[variable].count.load(std::memory_order_acquire);
    return one_[variable].is_constant ? own : own + all_.load(std::memory_order_acquire);
  }

  // No kernel writes to it. Before anything else.
  void set_constant(std::size_t variable) { one_[variable].is_constant = true; }
  // Without effect on constants.
  void set_out(std::size_t variable) { one_[variable].is_out.store(!one_[variable].is_constant, std::memory_order_release); }
  void set_out(const Use& use) {
    for (std::size_t i = 0; use.all && i < size_; ++i) set_out(i);
    for (const std::uint32_t variable : use.variables) set_out(variable);
  }
  [[nodiscard]] bool is_out(std::size_t variable) const { return one_[variable].is_out.load(std::memory_order_acquire); }
  [[nodiscard]] bool is_any_out(const Use& use) const {
    bool is_any = false;
    for (std::size_t i = 0; use.all && i < size_; ++i) is_any |= is_out(i);
    for (const std::uint32_t variable : use.variables) is_any |= is_out(variable);
    return is_any;
  }
  // All of them but constants.
  [[nodiscard]] bool are_out(const Use& use) const {
    for (std::size_t i = 0; use.all && i < size_; ++i) {
      if (!is_out(i) && !one_[i].is_constant) return false;
    }
    for (const std::uint32_t variable : use.variables) {
      if (!is_out(variable) && !one_[variable].is_constant) return false;
    }
    return true;
  }

 private:
  struct One {
    std::atomic<std::uint64_t> count{0};
    std::atomic<bool> is_out{false};
    bool is_constant = false;
  };

  const std::size_t size_;
  const std::unique_ptr<One[]> one_;
  std::atomic<std::uint64_t> all_{0};
  std::uint64_t session_ = 0;
};

}  // namespace mpsshim::broker
