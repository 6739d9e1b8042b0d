// SPDX-License-Identifier: Apache-2.0
// What a module load takes, as the compiler process makes it of an image: the bytes for the driver, or what its linker is to make them of, and
// all that the executor wants to know about them.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>

#include "broker/image/cubin.hpp"
#include "broker/image/managed.hpp"

namespace mpsshim::broker {

// Bytes, and what keeps them where they are: a vector, or a mapping of a file whose content is sealed.
class ImageBytes {
 public:
  ImageBytes() = default;
  explicit ImageBytes(std::vector<std::byte> bytes) {
    auto kept = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    bytes_ = *kept;
    keeper_ = std::move(kept);
  }
  ImageBytes(std::span<const std::byte> bytes, std::shared_ptr<const void> keeper) : keeper_(std::move(keeper)), bytes_(bytes) {}

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] const std::byte* data() const { return bytes_.data(); }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  // A part of the same bytes, kept by the same.
  [[nodiscard]] ImageBytes part(std::span<const std::byte> bytes) const { return {bytes, keeper_}; }

 private:
  std::shared_ptr<const void> keeper_;
  std::span<const std::byte> bytes_;
};

struct LinkInput {
  CUjitInputType type{};
  ImageBytes bytes;  // a text ends with a NUL
};

struct PreparedImage {
  ImageBytes content;  // a cubin, a container with a cubin for the device, or zero-terminated PTX; empty: only what is linked of `inputs`
  // These are to be linked, which compiles them, and what comes of it is loaded in place of `content`; where it is machine code it is an image to
  // be prepared itself, `prefix` in front of it. A driver without a linker loads `content`.
  std::vector<LinkInput> inputs;
  std::vector<std::byte> prefix;

  bool has_writable_globals = false;
  bool uses_device_heap = false;      // image::CubinInfo
  bool all_may_use_device_heap = false;
  std::set<std::string, std::less<>> heap_kernels;  // else these
  bool takes_code_addresses = false;  // the same
  bool has_references = false;        // the same
  bool all_may_print = false;         // it is not known which
  std::set<std::string, std::less<>> printing_kernels;
  // Those variables, if all their names could be read.
  std::optional<std::vector<image::Variable>> variables;
  // __managed__ variables without a place.
  std::vector<image::ManagedVariable> managed;
  // Those of a placed image (proto/managed_variables.hpp). They count as no variables: what the image still has of them nothing uses, and it
  // holds their initial values.
  std::vector<image::Variable> placed;
};

}  // namespace mpsshim::broker
