// SPDX-License-Identifier: Apache-2.0
// From an image that has been read (broker/compiler) to what cuModuleLoadData takes at once. An image without machine code for the device is
// compiled here, by cuLink*, which waits for nobody: a just-in-time compilation inside a quiet window would hold everybody for as long as it takes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "broker/compiler/prepare_image.hpp"
#include "broker/driver/driver.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

class ImageCompiler {
 public:
  ImageCompiler(const Driver& driver, CUdevice device);

  // What images are to be prepared for.
  [[nodiscard]] ImageTarget target(bool has_objects) const;
  // Links what an image has in place of machine code; any thread with the context current, tens of milliseconds. Its content is then what the
  // linker made; `is_machine_code`: an image to be prepared by itself. `log`: the compiler's words where it failed.
  [[nodiscard]] CUresult link(PreparedImage& prepared, bool& is_machine_code, std::string& log) const;
  // All of it, for a file that a compiler process has got through before: the load log's. `compiled`: what the linker made of it, if it
  // made machine code: whoever loads the image next is given that.
  [[nodiscard]] CUresult prepare(const proto::FileDescriptor& file, PreparedImage& prepared, ImageBytes& compiled, std::string& log) const;
  [[nodiscard]] CUresult prepare(const ImageBytes& image, bool has_objects, PreparedImage& prepared, ImageBytes& compiled, std::string& log) const;

 private:
  [[nodiscard]] CUresult link(std::span<const LinkInput> inputs, std::vector<std::byte>& linked, std::string& log) const;

  const Driver& driver_;
  unsigned compute_ = 0;
};

}  // namespace mpsshim::broker
