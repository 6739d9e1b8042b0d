// SPDX-License-Identifier: Apache-2.0
#include "broker/control/sessions/session_output.hpp"

#include <algorithm>

#include <unistd.h>

#include "broker/control/executors/managed_executor.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

void note_output(SessionTable& sessions, const ManagedExecutor& executor, const message::Printed& part) {
  if (executor.serving() == nullptr) return;
  const std::string text = executor.serving()->read_output(part.begin_bytes, part.size_bytes);  // also where nobody is left: it is done with
  if (ClientSession* session = sessions.find(part.session)) add_output(*session, OutputBox::kStandardOutput, text);
}

std::string read_words(const proto::FileDescriptor& file, std::uint64_t size_bytes) {
  constexpr std::uint64_t kMaxBytes = OutputBox::kMaxBytes;
  std::string words(std::min(size_bytes, kMaxBytes), '\0');
  if (!file.valid() || proto::sealed_size(file).value_or(0) < words.size()) return {};
  const ssize_t read = pread(file.get(), words.data(), words.size(), 0);
  words.resize(read > 0 ? static_cast<std::size_t>(read) : 0);
  return words;
}

void add_output(ClientSession& session, std::uint32_t stream, std::string_view text) {
  if (text.empty()) return;
  if (session.client.layout_minor < proto::kOutputSinceMinor) {
    return log_info("{}: speaks protocol {}.{}, which has no text of kernels; its kernels have printed: {}", session.name(), proto::kLayoutMajor,
                    session.client.layout_minor, text);
  }
  session.output.add(stream, text);
  if (session.channel) session.channel->tell_output(true);
}

void take_output(ClientSession& session, proto::OutputTaken& message) {
  session.output.take(message);
  if (session.channel && session.output.is_empty()) session.channel->tell_output(false);
}

}  // namespace mpsshim::broker::control
