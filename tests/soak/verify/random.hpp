// SPDX-License-Identifier: Apache-2.0
// Choices of the verifying soak: all follow from one seed.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <random>

namespace mpsshim::soak {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  [[nodiscard]] std::uint64_t number() { return engine_(); }
  [[nodiscard]] std::uint32_t word() { return static_cast<std::uint32_t>(engine_() >> 16); }
  [[nodiscard]] std::size_t below(std::size_t limit) { return static_cast<std::size_t>(engine_() % limit); }
  [[nodiscard]] std::size_t between(std::size_t least, std::size_t most) { return least + below(most - least + 1); }
  [[nodiscard]] bool one_in(std::size_t count) { return below(count) == 0; }
  // 1 to `most`, every power of two as likely as the next.
  [[nodiscard]] std::size_t of_any_size(std::size_t most) {
    const std::size_t least = std::size_t{1} << below(static_cast<std::size_t>(std::bit_width(most)));
    return between(least, std::min(2 * least - 1, most));
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace mpsshim::soak
