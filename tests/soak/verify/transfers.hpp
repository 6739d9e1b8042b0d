// SPDX-License-Identifier: Apache-2.0
// Copies between host and device in all the ways there are. What was uploaded is overwritten, freed or unmapped as soon as CUDA allows it; what is
// downloaded goes into memory that holds something else, with a guard on both sides.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "workplace.hpp"

namespace mpsshim::soak {

class Transfers {
 public:
  // `pinned_bytes` of pinned memory are its own.
  Transfers(Workplace& work, std::size_t pinned_bytes);
  Transfers(const Transfers&) = delete;
  ~Transfers();

  // Work put into the stream afterwards finds it there.
  void upload(const Stream& stream, CUdeviceptr to, std::span<const Word> words);
  // Behind all work of the stream; complete when this returns. Throws where the guards are hurt.
  [[nodiscard]] std::vector<Word> download(const Stream& stream, CUdeviceptr from, std::size_t count);

 private:
  void upload_pageable(const Stream& stream, CUdeviceptr to, std::span<const Word> words, bool is_synchronous);
  void upload_pinned(const Stream& stream, CUdeviceptr to, std::span<const Word> words);
  void download_into(const Stream& stream, void* to, CUdeviceptr from, std::size_t bytes, bool is_pinned);

  Workplace& work_;
  std::byte* pinned_ = nullptr;
  std::size_t pinned_bytes_;
  CUevent uploaded_ = nullptr;
};

}  // namespace mpsshim::soak
