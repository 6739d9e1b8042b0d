// SPDX-License-Identifier: Apache-2.0
// An image store with its loop, whose images the test fills and seals.
#pragma once

#include <cstdint>
#include <string>

#include <unistd.h>

#include "broker/control/images/image_store.hpp"
#include "tests/support/catch.hpp"

namespace mpsshim::broker::control::testing {

class Images {
 public:
  std::uint64_t open_and_fill(std::uint64_t session, const std::string& content) {
    std::uint64_t image = 0;
    int file = -1;
    REQUIRE(store.open(session, content.size(), image, file) == CUDA_SUCCESS);
    REQUIRE(pwrite(file, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
    return image;
  }
  CUresult seal(std::uint64_t session, std::uint64_t image, std::uint64_t& result) {
    CUresult status = CUDA_ERROR_UNKNOWN;
    bool answered = false;
    store.seal(session, image, [&](CUresult sealed, std::uint64_t id) {
      answered = true;
      status = sealed;
      result = id;
    });
    turns = 0;
    while (!answered && turns < 10'000) {
      loop.turn(0);
      ++turns;
    }
    REQUIRE(answered);
    return status;
  }
  std::uint64_t add(std::uint64_t session, const std::string& content) {
    std::uint64_t result = 0;
    REQUIRE(seal(session, open_and_fill(session, content), result) == CUDA_SUCCESS);
    return result;
  }

  EventLoop loop;
  ImageStore store{loop};
  int turns = 0;
};

}  // namespace mpsshim::broker::control::testing
