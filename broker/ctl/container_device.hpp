// SPDX-License-Identifier: Apache-2.0
// What a container needs to be a client, as the Container Device Interface has it (CDI 0.5): a file that container engines read, by which
// `--device mpsshim.dev/gpu=shared` gives a container the client library, under the driver's names where every loader looks, the broker's socket, and
// no device node. Nothing is asked of a broker. Used by `mpsctl cdi`, once in its life.
#pragma once

#include <string>

namespace mpsshim::broker::ctl {

// All paths are the host's.
struct ContainerParts {
  std::string library;             // libmpsshim.so
  std::string management_library;  // libmpsshim-nvml.so
  std::string socket;              // of clients
  std::string group;               // whose that is; "": the broker's own
};

// Of the device: the group's, or "shared".
[[nodiscard]] std::string container_device_name(const ContainerParts& parts);
// Where engines look for it.
[[nodiscard]] std::string container_device_file(const ContainerParts& parts);
// One line of JSON.
[[nodiscard]] std::string container_device(const ContainerParts& parts);
// Writes `text` as a file that everybody may read; whoever reads `path` meanwhile has the old one or the new one, whole. The last folder of the path
// is made where it is missing. False, with a sentence in `why`: nothing has changed.
[[nodiscard]] bool replace_file(const std::string& path, const std::string& text, std::string& why);

}  // namespace mpsshim::broker::ctl
