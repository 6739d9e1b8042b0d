// SPDX-License-Identifier: Apache-2.0
// Times of events, read for another executor. The driver is a list of when which event was recorded, on a clock of its own.
#include "broker/executor/context/session_times.hpp"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <map>
#include <memory>

#include "broker/executor/base/event_pool.hpp"
#include "broker/executor/link/control_link.hpp"
#include "proto/socket.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/executor_messages.hpp"

namespace mpsshim::broker {
namespace {

constexpr double kMsPerHour = 3.6e6;
constexpr std::int64_t kBaseNs = 7'000'000'000'000'000;

std::map<CUevent, double> recorded_ms;

CUresult CUDAAPI create(CUevent* event, unsigned) {
  static std::uintptr_t last = 16;
  return *event = reinterpret_cast<CUevent>(last += 16), CUDA_SUCCESS;  // NOLINT(performance-no-int-to-ptr)
}
CUresult CUDAAPI destroy(CUevent) { return CUDA_SUCCESS; }
CUresult CUDAAPI elapsed(float* milliseconds, CUevent start, CUevent end) {
  if (!recorded_ms.contains(start) || !recorded_ms.contains(end)) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(recorded_ms[end] - recorded_ms[start]);
  return CUDA_SUCCESS;
}

struct Times {
  Times() {
    REQUIRE(pool.take(true, base.point) == CUDA_SUCCESS);
    recorded_ms = {{base.point->handle, 0}};
  }
  void record(std::uint32_t index, std::optional<double> at_ms) {
    RecordedEvent event{proto::EventId::make(index, 1), nullptr};
    REQUIRE(pool.take(true, event.point) == CUDA_SUCCESS);
    if (at_ms) recorded_ms[event.point->handle] = *at_ms;
    events.push_back(event);
  }
  static std::unique_ptr<Driver> make_driver() {
    DriverTable table;
    table.cuEventCreate = create;
    table.cuEventDestroy_v2 = destroy;
    table.cuEventElapsedTime = elapsed;
    return Driver::from_table(table);
  }

  std::unique_ptr<Driver> driver = make_driver();
  EventPool pool{*driver};
  TimeBase base{nullptr, kBaseNs};
  std::vector<RecordedEvent> events;
};

// As the control process passes it on.
proto::FileDescriptor sent(const std::vector<EventTime>& times) {
  std::array<proto::Socket, 2> sockets = proto::Socket::pair();
  ControlLink link{std::move(sockets[1])};
  send_event_times(link, 42, times);
  auto received = test::receive_message(sockets[0], proto::MessageDirection::from_executor);
  REQUIRE(received);
  REQUIRE(received->is<message::EventTimes>());
  CHECK(received->session() == 42);
  return std::move(received->take<message::EventTimes>().fds.times);
}

}  // namespace

TEST_CASE("what lay an hour back is as exact as it was") {
  Times times;
  for (std::uint32_t i = 0; i < 100; ++i) times.record(100 - i, -kMsPerHour - i * 0.1234);
  times.record(200, -1.5);
  const std::vector<EventTime> read = read_event_times(*times.driver, times.base, times.events);
  REQUIRE(read.size() == 101);
  SessionTimes next(*times.driver);
  REQUIRE(next.adopt(sent(read)));
  const std::int64_t late = next.take(proto::EventId::make(200, 1)).value();
  CHECK(std::abs(late - (kBaseNs - 1'500'000)) < 50);
  const std::int64_t first = next.take(proto::EventId::make(100, 1)).value();
  for (std::uint32_t i = 1; i < 100; ++i) {
    const std::int64_t at = next.take(proto::EventId::make(100 - i, 1)).value();
    INFO(i << ": " << first - at);
    CHECK(std::abs(first - at - static_cast<std::int64_t>(i) * 123'400) < 20);  // natively half a microsecond
  }
  // Made anew, or of another life of the id: there is none.
  CHECK_FALSE(next.take(proto::EventId::make(100, 1)));
  CHECK_FALSE(next.take(proto::EventId::make(200, 2)));
}

TEST_CASE("an event without a time leaves the others theirs, and nothing has one without a base") {
  Times times;
  times.record(1, -20);
  times.record(2, std::nullopt);
  times.record(3, -10);
  const std::vector<EventTime> read = read_event_times(*times.driver, times.base, times.events);
  REQUIRE(read.size() == 2);
  CHECK(read[0].host_ns - read[1].host_ns == 10'000'000);
  CHECK(read_event_times(*times.driver, {}, times.events).empty());
}

TEST_CASE("events of this executor stand on the same clock as those of the one before") {
  Times times;
  SessionTimes session(*times.driver);
  times.record(1, 250.5);
  times.record(2, std::nullopt);
  std::int64_t at = 0;
  CHECK(session.at(*times.events[0].point, at) == CUDA_ERROR_MPS_SERVER_NOT_READY);
  session.set_base(times.base);
  CHECK(session.at(*times.events[0].point, at) == CUDA_SUCCESS);
  CHECK(at == kBaseNs + 250'500'000);
  CHECK(session.at(*times.events[1].point, at) == CUDA_ERROR_NOT_READY);
}

TEST_CASE("a file of another form is refused") {
  Times times;
  SessionTimes session(*times.driver);
  CHECK_FALSE(session.adopt({}));
  const proto::FileDescriptor unsealed = proto::create_memory_file("test", 4096);
  CHECK_FALSE(session.adopt(unsealed));
  const proto::FileDescriptor bad = proto::create_memory_file("test", 4096);
  const EventTimesHeader header{257};
  REQUIRE(pwrite(bad.get(), &header, sizeof header, 0) == static_cast<ssize_t>(sizeof header));
  REQUIRE(proto::seal(bad, proto::Seal::content));
  CHECK_FALSE(session.adopt(bad));
  CHECK(session.adopt(sent({})));
}

}  // namespace mpsshim::broker
