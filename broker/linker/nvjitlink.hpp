// SPDX-License-Identifier: Apache-2.0
// A CUDA Toolkit's nvJitLink: NVIDIA's compiler and linker as a library that needs no context, for GPUs where no second process can have one, and for
// those who would rather keep the memory that a context takes. Found at run time; what of its interface is used is declared in nvjitlink.cpp
// (CUDA's documentation, "nvJitLink"). Its machine code is the device's own kind (sm_90a).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "broker/linker/link_library.hpp"

namespace mpsshim::broker {

// What it is to make machine code for.
struct LinkTarget {
  int driver_version = 0;  // as cuDriverGetVersion() says it
  unsigned compute = 0;    // 90
};

class NvJitLink final : public LinkLibrary {
 public:
  // `file`: a path; "": libnvJitLink.so.N of the driver's CUDA version or a later one of the same N, where the loader finds it, else in
  // /usr/local/cuda-N.M and /usr/local/cuda. Null: there is none, `why` says what was looked for.
  [[nodiscard]] static std::unique_ptr<NvJitLink> load(const std::string& file, const LinkTarget& target, std::string& why);

  [[nodiscard]] std::unique_ptr<Link> begin() const override;
  // Whether it compiles: then the driver, which has to load it, does too. No text older than version 3.1 does.
  [[nodiscard]] CUresult try_load(const ImageBytes& text, std::string& error_log) const override;

  // As it takes them. Those that only steer the driver's own ways (its cache, what it falls back to) have no words and are left out.
  [[nodiscard]] static std::vector<std::string> words_of(const std::vector<JitOption>& options, unsigned compute);

  struct Functions;

 private:
  NvJitLink(std::shared_ptr<const Functions> functions, unsigned compute) : functions_(std::move(functions)), compute_(compute) {}

  const std::shared_ptr<const Functions> functions_;
  const unsigned compute_;
};

}  // namespace mpsshim::broker
