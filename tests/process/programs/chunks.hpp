// SPDX-License-Identifier: Apache-2.0
// Device memory that a client holds in many pieces, each with words of its own at both ends. Given back by the process's end alone.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {

class Chunks {
 public:
  explicit Chunks(Device& device) : device_(device) {}

  void add(std::size_t count, std::size_t mib) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto number = static_cast<unsigned>(pieces_.size());
      Piece piece{0, mib << 20, number * 7 + 1, number * 7 + 2};
      CU(cuMemAlloc(&piece.address, piece.bytes));
      CU(cuMemcpyHtoD(piece.address, &piece.first, sizeof piece.first));
      CU(cuMemcpyHtoD(piece.address + piece.bytes - sizeof piece.last, &piece.last, sizeof piece.last));
      pieces_.push_back(piece);
    }
  }

  void touch() {
    Piece& piece = pieces_.at(pieces_.size() / 2);
    CU(device_.launch_add(piece.address, 1, 1));
    CU(cuCtxSynchronize());
    ++piece.first;
  }

  void check() const {
    for (const Piece& piece : pieces_) {
      unsigned words[2] = {};
      CU(cuMemcpyDtoH(&words[0], piece.address, sizeof words[0]));
      CU(cuMemcpyDtoH(&words[1], piece.address + piece.bytes - sizeof words[1], sizeof words[1]));
      check_words("a chunk's ends", words, {piece.first, piece.last});
    }
  }

 private:
  struct Piece {
    CUdeviceptr address = 0;
    std::size_t bytes = 0;
    unsigned first = 0;
    unsigned last = 0;
  };
  Device& device_;
  std::vector<Piece> pieces_;
};

}  // namespace mpsshim::test
