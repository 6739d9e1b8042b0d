// SPDX-License-Identifier: Apache-2.0
// From an image file to what cuModuleLoadData takes at once. An image without machine code for the device is compiled here, by cuLink*, which
// waits for nobody: a just-in-time compilation inside a quiet window would hold everybody for as long as it takes.
// The content comes from a client: it is read into private memory, sized and parsed by broker/image, never mapped.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/image/cubin.hpp"
#include "broker/image/managed.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

struct PreparedImage {
  std::vector<std::byte> content;  // a cubin, or a fatbin with a cubin for the device; zero-terminated PTX where compiling ahead is not possible
  bool has_writable_globals = false;
  bool uses_device_heap = false;  // image::CubinInfo
  bool all_may_use_device_heap = false;
  std::set<std::string, std::less<>> heap_kernels;  // else these
  bool takes_code_addresses = false;                // the same
  bool has_references = false;                      // image::CubinInfo
  bool was_compiled = false;
  bool all_may_print = false;  // it is not known which
  std::set<std::string, std::less<>> printing_kernels;
  // Those variables, if all their names could be read.
  std::optional<std::vector<image::Variable>> variables;
  // __managed__ variables without a place.
  std::vector<image::ManagedVariable> managed;
  // Those of a placed image (proto/managed_variables.hpp). They count as no variables: what the image still has of them nothing uses, and it
  // holds their initial values.
  std::vector<image::Variable> placed;
};

class ImageCompiler {
 public:
  ImageCompiler(const Driver& driver, CUdevice device);
  // Any thread with the context current; compiling takes tens of milliseconds. `log`: the compiler's words where it failed.
  // `has_objects`: of a linked fat binary the client has the objects as well, and comes again with them behind it. So the driver is not asked
  // about one that has nothing it runs: CUDA_ERROR_NO_BINARY_FOR_GPU.
  [[nodiscard]] CUresult prepare(const proto::FileDescriptor& file, bool has_objects, PreparedImage& prepared, std::string& log) const;

 private:
  using Placements = std::vector<image::Placement>;
  struct Input {
    CUjitInputType type{};
    std::vector<std::byte> bytes;  // a text ends with a NUL
  };
  [[nodiscard]] CUresult prepare_fatbin(const Placements& placements, bool has_objects, PreparedImage& prepared, std::string& log) const;
  // From containers of relocatable code, one behind the other.
  [[nodiscard]] CUresult prepare_objects(std::span<const std::byte> objects, const Placements& placements, PreparedImage& prepared,
                                         std::string& log) const;
  [[nodiscard]] CUresult read_object(std::span<const std::byte> object, std::vector<Input>& inputs, std::string& log) const;
  [[nodiscard]] CUresult prepare_ptx(const std::string& text, const Placements& placements, PreparedImage& prepared, std::string& log) const;
  [[nodiscard]] bool runs_texts() const;
  [[nodiscard]] CUresult compile_ptx(const std::string& text, std::vector<std::byte>& cubin, std::string& log) const;
  [[nodiscard]] CUresult link(std::span<const Input> inputs, std::vector<std::byte>& linked, std::string& log) const;

  const Driver& driver_;
  int compute_major_ = 0;
  int compute_minor_ = 0;
  mutable std::once_flag runs_texts_once_;
  mutable bool runs_texts_ = false;
};

}  // namespace mpsshim::broker
