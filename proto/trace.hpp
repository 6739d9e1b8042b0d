// SPDX-License-Identifier: Apache-2.0
// A timeline of what this process does, for Perfetto or chrome://tracing (docs/tracing.md). Client and executor write the same form, one
// file a process, by the same clock (CLOCK_MONOTONIC), so files of several processes can be put together.
//
// Off, which is the rule, it costs a look at one pointer: no thread, no file, no allocation. On, a thread formats its events into a buffer
// of its own, which is written when it is full, when its oldest event is a second old and another comes, when the thread ends, and by
// finish(). Only whole lines are written, and the form (a JSON array without its end) stays readable wherever the file is cut off.
// Any thread, at any time, also after finish() and while the process ends. A child of fork() writes nothing until it calls start().
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace mpsshim::proto::trace {

class Writer;
extern std::atomic<Writer*> active;  // constant-initialised: null

[[nodiscard]] inline bool enabled() { return active.load(std::memory_order_relaxed) != nullptr; }
// CLOCK_MONOTONIC.
[[nodiscard]] std::uint64_t now_ns();

struct Argument {
  const char* name = nullptr;
  std::uint64_t value = 0;
};
using Arguments = std::initializer_list<Argument>;

// Makes or empties the file and begins. False (errno): it cannot be opened, nothing is traced. A second start() in a process changes nothing. From
// one thread at a time.
[[nodiscard]] bool start(const std::string& path, std::string_view process_name);
// Writes what the buffers hold.
void flush();
// The same at the end: later events are written one by one.
void finish();

// Something that began at `began_ns` and is over. Category and names of arguments are literals; `name` may be any text.
void complete(const char* category, std::string_view name, std::uint64_t began_ns, Arguments arguments = {});
void instant(const char* category, std::string_view name, Arguments arguments = {});

// An arrow between two events that are going on in their threads, maybe of two processes: both have its number, and nothing else has.
void arrow_tail(std::uint64_t number);
void arrow_head(std::uint64_t number);

// Something that holds for the whole timeline.
void fact(const char* name, Arguments arguments);
// What viewers show beside the process's name; the last one counts.
void label_process(std::string_view label);

// The time of a scope. `name` is a literal. Arguments without a name are none.
class Span {
 public:
  Span(const char* category, const char* name, Argument first = {}, Argument second = {})
      : category_(category), name_(name), began_ns_(enabled() ? now_ns() : 0), first_(first), second_(second) {}
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  ~Span() {
    if (began_ns_ != 0) [[unlikely]]
      complete(category_, name_, began_ns_, {first_, second_});
  }

 private:
  const char* category_;
  const char* name_;
  const std::uint64_t began_ns_;  // 0: off when the scope began
  const Argument first_;
  const Argument second_;
};

}  // namespace mpsshim::proto::trace
