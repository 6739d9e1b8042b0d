// SPDX-License-Identifier: Apache-2.0
// Timelines of several processes (docs/tracing.md) put together to one document that strict parsers of JSON take, wherever the processes ended.
// What is read was written by programs that may have died while they did, and by whoever may write there: a line that is no event is left out.
// Any thread.
#pragma once

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace mpsshim::broker::ctl {

// One object of JSON (RFC 8259) in printable ASCII, with nothing around it.
[[nodiscard]] bool is_json_object(std::string_view text);

// What processes with MPSSHIM_TRACE=`file` have written: file.PID and file.executor.PID, in the order of their names. `why`: none, or the folder
// cannot be read.
[[nodiscard]] std::vector<std::filesystem::path> timelines_of(const std::string& file, std::string& why);

struct TraceCount {
  std::size_t events = 0;
  std::size_t left_out = 0;  // lines
};
// Their events as the format's object. False: `why`.
[[nodiscard]] bool write_trace(const std::vector<std::filesystem::path>& timelines, std::FILE* to, TraceCount& count, std::string& why);
// The same into a file, which is replaced once it is whole.
[[nodiscard]] bool replace_trace(const std::vector<std::filesystem::path>& timelines, const std::string& path, TraceCount& count, std::string& why);

}  // namespace mpsshim::broker::ctl
