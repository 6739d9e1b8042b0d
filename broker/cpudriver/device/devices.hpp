// SPDX-License-Identifier: Apache-2.0
//
// The devices that this process sees: those of MPSSHIM_CPU_DEVICES that CUDA_VISIBLE_DEVICES leaves, in its order. All have one shape; UUID and PCI
// bus tell them apart. They can be asked about as the GPUs of a machine can; but a process computes on one of them, the first that it makes a
// context on, because memory, streams and the engine are one each a process. An executor needs no more. Fixed at the first use; any thread.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace mpsshim::cpudriver {

class Devices {
 public:
  static Devices& get();

  int count() const { return static_cast<int>(visible_.size()); }
  bool contains(CUdevice device) const { return device >= 0 && device < count(); }
  // Its number among all of the machine's. The device is one that is seen.
  unsigned machine_index(CUdevice device) const { return visible_[static_cast<std::size_t>(device)]; }

  // The process computes on `device` from now on. CUDA_ERROR_NOT_SUPPORTED, with a line on standard error: it does on another.
  [[nodiscard]] CUresult claim(CUdevice device);
  // The one claimed; before, the first.
  CUdevice used() const;
  bool is_used(CUdevice device) const { return device == used(); }

 private:
  Devices();

  static constexpr CUdevice kNone = -1;
  const std::vector<std::uint32_t> visible_;
  std::atomic<CUdevice> used_{kNone};
};

inline bool is_device(CUdevice device) { return Devices::get().contains(device); }

CUuuid device_uuid(unsigned machine_index);

}  // namespace mpsshim::cpudriver
