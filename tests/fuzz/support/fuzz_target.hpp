// SPDX-License-Identifier: Apache-2.0
// What a fuzz target is made of. Under libFuzzer (preset fuzz) the fuzzer calls LLVMFuzzerTestOneInput (mutator.cpp); everywhere else standalone.cpp
// does, with inputs of its own: one that make_input() has built as a correct sender would, or an earlier one, changed at random. The same seed gives
// the same inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace mpsshim::fuzz {

using Random = std::mt19937_64;
using Input = std::vector<std::uint8_t>;

// Of the target: an input that is right, or nearly so.
[[nodiscard]] Input make_input(Random& random);
// Of the target: records, messages or commands that have been decoded so far, those refused included.
[[nodiscard]] std::uint64_t records_so_far();
// Of the target: lets go of what it keeps from input to input.
void finish();

// What must hold whatever the input: says what did not, and ends the process as a crash does.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// Bytes are taken from an input one after another; beyond its end they are 0.
class Reader {
 public:
  Reader(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  [[nodiscard]] bool empty() const { return left_ == 0; }
  std::uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  std::uint16_t word() {
    const std::uint16_t low = byte();
    return static_cast<std::uint16_t>(low | byte() << 8);
  }
  // At most `count` bytes.
  [[nodiscard]] const std::uint8_t* take(std::size_t& count) {
    if (count > left_) count = left_;
    const std::uint8_t* taken = data_;
    data_ += count;
    left_ -= count;
    return taken;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

template <typename T>
void append(Input& input, const T& value) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
  input.insert(input.end(), bytes, bytes + sizeof value);
}

}  // namespace mpsshim::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
