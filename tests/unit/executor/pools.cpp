// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <vector>

#include "broker/executor/base/event_pool.hpp"
#include "broker/executor/base/progress.hpp"
#include "broker/executor/context/stream_pool.hpp"
#include "tests/support/catch.hpp"

namespace mpsshim::broker {
namespace {

int streams_made = 0;
int streams_destroyed = 0;
int events_made = 0;
CUresult stream_result = CUDA_SUCCESS;

CUresult CUDAAPI make_stream(CUstream* stream, unsigned flags, int) {
  if (stream_result != CUDA_SUCCESS) return stream_result;
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;  // nobody may depend on the context's NULL stream
  *stream = reinterpret_cast<CUstream>(static_cast<std::uintptr_t>(++streams_made) * 16);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI make_event(CUevent* event, unsigned) {
  *event = reinterpret_cast<CUevent>(static_cast<std::uintptr_t>(++events_made) * 16);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI destroy_stream(CUstream) {
  ++streams_destroyed;
  return CUDA_SUCCESS;
}

struct Pools {
  Pools() {
    streams_made = streams_destroyed = events_made = 0;
    stream_result = CUDA_SUCCESS;
    DriverTable functions;
    functions.cuStreamCreateWithPriority = make_stream;
    functions.cuStreamDestroy_v2 = destroy_stream;
    functions.cuEventCreate = make_event;
    driver = Driver::from_table(functions);
  }
  std::unique_ptr<ProgressTable> table = std::make_unique<ProgressTable>();
  std::unique_ptr<Driver> driver;
  Progress progress{*table, 0x1000};
};

}  // namespace

TEST_CASE("streams are used again by sessions that ask for the same priority") {
  Pools pools;
  StreamPool pool(*pools.driver, pools.progress);
  std::unique_ptr<PooledStream> first;
  REQUIRE(pool.take(11, 0, first) == CUDA_SUCCESS);
  const CUstream handle = first->handle;
  const std::uint32_t index = first->progress_index;
  CHECK(pools.progress[index].session == 11);
  pool.give_back(std::move(first));
  CHECK(pools.progress[index].session == 0);
  std::unique_ptr<PooledStream> other;
  REQUIRE(pool.take(12, -1, other) == CUDA_SUCCESS);
  CHECK(other->handle != handle);
  std::unique_ptr<PooledStream> again;
  REQUIRE(pool.take(13, 0, again) == CUDA_SUCCESS);
  CHECK(again->handle == handle);
  CHECK(again->progress_index == index);
  CHECK(pools.progress[index].session == 13);
}

TEST_CASE("a stream the driver refuses costs no progress word") {
  Pools pools;
  StreamPool pool(*pools.driver, pools.progress);
  stream_result = CUDA_ERROR_OUT_OF_MEMORY;
  std::unique_ptr<PooledStream> stream;
  for (std::uint32_t i = 0; i < kProgressStreams + 1; ++i) REQUIRE(pool.take(1, 0, stream) == CUDA_ERROR_OUT_OF_MEMORY);
  stream_result = CUDA_SUCCESS;
  CHECK(pool.take(1, 0, stream) == CUDA_SUCCESS);
}

TEST_CASE("the last quarter of the streams is for sessions that have few") {
  Pools pools;
  StreamPool pool(*pools.driver, pools.progress);
  std::vector<std::unique_ptr<PooledStream>> taken;
  const auto take = [&](std::uint64_t session) {
    std::unique_ptr<PooledStream> stream;
    const CUresult result = pool.take(session, 0, stream);
    if (stream) taken.push_back(std::move(stream));
    return result;
  };
  std::uint32_t greedy = 0;
  while (take(1) == CUDA_SUCCESS) ++greedy;
  CHECK(greedy == kProgressStreams - StreamPool::kReserved);
  for (std::uint64_t session = 2; session < 2 + StreamPool::kReserved / StreamPool::kFewStreams; ++session) {
    for (std::uint32_t i = 0; i < StreamPool::kFewStreams; ++i) REQUIRE(take(session) == CUDA_SUCCESS);
    REQUIRE(take(session) == CUDA_ERROR_OUT_OF_MEMORY);
  }
  CHECK(take(9999) == CUDA_ERROR_OUT_OF_MEMORY);  // now there are none
  for (auto& stream : taken) pool.give_back(std::move(stream));
  taken.clear();
  for (std::uint32_t i = 0; i < greedy; ++i) REQUIRE(take(9999) == CUDA_SUCCESS);
  CHECK(take(9999) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("streams of a priority that nobody asks for are given up where words run out") {
  Pools pools;
  StreamPool pool(*pools.driver, pools.progress);
  std::vector<std::unique_ptr<PooledStream>> taken;
  for (std::uint32_t i = 0; i < kProgressStreams; ++i) REQUIRE(pool.take(i / 16, -3, taken.emplace_back()) == CUDA_SUCCESS);
  for (auto& stream : taken) pool.give_back(std::move(stream));
  std::unique_ptr<PooledStream> stream;
  CHECK(pool.take(7, 0, stream) == CUDA_SUCCESS);
  CHECK(streams_destroyed == 1);
}

TEST_CASE("events are used again, apart by whether they keep time") {
  Pools pools;
  EventPool pool(*pools.driver);
  PointRef timed;
  PointRef other;
  REQUIRE(pool.take(true, timed) == CUDA_SUCCESS);
  timed->is_issued = true;
  const CUevent handle = timed->handle;
  timed.reset();
  REQUIRE(pool.take(false, other) == CUDA_SUCCESS);
  CHECK(other->handle != handle);
  REQUIRE(pool.take(true, timed) == CUDA_SUCCESS);
  CHECK(timed->handle == handle);
  CHECK_FALSE(timed->is_issued);
}

}  // namespace mpsshim::broker
