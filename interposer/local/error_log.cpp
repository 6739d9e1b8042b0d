// SPDX-License-Identifier: Apache-2.0
#include "interposer/local/error_log.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include <sys/syscall.h>
#include <unistd.h>

#include "gen/api_declarations.hpp"
#include "interposer/entry.hpp"
#include "interposer/environment.hpp"

namespace mpsshim::interposer {

namespace {

constexpr char kMissing[] = "[older entries are missing]\n";

thread_local bool is_telling = false;

}  // namespace

// A poll that finds work under way is no failure.
void note_error(ApiId call, CUresult result) {
  if (result == CUDA_ERROR_NOT_READY || is_telling) return;
  const auto add = +[](ApiId failed, CUresult error) {
    ErrorLog::instance().add(failed, error);
    return CUDA_SUCCESS;
  };
  (void)guarded(add, call, result);  // without memory the call fails all the same
}

ErrorLog& ErrorLog::instance() {
  static auto* log = new ErrorLog();  // never destroyed
  return *log;
}

ErrorLog::ErrorLog() : file_(environment_value(Variable::log_file)), has_readers_(!file_.empty()) {}

void ErrorLog::add(ApiId call, CUresult result) {
  Entry entry{{}, static_cast<pid_t>(syscall(SYS_gettid)), call, result};
  clock_gettime(CLOCK_REALTIME, &entry.time);
  bool has_readers = false;
  {
    const std::lock_guard lock(mutex_);
    entries_[next_++ % kMaxEntries] = entry;
    has_readers = has_readers_;
  }
  if (has_readers) tell(entry);
}

std::string ErrorLog::line_of(const Entry& entry) {
  tm when{};
  localtime_r(&entry.time.tv_sec, &when);
  const char* name = nullptr;
  if (api::cuGetErrorName(entry.result, &name) != CUDA_SUCCESS) name = "unknown";
  const std::string_view call = name_of(entry.call);
  std::array<char, 256> text;
  // In the driver's words (580), which has a line of explanation before this one.
  std::snprintf(text.data(), text.size(), "[%02d:%02d:%02d.%03ld][%d][CUDA][E] Returning %d (%s) from %.*s", when.tm_hour, when.tm_min, when.tm_sec,
                entry.time.tv_nsec / 1'000'000, static_cast<int>(entry.thread), static_cast<int>(entry.result), name, static_cast<int>(call.size()),
                call.data());
  return text.data();
}

// Outside the lock: callbacks may ask the log.
void ErrorLog::tell(const Entry& entry) {
  std::vector<Callback> callbacks;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [handle, callback] : callbacks_) callbacks.push_back(callback);
  }
  std::string line = line_of(entry);
  is_telling = true;
  for (const Callback& callback : callbacks) callback.function(callback.user_data, {}, line.data(), line.size());  // {}: an error, not a warning
  is_telling = false;
  if (file_.empty()) return;
  line += '\n';
  if (file_ == "stdout" || file_ == "stderr") {
    std::fputs(line.c_str(), file_ == "stdout" ? stdout : stderr);
  } else if (std::FILE* file = std::fopen(file_.c_str(), "ae")) {
    std::fputs(line.c_str(), file);
    std::fclose(file);
  }
}

std::uint32_t ErrorLog::next() {
  const std::lock_guard lock(mutex_);
  return next_;
}

bool ErrorLog::read(std::uint32_t* from, std::size_t max_bytes, std::string& text) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t oldest = next_ - static_cast<std::uint32_t>(std::min<std::size_t>(next_, kMaxEntries));
  const std::uint32_t wanted = from != nullptr ? std::min(*from, next_) : oldest;
  std::uint32_t first = std::max(wanted, oldest);
  std::vector<std::string> lines;
  for (std::uint32_t number = first; number != next_; ++number) lines.push_back(line_of(entries_[number % kMaxEntries]) + '\n');
  std::size_t bytes = 0;
  for (const std::string& line : lines) bytes += line.size();
  std::size_t left_out = 0;
  const auto head = [&] { return left_out != 0 || first != wanted ? sizeof kMissing - 1 : 0; };
  while (left_out < lines.size() && bytes + head() > max_bytes) bytes -= lines[left_out++].size();
  if (!lines.empty() && left_out == lines.size()) return false;
  if (head() != 0 && !lines.empty()) text = kMissing;
  for (std::size_t i = left_out; i < lines.size(); ++i) text += lines[i];
  if (from != nullptr) *from = next_;
  return true;
}

std::uintptr_t ErrorLog::add_callback(CUlogsCallback callback, void* user_data) {
  const std::lock_guard lock(mutex_);
  callbacks_[++last_handle_] = {callback, user_data};
  has_readers_ = true;
  return last_handle_;
}

bool ErrorLog::remove_callback(std::uintptr_t handle) {
  const std::lock_guard lock(mutex_);
  const bool was_there = callbacks_.erase(handle) != 0;
  has_readers_ = !callbacks_.empty() || !file_.empty();
  return was_there;
}

}  // namespace mpsshim::interposer

namespace mpsshim::interposer::api {

// The driver takes any flags (580).
CUresult cuLogsCurrent(CUlogIterator* iterator_out, unsigned int /*flags*/) {
  if (iterator_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *iterator_out = ErrorLog::instance().next();
  return CUDA_SUCCESS;
}

CUresult cuLogsDumpToMemory(CUlogIterator* iterator, char* buffer, size_t* size, unsigned int /*flags*/) {
  constexpr size_t kMaxBytes = 25'600;
  if (buffer == nullptr || size == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string text;
  const size_t room = std::min(*size, kMaxBytes);
  *size = 0;
  if (room == 0 || !ErrorLog::instance().read(iterator, room - 1, text)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(buffer, text.c_str(), text.size() + 1);
  *size = text.size();
  return CUDA_SUCCESS;
}

CUresult cuLogsDumpToFile(CUlogIterator* iterator, const char* pathToFile, unsigned int /*flags*/) {
  if (pathToFile == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::FILE* file = std::fopen(pathToFile, "we");
  if (file == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  std::string text;
  (void)ErrorLog::instance().read(iterator, SIZE_MAX, text);  // all of it has room
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && is_written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuLogsRegisterCallback(CUlogsCallback callbackFunc, void* userData, CUlogsCallbackHandle* callback_out) {
  if (callbackFunc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::uintptr_t handle = ErrorLog::instance().add_callback(callbackFunc, userData);
  if (callback_out != nullptr) *callback_out = reinterpret_cast<CUlogsCallbackHandle>(handle);
  return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle callback) {
  return ErrorLog::instance().remove_callback(reinterpret_cast<std::uintptr_t>(callback)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace mpsshim::interposer::api
