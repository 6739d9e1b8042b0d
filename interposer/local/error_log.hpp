// SPDX-License-Identifier: Apache-2.0
// The calls of this process that have failed (CUDA Driver API manual, "Error Log Management"): the last hundred, their callbacks, and the file
// that CUDA_LOG_FILE names. It is this library's own: the executor's driver has one for all clients, which is told to nobody.
//
// Any thread. A failing call costs a look at the clock and a lock; text is made where somebody reads it. What a callback calls is not logged.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <string>

#include <sys/types.h>

#include "gen/api_ids.hpp"
#include "gen/cuda_api.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer {

class ErrorLog {
 public:
  static constexpr std::size_t kMaxEntries = 100;

  [[nodiscard]] static ErrorLog& instance();

  void add(ApiId call, CUresult result);

  // The number that the next entry will have.
  [[nodiscard]] std::uint32_t next();
  // What came from number `from` on; `from` is then the next. With nullptr all there is. `max_bytes` of it at most, the newest; a first line
  // tells of what is missing. False: not even the newest entry has room.
  [[nodiscard]] bool read(std::uint32_t* from, std::size_t max_bytes, std::string& text);

  [[nodiscard]] std::uintptr_t add_callback(CUlogsCallback callback, void* user_data);
  [[nodiscard]] bool remove_callback(std::uintptr_t handle);

 private:
  struct Entry {
    timespec time{};
    pid_t thread = 0;
    ApiId call{};
    CUresult result{};
  };
  struct Callback {
    CUlogsCallback function = nullptr;
    void* user_data = nullptr;
  };

  ErrorLog();
  [[nodiscard]] static std::string line_of(const Entry& entry);
  void tell(const Entry& entry);

  std::string file_;  // CUDA_LOG_FILE, as it was at the start; empty: none
  Mutex mutex_;
  std::array<Entry, kMaxEntries> entries_ GUARDED_BY(mutex_);  // number n is at n % kMaxEntries
  std::uint32_t next_ GUARDED_BY(mutex_) = 0;
  std::map<std::uintptr_t, Callback> callbacks_ GUARDED_BY(mutex_);
  std::uintptr_t last_handle_ GUARDED_BY(mutex_) = 0;
  bool has_readers_ GUARDED_BY(mutex_) = false;
};

}  // namespace mpsshim::interposer
