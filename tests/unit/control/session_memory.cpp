// SPDX-License-Identifier: Apache-2.0
#include "broker/control/sessions/session_memory.hpp"

#include <cerrno>

#include <unistd.h>

#include "tests/support/catch.hpp"

using namespace mpsshim;
using broker::control::SegmentStore;

namespace {

constexpr proto::Lease kLease{0x4000'0020'0000, 1ull << 30};

CUresult create(SegmentStore& store, std::uint64_t id, proto::SegmentPurpose purpose, std::uint64_t address, std::uint64_t size) {
  proto::SegmentCreate request;
  request.purpose = purpose;
  request.address = address;
  request.size_bytes = size;
  const char* why = nullptr;
  const CUresult status = store.create(id, request, kLease, why);
  CHECK((status == CUDA_SUCCESS) == (why == nullptr));
  return status;
}

}  // namespace

TEST_CASE("a segment's file has its size for good") {
  SegmentStore store;
  REQUIRE(create(store, 1, proto::SegmentPurpose::staging, 0, 16 << 20) == CUDA_SUCCESS);
  const auto& file = store.find(1)->file;
  CHECK(proto::sealed_size(file) == 16u << 20);
  CHECK(ftruncate(file.get(), 4096) != 0);
  CHECK(errno == EPERM);
}

TEST_CASE("pinned segments lie inside the lease, to the last page and not one further") {
  SegmentStore store;
  const auto pinned = proto::SegmentPurpose::pinned;
  const std::uint64_t end = kLease.address + kLease.size_bytes;
  CHECK(create(store, 1, pinned, end - 4096, 4096) == CUDA_SUCCESS);
  CHECK(create(store, 2, pinned, end - 4096, 8192) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(store, 3, pinned, kLease.address, 4096) == CUDA_SUCCESS);
  CHECK(create(store, 4, pinned, kLease.address - 4096, 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(store, 5, pinned, kLease.address + 4096, ~0ull - 4095) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(store, 6, pinned, ~0ull - 4095, 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(store, 7, pinned, kLease.address + 8, 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(store, 8, pinned, kLease.address, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(store, 9, pinned, kLease.address + 8192, 100) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("pinned segments do not overlap, until the first is released") {
  SegmentStore store;
  const auto pinned = proto::SegmentPurpose::pinned;
  REQUIRE(create(store, 1, pinned, kLease.address + 8192, 8192) == CUDA_SUCCESS);
  CHECK(create(store, 2, pinned, kLease.address + 4096, 8192) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(store, 2, pinned, kLease.address + 12288, 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(store, 2, pinned, kLease.address + 4096, 4096) == CUDA_SUCCESS);
  CHECK(store.release(1));
  CHECK_FALSE(store.release(1));
  CHECK(create(store, 3, pinned, kLease.address + 8192, 8192) == CUDA_SUCCESS);
}

TEST_CASE("staging segments: at most 1 GiB, no address, and only so many") {
  SegmentStore store;
  const auto staging = proto::SegmentPurpose::staging;
  CHECK(create(store, 1, staging, 0, SegmentStore::kMaxStagingBytes) == CUDA_SUCCESS);
  CHECK(create(store, 2, staging, 0, SegmentStore::kMaxStagingBytes + 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(store, 3, staging, kLease.address, 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(store, 4, static_cast<proto::SegmentPurpose>(9), 0, 4096) == CUDA_ERROR_INVALID_VALUE);
}
