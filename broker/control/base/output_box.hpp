// SPDX-License-Identifier: Apache-2.0
// What kernels of a session have printed and its client has not taken yet, for standard output and standard error, in order. The oldest goes when
// it is too much, as in the driver's own buffer; the client is told how much that was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "proto/client_requests.hpp"

namespace mpsshim::broker::control {

class OutputBox {
 public:
  static constexpr std::size_t kMaxBytes = 4u << 20;
  static constexpr std::uint32_t kStandardOutput = 1;
  static constexpr std::uint32_t kStandardError = 2;

  void add(std::uint32_t stream, std::string_view text);
  [[nodiscard]] bool is_empty() const { return pieces_.empty() && dropped_bytes_ == 0; }
  // The next of it; stream 0: nothing is left.
  void take(proto::OutputTaken& message);

  struct Piece {
    std::uint32_t stream = 0;
    std::string text;
  };
  [[nodiscard]] const std::deque<Piece>& pieces() const { return pieces_; }

 private:
  std::deque<Piece> pieces_;
  std::size_t bytes_ = 0;
  std::uint64_t dropped_bytes_ = 0;
};

}  // namespace mpsshim::broker::control
