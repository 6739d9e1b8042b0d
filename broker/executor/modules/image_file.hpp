// SPDX-License-Identifier: Apache-2.0
// From an image that has been read (broker/compiler) to what cuModuleLoadData takes at once. An image without machine code for the device is
// compiled by a linker process (linker_client.hpp), which nobody else waits for: a just-in-time compilation inside a quiet window would hold
// everybody for as long as it takes, and a text at which the compiler crashes would cost everybody's context.
#pragma once

#include <cstdint>
#include <string>

#include "broker/compiler/prepare_image.hpp"
#include "broker/driver/driver.hpp"
#include "broker/executor/modules/linker_client.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

class ImageCompiler {
 public:
  ImageCompiler(const Driver& driver, LinkerClient& linker, CUdevice device);

  // What images are to be prepared for.
  [[nodiscard]] ImageTarget target(bool has_objects, bool opens_assertions) const;
  struct Image {
    std::uint64_t session = 0;  // whose load it is; 0: a replay
    std::uint64_t image = 0;
    bool has_objects = false;       // ImageTarget's
    bool opens_assertions = false;  // the same
  };
  // Links what an image has in place of machine code; any thread, tens of milliseconds or more. Its content is then what the linker made;
  // `is_machine_code`: an image to be prepared by itself. What only the driver can compile, as it loads it, is tried. `log`: the compiler's words
  // where it failed.
  [[nodiscard]] CUresult link(const Image& image, PreparedImage& prepared, bool& is_machine_code, std::string& log) const;
  // All of it, for bytes that nobody else has read. `compiled`: what the linker made of it, if it made machine code: whoever loads the image next is
  // given that.
  [[nodiscard]] CUresult prepare(const Image& image, const ImageBytes& bytes, PreparedImage& prepared, ImageBytes& compiled, std::string& log) const;
  // The same for a file that a compiler process has got through before: the load log's, which has been loaded. It is seldom anything but machine
  // code.
  [[nodiscard]] CUresult prepare_again(const Image& image, const proto::FileDescriptor& file, PreparedImage& prepared, ImageBytes& compiled,
                                       std::string& log) const;

 private:
  [[nodiscard]] CUresult finish(const Image& image, PreparedImage& prepared, ImageBytes& compiled, std::string& log) const;

  const Driver& driver_;
  LinkerClient& linker_;
  unsigned compute_ = 0;
};

}  // namespace mpsshim::broker
