// SPDX-License-Identifier: Apache-2.0
// For libFuzzer, which begins with nothing: now and then an input as a correct sender would build it, in place of a change to one it has.
#include <algorithm>
#include <cstring>

#include "tests/fuzz/support/fuzz_target.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

extern "C" __attribute__((visibility("default"), used)) std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                                                                            unsigned seed) {
  constexpr unsigned kOneIn = 16;
  if (seed % kOneIn != 0) return LLVMFuzzerMutate(data, size, most);
  mpsshim::fuzz::Random random(seed);
  const mpsshim::fuzz::Input input = mpsshim::fuzz::make_input(random);
  const std::size_t made = std::min(input.size(), most);
  std::memcpy(data, input.data(), made);
  return made;
}
