// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/box_copy.hpp"

#include <cstring>

#include "interposer/forward/memory/box_staging.hpp"

namespace mpsshim::interposer::forward {

namespace {

bool is_one_run(const BoxSide& side, const BoxSize& size) {
  const bool rows_touch = size.height == 1 || side.pitch == size.width;
  const bool slices_touch = size.depth == 1 || (side.pitch == size.width && side.rows == size.height);
  return rows_touch && slices_touch;
}

CUresult classify_side(BoxSide& side, const BoxSize& size, Space& space) {
  const std::optional<std::uint64_t> bytes = side.extent(size);
  return bytes ? classify(side.address, *bytes, side.named, space) : CUDA_ERROR_INVALID_VALUE;
}

CUresult copy_on_host(Stream& stream, const BoxCopy& box) {
  if (const CUresult error = Streams::instance().synchronize(stream); error != CUDA_SUCCESS) return error;
  for (std::uint64_t z = 0; z < box.size.depth; ++z) {
    for (std::uint64_t y = 0; y < box.size.height; ++y) {
      std::memmove(host_pointer(box.destination.row(y, z)), host_pointer(box.source.row(y, z)), box.size.width);
    }
  }
  return CUDA_SUCCESS;
}

CUresult copy_by_record(Stream& stream, const BoxCopy& box, Space to, Space from) {
  return post_work<proto::CopyBoxRecord>(stream, 0, [&](proto::CopyBoxRecord& record, std::byte*) { describe_box(record, box, to, from); });
}

}  // namespace

std::optional<std::uint64_t> BoxSide::extent(const BoxSize& size) const {
  std::uint64_t rows_before = 0, bytes = 0;
  if (__builtin_mul_overflow(size.depth - 1, rows, &rows_before) || __builtin_add_overflow(rows_before, size.height - 1, &rows_before)) return {};
  if (__builtin_mul_overflow(rows_before, pitch, &bytes) || __builtin_add_overflow(bytes, size.width, &bytes)) return {};
  return bytes;
}

CUresult copy_box(Stream& stream, BoxCopy box, Completion completion) {
  if (box.size.is_empty()) return CUDA_SUCCESS;
  if (is_one_run(box.destination, box.size) && is_one_run(box.source, box.size)) {
    const std::optional<std::uint64_t> bytes = box.source.extent(box.size);
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    return copy(stream, {box.destination.address, box.destination.named}, {box.source.address, box.source.named}, *bytes, completion);
  }
  Space to{}, from{};
  if (const CUresult error = classify_side(box.destination, box.size, to); error != CUDA_SUCCESS) return error;
  if (const CUresult error = classify_side(box.source, box.size, from); error != CUDA_SUCCESS) return error;
  const auto is_host = [](Space space) { return space == Space::pageable || space == Space::registered_host; };
  // From here on as copy(), row by row where a side is pageable.
  if (is_host(to) && is_host(from) && (to == Space::pageable || from == Space::pageable)) return copy_on_host(stream, box);
  if (to == Space::pageable) return download_box(stream, box, from);
  const bool host_sees = is_host(to) || from == Space::registered_host;
  CUresult error = CUDA_SUCCESS;
  if (from == Space::pageable) {
    const bool is_synchronous = completion == Completion::host_safe && !host_sees;
    if (is_synchronous) error = Streams::instance().synchronize_visible(stream);
    if (error == CUDA_SUCCESS) error = upload_box(stream, box, to, is_synchronous);
  } else {
    error = copy_by_record(stream, box, to, from);
  }
  if (error != CUDA_SUCCESS || completion == Completion::as_posted || !host_sees) return error;
  return Streams::instance().wait_for_own_work(stream);
}

}  // namespace mpsshim::interposer::forward
