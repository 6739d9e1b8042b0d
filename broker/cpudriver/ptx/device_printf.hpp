// SPDX-License-Identifier: Apache-2.0
//
// Formats a kernel's printf. Format and arguments come from device memory and are not trusted: everything is read
// through a DeviceReader, which refuses addresses the kernel may not touch.
#pragma once

#include <cstdint>
#include <string>

namespace mpsshim::ptx {

class DeviceReader {
 public:
  virtual ~DeviceReader() = default;
  // Copies `bytes` from device memory. False: not accessible; nothing may be assumed about `out`.
  [[nodiscard]] virtual bool read(std::uint64_t address, void* out, std::uint32_t bytes) = 0;
};

// Reads the NUL-terminated string at `address`, up to 64 KiB. False: ran into inaccessible memory.
[[nodiscard]] bool read_string(DeviceReader& reader, std::uint64_t address, std::string& out);

// Appends the formatted text; `arguments` is the address of vprintf's packed argument block. Returns the number of
// arguments used, as CUDA's printf does, or -1 if memory was not accessible (`text` holds what came before).
[[nodiscard]] int format_device_printf(DeviceReader& reader, const std::string& format, std::uint64_t arguments, std::string& text);

}  // namespace mpsshim::ptx
