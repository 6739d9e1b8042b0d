// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/module_places.hpp"

#include <utility>

#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

// The first small piece takes a block for itself; what follows has to fill it before another one is taken.
constexpr std::size_t kFirstPieceBytes = 4u << 10;
constexpr std::size_t kPieceBytes = 1u << 20;

}  // namespace

CUresult ModulePlaces::load_at(CUdeviceptr wanted, const std::function<CUresult()>& load, std::shared_ptr<LoadedImage>& image) {
  CUresult result = load();
  if (result != CUDA_SUCCESS || wanted == 0) return result;
  const CUdeviceptr first = place_of(*image);
  int pieces = 0;
  for (; place_of(*image) != 0 && place_of(*image) < wanted && pieces < kMostPieces; ++pieces) {
    if (!take_piece(pieces)) break;
    result = driver_->cuModuleUnload(std::exchange(image->handle, nullptr));
    if (result == CUDA_SUCCESS) result = load();
    if (result != CUDA_SUCCESS) return result;
  }
  if (pieces > 0) {
    log_info("Image {}: its variables came back at {:#x}; after {} pieces of memory were taken, at {:#x} ({:#x} before)", image->image, first, pieces,
             place_of(*image), wanted);
  }
  return CUDA_SUCCESS;
}

// For the life of the context.
bool ModulePlaces::take_piece(int number) {
  CUdeviceptr piece = 0;
  const CUresult result = driver_->cuMemAlloc_v2(&piece, number == 0 ? kFirstPieceBytes : kPieceBytes);
  if (result != CUDA_SUCCESS) log_warning("No memory to bring modules back where they were ({})", driver_.describe(result));
  return result == CUDA_SUCCESS;
}

}  // namespace mpsshim::broker
