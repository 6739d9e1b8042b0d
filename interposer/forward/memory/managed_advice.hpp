// SPDX-License-Identifier: Apache-2.0
// What programs have said about their managed memory (cuMemAdvise, cuMemPrefetchAsync), by pages: kept to be answered again, and asked for by
// TouchServer and ManagedResidence. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>

#include "gen/cuda_api.hpp"
#include "interposer/forward/memory/address_range.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

struct Advice {
  bool is_read_mostly = false;
  CUmemLocation preferred{};      // CU_MEM_LOCATION_TYPE_INVALID: nowhere
  CUmemLocation last_prefetch{};  // likewise
  std::set<int> accessed_by;      // devices, CU_DEVICE_CPU
  bool is_sent_to_device = false;  // by a prefetch, since a place was preferred

  [[nodiscard]] bool prefers_host() const { return preferred.type != CU_MEM_LOCATION_TYPE_INVALID && preferred.type != CU_MEM_LOCATION_TYPE_DEVICE; }
  // The host is to use it in place.
  [[nodiscard]] bool is_for_host() const { return prefers_host() || accessed_by.contains(CU_DEVICE_CPU); }
};

class ManagedAdvice {
 public:
  [[nodiscard]] static ManagedAdvice& instance();

  // change(Advice&) for every page of `pages`.
  template <typename Change>
  void change(AddressRange pages, Change&& change) {
    const std::lock_guard lock(mutex_);
    split(pages.address);
    split(pages.end());
    std::uint64_t at = pages.address;
    for (auto part = parts_.lower_bound(at); at != pages.end(); at = part->second.end, ++part) {
      // What nobody has said anything about so far.
      const std::uint64_t next = part != parts_.end() && part->first < pages.end() ? part->first : pages.end();
      if (next != at) part = parts_.emplace_hint(part, at, Part{next, {}});
      change(part->second.advice);
    }
  }
  // visit(const Advice&) for every run of pages that share one.
  template <typename Visit>
  void visit(AddressRange pages, Visit&& visit) const {
    static const Advice none;
    const std::lock_guard lock(mutex_);
    auto part = parts_.upper_bound(pages.address);
    if (part != parts_.begin() && std::prev(part)->second.end > pages.address) --part;
    for (std::uint64_t at = pages.address; at < pages.end();) {
      const bool is_here = part != parts_.end() && part->first <= at;
      visit(is_here ? part->second.advice : none);
      at = is_here ? part->second.end : part != parts_.end() && part->first < pages.end() ? part->first : pages.end();
      if (is_here) ++part;
    }
  }
  // The memory is freed.
  void forget(AddressRange pages);

 private:
  struct Part {
    std::uint64_t end = 0;
    Advice advice;
  };

  void split(std::uint64_t at) REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::uint64_t, Part> parts_ GUARDED_BY(mutex_);  // by address; they do not overlap
};

}  // namespace mpsshim::interposer::forward
