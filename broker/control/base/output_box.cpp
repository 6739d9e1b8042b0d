// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/output_box.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mpsshim::broker::control {

void OutputBox::add(std::uint32_t stream, std::string_view text) {
  if (text.empty()) return;
  pieces_.push_back({stream, std::string(text)});
  bytes_ += text.size();
  while (bytes_ > kMaxBytes) {
    std::string& oldest = pieces_.front().text;
    const std::size_t cut = std::min(oldest.size(), bytes_ - kMaxBytes);
    oldest.erase(0, cut);
    bytes_ -= cut;
    dropped_bytes_ += cut;
    if (oldest.empty()) pieces_.pop_front();
  }
}

void OutputBox::take(proto::OutputTaken& message) {
  message.dropped_bytes = std::exchange(dropped_bytes_, 0);
  if (pieces_.empty()) return;
  Piece& oldest = pieces_.front();
  const std::size_t bytes = std::min(oldest.text.size(), sizeof message.text);
  message.stream = oldest.stream;
  message.size_bytes = static_cast<std::uint32_t>(bytes);
  std::memcpy(message.text, oldest.text.data(), bytes);
  bytes_ -= bytes;
  if (bytes == oldest.text.size()) return pieces_.pop_front();
  oldest.text.erase(0, bytes);
}

}  // namespace mpsshim::broker::control
