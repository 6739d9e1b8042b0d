// SPDX-License-Identifier: Apache-2.0
// Where modules come to lie in the device's memory. The driver puts them into blocks that it also takes for itself, also for things that depend
// on how busy the GPU is, which no log can name: so a new life of an executor, which makes the same loads in the same order, may find a block
// free that was taken before (seen on an H200 with other processes at work: docs/measurements.md). A module whose variables come back lower than
// they were is unloaded, some memory is taken, and it is loaded again. What was taken stays so, for the loads that follow.
//
// Used by ModuleStore while an executor replays its log, by one thread, before it serves anybody.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "broker/executor/loaded_image.hpp"

namespace mpsshim::broker {

class ModulePlaces {
 public:
  static constexpr int kMostPieces = 12;

  explicit ModulePlaces(const Driver& driver) : driver_(driver) {}
  ModulePlaces(const ModulePlaces&) = delete;

  // 0: it has no variables that are known.
  [[nodiscard]] static CUdeviceptr place_of(const LoadedImage& image) { return image.variables.empty() ? 0 : image.variables.front().address; }

  // Calls `load`, which makes `image` anew, until its place is `wanted`, or will not be; then the last load stands. 0: anywhere.
  [[nodiscard]] CUresult load_at(CUdeviceptr wanted, const std::function<CUresult()>& load, std::shared_ptr<LoadedImage>& image);

 private:
  [[nodiscard]] bool take_piece(int number);

  const Driver& driver_;
};

}  // namespace mpsshim::broker
