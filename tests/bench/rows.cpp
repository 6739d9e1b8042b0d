// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/rows.hpp"

#include <algorithm>
#include <cstdio>
#include <thread>

#include "tests/bench/system.hpp"

namespace mpsshim::bench {

namespace {

// How many of the launches between two looks were issued in chains. Only ours counts, and only where its counters can be read.
class ChainedShare {
 public:
  explicit ChainedShare(const Settings& settings) : settings_(settings), before_(look()) {}
  void report(Bench& bench, const Row& row) const {
    const std::optional<LaunchCounts> after = look();
    if (!before_ || !after || after->launches <= before_->launches) return;
    bench.report(std::string(row.name) + ".chained", "%", {(after->chained - before_->chained) / (after->launches - before_->launches) * 100});
  }

 private:
  std::optional<LaunchCounts> look() const { return settings_.broker_pid == 0 ? std::nullopt : launch_counts(settings_.broker_pid); }
  const Settings& settings_;
  std::optional<LaunchCounts> before_;
};

// Pieces of work a second, of all clients, until the last of them is done.
void rate(Bench& bench, const Row& row) {
  Crowd& crowd = bench.crowd(row.clients);
  Order task = row.order;
  if (task.task == Task::occupy) task.argument[2] = bench.settings.block_kernel_ns;
  std::vector<double> values;
  const ChainedShare chained(bench.settings);
  for (int i = 0; i < bench.settings.repeats; ++i) {
    double seconds = 0;
    double done = 0;
    for (const Outcome& outcome : run_interval(crowd, row.clients, timed(task, bench.settings.interval_s), seconds)) {
      if (outcome.is_left_out) return bench.leave_out(row, "not possible: the device has no clusters");
      done += outcome.done;
    }
    values.push_back(done / seconds);
  }
  bench.report(row.name, row.unit, values);
  chained.report(bench, row);
}

// The median piece of work of one client.
void latency(Bench& bench, const Row& row) {
  Crowd& crowd = bench.crowd(1);
  std::vector<double> values;
  const ChainedShare chained(bench.settings);
  for (int i = 0; i < bench.settings.repeats; ++i) {
    double seconds = 0;
    values.push_back(run_interval(crowd, 1, timed(row.order, bench.settings.interval_s), seconds)[0].median_us);
  }
  bench.report(row.name, row.unit, values);
  if (row.order.task == Task::launch_call || row.order.task == Task::launch_sync) chained.report(bench, row);
}

void copy_rate(Bench& bench, const Row& row) {
  Crowd& crowd = bench.crowd(1);
  Order task = row.order;
  task.argument[0] = static_cast<std::int64_t>(bench.settings.large_copy_bytes);
  std::vector<double> values;
  double seconds = 0;
  const Outcome outcome = run_interval(crowd, 1, timed(task, bench.settings.interval_s), seconds)[0];
  for (const double piece_us : outcome.piece_us) values.push_back(static_cast<double>(bench.settings.large_copy_bytes) / piece_us / 1e3);
  bench.report(row.name, row.unit, values);
}

void device_memory(Bench& bench, const Row& row) {
  if (!bench.settings.memory_baseline_mib) throw Failure("the memory used before any service was started is not known: --memory-baseline-mib");
  bench.crowd(row.clients);
  bench.report(row.name, row.unit, {(device_memory_used_mib() - *bench.settings.memory_baseline_mib) / 1024});
}

// From before the first exec to the last worker's first launch done.
double start_ms(Bench& bench, unsigned clients, std::uint64_t image) {
  Crowd crowd(bench.settings.environment);
  const std::int64_t begin_ns = now_ns();
  for (unsigned i = 0; i < clients; ++i) crowd.start(image);
  crowd.wait_ready(kReadyLimitS);
  std::int64_t last_ns = begin_ns;
  for (unsigned i = 0; i < clients; ++i) last_ns = std::max(last_ns, crowd.slot(i).first_launch_ns);
  return static_cast<double>(last_ns - begin_ns) / 1e6;
}

void start(Bench& bench, const Row& row) {
  bench.dismiss();
  std::vector<double> values;
  const int times = row.clients == 1 ? 2 * bench.settings.repeats : bench.settings.repeats;
  for (int i = 0; i < times; ++i) values.push_back(start_ms(bench, row.clients, 0));
  bench.report(row.name, row.unit, values);
}

// Many attached; an eighth of them at work, then none.
void many(Bench& bench, const Row& row) {
  const unsigned clients = bench.settings.crowd;
  const unsigned busy = std::max(1u, clients / 8);
  Crowd& crowd = bench.crowd(clients);
  std::vector<pid_t> idle;
  for (unsigned i = busy; i < clients; ++i) idle.push_back(crowd.pid(i));
  const std::vector<pid_t> broker = bench.settings.broker_pid == 0 ? std::vector<pid_t>{} : with_descendants(bench.settings.broker_pid);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // what attaching left to be done is done

  const auto percent_of_a_core = [](const std::vector<pid_t>& processes, double seconds, double before_s) {
    return (processor_seconds(processes) - before_s) / seconds * 100;
  };
  const double idle_before_s = processor_seconds(idle);
  double seconds = 0;
  double done = 0;
  for (const Outcome& outcome : run_interval(crowd, busy, timed(row.order, bench.settings.interval_s), seconds)) done += outcome.done;
  bench.report("crowd512.idle_clients", "% of a core", {percent_of_a_core(idle, seconds, idle_before_s)});
  bench.report("crowd512.busy", "1/s", {done / seconds});

  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  if (!broker.empty()) {
    std::vector<double> values;
    for (int i = 0; i < bench.settings.repeats; ++i) {
      const double before_s = processor_seconds(broker);
      const std::int64_t begin_ns = now_ns();
      std::this_thread::sleep_for(std::chrono::milliseconds(1000));
      values.push_back(percent_of_a_core(broker, static_cast<double>(now_ns() - begin_ns) / 1e9, before_s));
    }
    bench.report("crowd512.idle_broker", "% of a core", values);
  }
  const Order check{Task::check_only};
  for (unsigned i = 0; i < clients; ++i) crowd.order(i, timed(check, 0));
  double right = 0;
  for (unsigned i = 0; i < clients; ++i) right += crowd.wait_for(i).done;
  bench.report(row.name, row.unit, {right});
}

constexpr Order task(Task task, std::int64_t first = 0, std::int64_t second = 0, std::int64_t third = 0, std::int64_t fourth = 0) {
  return Order{task, 0, 0, {first, second, third, fourth}};
}
constexpr Order pace(std::int64_t pause_us) { return task(Task::paused_sync, pause_us * 1000); }
constexpr Order kernel(std::int64_t length_us) { return task(Task::waited_kernel, length_us * 1000); }
constexpr Order copy_pace(std::int64_t pause_us, bool is_pinned) { return task(Task::paused_copy, pause_us * 1000, 0, 4096, is_pinned ? 1 : 0); }
constexpr char kTooManyForMps[] = "not possible: NVIDIA MPS serves 48 clients at most";
constexpr char kTooMuchMemory[] = "not possible: half a GiB of device memory a process";
constexpr char kTimeSlices[] = "not run: time slices, as 12 clients show, and it takes long";
constexpr char kAbsolute[] = "not run: the target is a figure, and it takes long";
constexpr char kOursOnly[] = "not run: a matter of ours alone";

constexpr Row kRows[] = {
    {"launch-call", "cuLaunchKernel call", latency, 1, task(Task::launch_call), "us", nullptr, nullptr},
    {"sync1", "launch + synchronisation, 1 client", latency, 1, task(Task::launch_sync, 1), "us", nullptr, nullptr},
    {"burst8", "8 launches + synchronisation, 1 client", latency, 1, task(Task::launch_sync, 8), "us", nullptr, nullptr},
    {"memory1", "GPU memory, 1 client", device_memory, 1, {}, "GiB", nullptr, nullptr},
    {"alloc-64k", "cuMemAlloc + cuMemFree of 64 KiB", latency, 1, task(Task::allocate, 64 << 10), "us", nullptr, nullptr},
    {"alloc-2m", "cuMemAlloc + cuMemFree of 2 MiB", latency, 1, task(Task::allocate, 2 << 20), "us", nullptr, nullptr},
    {"htod-4k", "4 KiB pageable to device", latency, 1, task(Task::copy_small, 4096, 0, 0), "us", nullptr, nullptr},
    {"dtoh-4k", "4 KiB pageable to host", latency, 1, task(Task::copy_small, 4096, 1, 0), "us", nullptr, nullptr},
    {"htod-4k-pinned", "4 KiB pinned to device", latency, 1, task(Task::copy_small, 4096, 0, 1), "us", nullptr, nullptr},
    {"dtoh-4k-pinned", "4 KiB pinned to host", latency, 1, task(Task::copy_small, 4096, 1, 1), "us", nullptr, nullptr},
    {"pace-50us", "launch + synchronisation after a pause of 50 us", paced, 1, pace(50), "us", nullptr, nullptr},
    {"pace-200us", "launch + synchronisation after a pause of 200 us", paced, 1, pace(200), "us", nullptr, nullptr},
    {"pace-1ms", "launch + synchronisation after a pause of 1 ms", paced, 1, pace(1'000), "us", nullptr, nullptr},
    {"pace-10ms", "launch + synchronisation after a pause of 10 ms", paced, 1, pace(10'000), "us", nullptr, nullptr},
    {"pace-100ms", "launch + synchronisation after a pause of 100 ms", paced, 1, pace(100'000), "us", nullptr, nullptr},
    {"pace-50us-busy", "the same with pauses of 50 us, all cores busy", paced_beside_spinners, 1, pace(50), "us", nullptr, nullptr},
    {"pace-200us-busy", "the same with pauses of 200 us, all cores busy", paced_beside_spinners, 1, pace(200), "us", nullptr, nullptr},
    {"pace-1ms-busy", "the same with pauses of 1 ms, all cores busy", paced_beside_spinners, 1, pace(1'000), "us", nullptr, nullptr},
    {"pace-10ms-busy", "the same with pauses of 10 ms, all cores busy", paced_beside_spinners, 1, pace(10'000), "us", nullptr, nullptr},
    {"pace-50us-2cores", "the same with pauses of 50 us, everybody on two cores", paced_on_two_cores, 1, pace(50), "us", nullptr, nullptr},
    {"pace-200us-2cores", "the same with pauses of 200 us, everybody on two cores", paced_on_two_cores, 1, pace(200), "us", nullptr, nullptr},
    {"pace-1ms-2cores", "the same with pauses of 1 ms, everybody on two cores", paced_on_two_cores, 1, pace(1'000), "us", nullptr, nullptr},
    {"pace-10ms-2cores", "the same with pauses of 10 ms, everybody on two cores", paced_on_two_cores, 1, pace(10'000), "us", nullptr, nullptr},
    {"kernel-100us", "launch + synchronisation of a kernel of 100 us, beyond its own time", paced, 1, kernel(100), "us", nullptr, nullptr},
    {"kernel-1ms", "launch + synchronisation of a kernel of 1 ms, beyond its own time", paced, 1, kernel(1'000), "us", nullptr, nullptr},
    {"kernel-10ms", "launch + synchronisation of a kernel of 10 ms, beyond its own time", paced, 1, kernel(10'000), "us", nullptr, nullptr},
    {"kernels4-1ms", "the same of 1 ms, 4 clients", paced, 4, kernel(1'000), "us", nullptr, nullptr},
    {"kernels8-1ms", "the same of 1 ms, 8 clients", paced, 8, kernel(1'000), "us", nullptr, nullptr},
    {"dtoh-4k-200us", "4 KiB pageable to host after a pause of 200 us", paced, 1, copy_pace(200, false), "us", nullptr, nullptr},
    {"dtoh-4k-1ms", "4 KiB pageable to host after a pause of 1 ms", paced, 1, copy_pace(1'000, false), "us", nullptr, nullptr},
    {"dtoh-4k-10ms", "4 KiB pageable to host after a pause of 10 ms", paced, 1, copy_pace(10'000, false), "us", nullptr, nullptr},
    {"dtoh-4k-pinned-200us", "4 KiB pinned to host after a pause of 200 us", paced, 1, copy_pace(200, true), "us", nullptr, nullptr},
    {"dtoh-4k-pinned-1ms", "4 KiB pinned to host after a pause of 1 ms", paced, 1, copy_pace(1'000, true), "us", nullptr, nullptr},
    {"dtoh-4k-pinned-10ms", "4 KiB pinned to host after a pause of 10 ms", paced, 1, copy_pace(10'000, true), "us", nullptr, nullptr},
    {"upload-steps", "steps of 64 KiB pinned to device, 3 kernels of 20 us, an event; every 4th waits", rate, 1,
     task(Task::upload_steps, 64 << 10, 20'000), "1/s", nullptr, nullptr},
    {"storm1", "dependent launches, 1 client", rate, 1, task(Task::storm), "1/s", nullptr, nullptr},
    {"clusters1", "dependent launches, every other one in a cluster, 1 client", rate, 1, task(Task::cluster_storm), "1/s", nullptr, nullptr},
    {"storm2", "dependent launches, 2 clients", rate, 2, task(Task::storm), "1/s", nullptr, nullptr},
    {"storm4", "dependent launches, 4 clients", rate, 4, task(Task::storm), "1/s", nullptr, nullptr},
    {"storm8", "dependent launches, 8 clients", rate, 8, task(Task::storm), "1/s", nullptr, nullptr},
    {"clusters8", "dependent launches, every other one in a cluster, 8 clients", rate, 8, task(Task::cluster_storm), "1/s", nullptr, nullptr},
    {"sync8", "launch + synchronisation, total of 8 clients", rate, 8, task(Task::launch_sync, 1), "1/s", nullptr, nullptr},
    {"pace8-1ms", "launch + synchronisation after pauses of 1 ms, 8 clients", paced, 8, pace(1'000), "us", nullptr, nullptr},
    {"memory12", "GPU memory, 12 clients", device_memory, 12, {}, "GiB", nullptr, nullptr},
    {"blocks12", "8-block kernels, 12 clients", rate, 12, task(Task::occupy, 8, 128), "1/s", nullptr, nullptr},
    {"blocks12-wait", "8-block kernels, a wait every 100, 12 clients", rate, 12, task(Task::occupy, 8, 256, 0, 100), "1/s", nullptr, nullptr},
    {"storm14", "dependent launches, 14 clients", rate, 14, task(Task::storm), "1/s", nullptr, nullptr},
    {"sync14", "launch + synchronisation, total of 14 clients", rate, 14, task(Task::launch_sync, 1), "1/s", nullptr, nullptr},
    {"storm28", "dependent launches, 28 clients", rate, 28, task(Task::storm), "1/s", nullptr, nullptr},
    {"storm46", "dependent launches, 46 clients", rate, 46, task(Task::storm), "1/s", nullptr, nullptr},
    {"blocks46", "8-block kernels, 46 clients", rate, 46, task(Task::occupy, 8, 128), "1/s", kTimeSlices, nullptr},
    {"blocks46-wait", "8-block kernels, a wait every 100, 46 clients", rate, 46, task(Task::occupy, 8, 256, 0, 100), "1/s", kTimeSlices, nullptr},
    {"memory48", "GPU memory, 48 clients", device_memory, 48, {}, "GiB", nullptr, nullptr},
    {"memory128", "GPU memory, 128 clients", device_memory, 128, {}, "GiB", kTooMuchMemory, kTooManyForMps},
    {"memory256", "GPU memory, 256 clients", device_memory, 256, {}, "GiB", kTooMuchMemory, kTooManyForMps},
    {"crowd512", "512 clients attached, 64 busy: clients with right results", many, 512, task(Task::launch_sync, 1), "clients", kTooMuchMemory,
     kTooManyForMps},
    {"htod-pageable", "1 GiB pageable to device", copy_rate, 1, task(Task::copy_large, 0, 0, 0), "GB/s", nullptr, nullptr},
    {"dtoh-pageable", "1 GiB pageable to host", copy_rate, 1, task(Task::copy_large, 0, 1, 0), "GB/s", nullptr, nullptr},
    {"htod-pinned", "1 GiB pinned to device", copy_rate, 1, task(Task::copy_large, 0, 0, 1), "GB/s", nullptr, nullptr},
    {"dtoh-pinned", "1 GiB pinned to host", copy_rate, 1, task(Task::copy_large, 0, 1, 1), "GB/s", nullptr, nullptr},
    {"flood", "a client flooding launches beside launch + synchronisation", flood, 2, {}, "us", nullptr, nullptr},
    {"sync8-first", "launch + synchronisation, total of 8 fresh clients in their first 0.1 s", first_moments, 8, task(Task::launch_sync, 1), "1/s",
     nullptr, nullptr},
    {"sync14-first", "launch + synchronisation, total of 14 fresh clients in their first 0.1 s", first_moments, 14, task(Task::launch_sync, 1), "1/s",
     nullptr, nullptr},
    {"standing14", "14 fresh clients, 50,000 launches each", standing_start, 14, task(Task::storm), "1/s", nullptr, nullptr},
    {"start1", "process start to first launch done", start, 1, {}, "ms", nullptr, nullptr},
    {"start64", "64 process starts at once, to the last first launch done", start, 64, {}, "ms", kAbsolute, kTooManyForMps},
    {"neighbours", "A 250 ms kernels, C module rounds, newcomers; B launch + synchronisation", neighbours, 4, {}, "us", nullptr, nullptr},
    {"second", "second of two identical programs, beside 250 ms kernels", second_of_two, 3, {}, "ms", nullptr, nullptr},
    {"endless", "A a never-ending kernel; newcomers with images of their own", endless, 4, {}, "ms", nullptr, nullptr},
    {"fault", "fault of one client to a bystander's launch done", fault, 2, {}, "ms", kOursOnly, kOursOnly},
};

}  // namespace

const char* side_name(Side side) {
  switch (side) {
    case Side::native: return "native";
    case Side::mps: return "mps";
    case Side::ours: return "ours";
  }
  return "?";
}

Order timed(Order order, double seconds) {
  order.begin_ns = now_ns() + 30'000'000;
  order.end_ns = order.begin_ns + static_cast<std::int64_t>(seconds * 1e9);
  return order;
}

std::vector<Outcome> run_interval(Crowd& crowd, unsigned clients, const Order& order, double& seconds) {
  for (unsigned i = 0; i < clients; ++i) crowd.order(i, order);
  std::vector<Outcome> outcomes;
  std::int64_t last_ns = order.begin_ns + 1;
  for (unsigned i = 0; i < clients; ++i) {
    outcomes.push_back(crowd.wait_for(i));
    last_ns = std::max(last_ns, outcomes.back().last_ns);
  }
  seconds = static_cast<double>(last_ns - order.begin_ns) / 1e9;
  return outcomes;
}

bool is_for_two_cores(const Row& row) { return std::string_view(row.name).ends_with("-2cores"); }

std::span<const Row> rows() { return kRows; }

Crowd& Bench::crowd(unsigned clients) {
  if (crowd_ == nullptr || crowd_->size() > clients) {
    crowd_.reset();
    crowd_ = std::make_unique<Crowd>(settings.environment);
  }
  while (crowd_->size() < clients) crowd_->start();
  crowd_->wait_ready(kReadyLimitS);
  return *crowd_;
}

void Bench::leave_out(const Row& row, const char* reason) {
  std::printf("%-7s %-28s %s\n", side_name(settings.side), row.name, reason);
  std::fflush(stdout);
  figures[row.name] = Figure{row.unit, {}, reason};
}

void Bench::report(const std::string& key, const char* unit, std::vector<double> values) {
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  std::printf("%-7s %-28s %14.3f %-12s (%.3f to %.3f)\n", side_name(settings.side), key.c_str(), sorted[sorted.size() / 2], unit, sorted.front(),
              sorted.back());
  std::fflush(stdout);
  figures[key] = Figure{unit, std::move(values), {}};
}

}  // namespace mpsshim::bench
