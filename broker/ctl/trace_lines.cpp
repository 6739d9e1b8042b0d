// SPDX-License-Identifier: Apache-2.0
#include "broker/ctl/trace_lines.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace mpsshim::broker::ctl {

namespace {

namespace fs = std::filesystem;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Json {
 public:
  explicit Json(std::string_view text) : text_(text) {}
  [[nodiscard]] bool is_object() { return object(0) && at_ == text_.size(); }

 private:
  static constexpr int kDeepest = 16;  // events have objects in an object

  bool take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  bool digits() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    return at_ > begin;
  }
  bool string() {
    if (!take('"')) return false;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] < 0x20 || text_[at_] >= 0x7f) return false;
      if (text_[at_] == '\\' && !escape()) return false;
    }
    return take('"');
  }
  bool escape() {
    if (++at_ == text_.size()) return false;
    if (text_[at_] != 'u') return std::string_view(R"("\/bfnrt)").find(text_[at_]) != std::string_view::npos;
    const std::string_view code = text_.substr(at_ + 1, 4);
    at_ += code.size();
    return code.size() == 4 && code.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
  }
  bool number() {
    (void)take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (!take('e') && !take('E')) return true;
    if (!take('+')) (void)take('-');
    return digits();
  }
  bool value(int depth) {
    if (at_ == text_.size()) return false;
    switch (text_[at_]) {
      case '{': return object(depth);
      case '[': return array(depth);
      case '"': return string();
      default: return take("true") || take("false") || take("null") || number();
    }
  }
  bool array(int depth) {
    if (depth == kDeepest || !take('[')) return false;
    if (take(']')) return true;
    do {
      if (!value(depth + 1)) return false;
    } while (take(','));
    return take(']');
  }
  bool object(int depth) {
    if (depth == kDeepest || !take('{')) return false;
    if (take('}')) return true;
    do {
      if (!string() || !take(':') || !value(depth + 1)) return false;
    } while (take(','));
    return take('}');
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

bool is_number(std::string_view text) { return !text.empty() && std::ranges::all_of(text, is_digit); }

bool fail(std::string& why, const std::string& path, const char* what, int error) {
  why = fmt::format("{} cannot be {}: {}", path, what, std::strerror(error));
  return false;
}

}  // namespace

bool is_json_object(std::string_view text) { return Json(text).is_object(); }

std::vector<fs::path> timelines_of(const std::string& file, std::string& why) {
  const fs::path wanted(file);
  const std::string prefix = wanted.filename().string() + ".";
  constexpr std::string_view kOfExecutor = "executor.";
  std::vector<fs::path> found;
  std::error_code error;
  const fs::path folder = wanted.has_parent_path() ? wanted.parent_path() : fs::path(".");
  for (fs::directory_iterator each(folder, error), end; !error && each != end; each.increment(error)) {
    const std::string name = each->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    std::string_view rest = std::string_view(name).substr(prefix.size());
    if (rest.starts_with(kOfExecutor)) rest.remove_prefix(kOfExecutor.size());
    if (is_number(rest) && each->is_regular_file(error)) found.push_back(each->path());
  }
  std::ranges::sort(found);
  if (error) {
    why = fmt::format("{} cannot be read: {}", folder.string(), error.message());
    found.clear();
  } else if (found.empty()) {
    why = fmt::format("there is no timeline {}.PID: name what MPSSHIM_TRACE named", file);
  }
  return found;
}

bool write_trace(const std::vector<fs::path>& timelines, std::FILE* to, TraceCount& count, std::string& why) {
  std::fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", to);
  for (const fs::path& path : timelines) {
    std::ifstream lines(path, std::ios::binary);
    if (!lines) return fail(why, path.string(), "read", errno);
    for (std::string line; std::getline(lines, line);) {
      if (line == "[") continue;
      // The comma is behind each event that is whole.
      if (!line.ends_with(',') || !is_json_object(std::string_view(line).substr(0, line.size() - 1))) {
        ++count.left_out;
        continue;
      }
      line.pop_back();
      std::fputs(count.events++ == 0 ? "\n" : ",\n", to);
      std::fwrite(line.data(), 1, line.size(), to);
    }
  }
  fmt::print(to, "\n],\"otherData\":{{\"timelines\":{},\"lines_left_out\":{}}}}}\n", timelines.size(), count.left_out);
  if (std::fflush(to) == 0 && std::ferror(to) == 0) return true;
  why = fmt::format("not all of it could be written: {}", std::strerror(errno));
  return false;
}

bool replace_trace(const std::vector<fs::path>& timelines, const std::string& path, TraceCount& count, std::string& why) {
  std::string name = path + ".XXXXXX";
  const int fd = mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) return fail(why, path, "made", errno);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(fdopen(fd, "w"), std::fclose);
  bool is_written = file != nullptr && write_trace(timelines, file.get(), count, why);
  if (is_written && (fchmod(fd, 0644) != 0 || rename(name.c_str(), path.c_str()) != 0)) is_written = fail(why, path, "written", errno);
  if (!is_written) unlink(name.c_str());
  return is_written;
}

}  // namespace mpsshim::broker::ctl
