// SPDX-License-Identifier: Apache-2.0
// A file that lines of the log are appended to, each with one write. Several processes may append to the same one.
// Another file under its name (logrotate has moved this one) is noticed at the next line, and gets it. A disk that is full, or anything else that
// keeps lines from being written, is told once on standard error, and how many were lost once lines can be written again.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include <spdlog/sinks/base_sink.h>

#include "proto/segment.hpp"

namespace mpsshim::broker {

class LogFile final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LogFile(std::string path) : path_(std::move(path)) { open_again(); }
  // Whatever file has the name now. Where none can be had the one that is open stays.
  void reopen();

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

 private:
  void open_again();
  [[nodiscard]] bool has_moved() const;
  [[nodiscard]] bool append(std::string_view text) const;

  const std::string path_;
  proto::FileDescriptor file_;
  std::uint64_t lost_ = 0;  // lines, since it was told that they are lost
};

}  // namespace mpsshim::broker
