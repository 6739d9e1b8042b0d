// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/process/executor.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include <unistd.h>

#include "broker/executor/green/session_share.hpp"
#include "broker/executor/memory/application_memory.hpp"
#include "broker/executor/process/device_facts.hpp"
#include "broker/executor/process/stress_thread.hpp"
#include "broker/executor/sessions/session.hpp"
#include "broker/log.hpp"
#include "broker/rights/rights.hpp"
#include "proto/provision.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kHelperThreads = 2;
constexpr std::size_t kDeviceHeapBytes = 256u << 20;
constexpr std::size_t kDeviceHeapShare = 128;  // of the device's memory, at most
constexpr std::chrono::milliseconds kDevicePause{2};

long long milliseconds(Clock::duration time) { return std::chrono::duration_cast<std::chrono::milliseconds>(time).count(); }

unsigned worker_count(unsigned asked) {
  if (asked != 0) return asked;
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  return std::clamp(cores / 2, 1u, 8u);
}

WindowLimits window_limits(const ExecutorOptions& options) {
  WindowLimits limits;
  limits.give_up = std::chrono::seconds(options.patience_s);
  return limits;
}

}  // namespace

Executor::Executor(const ExecutorOptions& options) : options_(options), link_(proto::Socket(proto::FileDescriptor(kExecutorControlFd))) {}

Executor::~Executor() = default;

int Executor::run() {
  publish();
  CUresult result = load_driver();
  if (result == CUDA_SUCCESS && options_.is_cold) {
    link_.send(message::StandingBy{});
    if (!link_.await(ExecutorMessage::make_context)) _exit(0);
  }
  if (result == CUDA_SUCCESS) result = start();
  if (result == CUDA_SUCCESS && !options_.keeps_rights && !wall_in_executor()) {
    log_warning("No system calls can be refused to this executor ({}): what it is made to do by a client is bounded by its user's rights alone",
                std::strerror(errno));
  }
  message::Ready ready{.status = static_cast<std::uint32_t>(result)};
  if (result == CUDA_SUCCESS) count_parts(*driver_, ready.chunks);
  std::snprintf(ready.text, sizeof ready.text, "%s", refusal_.c_str());
  link_.send(ready);
  if (result != CUDA_SUCCESS) return 2;
  link_.run([this](ReceivedMessage& received) { handle(received); });
  proto::trace::finish();
  _exit(0);  // the driver goes with the process; waiting for kernels that may never end is not needed
}

// Before there are other threads. Without the table the executor works as well; nobody would notice that it hangs.
void Executor::publish() {
  calls_ = proto::Mapping::map(proto::FileDescriptor(kExecutorCallsFd), 0, sizeof(CallTable), proto::Access::read_write);
  if (!calls_) return log_error("The table of driver calls cannot be mapped: a call that never returns will not be noticed");
  publish_calls(*reinterpret_cast<CallTable*>(calls_.data()));
  note_crashes();
}

CUresult Executor::load_driver() {
  const Clock::time_point began = Clock::now();
  driver_ = Driver::load(options_.driver_path, refusal_);
  if (!driver_) {
    log_error("{}", refusal_);
    return CUDA_ERROR_NOT_FOUND;
  }
  const Clock::time_point loaded = Clock::now();
  const CUresult result = (*driver_)->cuInit(0);
  log_info("Driver {}: library {} ms, cuInit {} ms", options_.driver_path, milliseconds(loaded - began), milliseconds(Clock::now() - loaded));
  if (result != CUDA_SUCCESS) {
    refusal_ = fmt::format("cuInit returned {}", driver_->describe(result));
    log_error("The driver {} cannot be initialised: {}", options_.driver_path, driver_->describe(result));
  }
  return result;
}

CUresult Executor::start() {
  const Clock::time_point began = Clock::now();
  CUresult result = make_context();
  const Clock::time_point context_made = Clock::now();
  if (result == CUDA_SUCCESS) result = register_progress();
  if (result != CUDA_SUCCESS) {
    refusal_ = fmt::format("no context can be made on device {}: {}", options_.device, driver_->describe(result));
    log_error("The context could not be made on device {} of {}: {}", options_.device, options_.driver_path, driver_->describe(result));
    return result;
  }
  facts_ = proto::Mapping::map(proto::FileDescriptor(kExecutorFactsFd), 0, sizeof(proto::DriverFacts), proto::Access::read_write);
  if (!facts_) return CUDA_ERROR_OUT_OF_MEMORY;
  result = collect_facts(*driver_, device_, context_, *reinterpret_cast<proto::DriverFacts*>(facts_.data()));
  if (result != CUDA_SUCCESS) return result;

  enlarge_heap();
  const unsigned workers = worker_count(options_.workers);
  const auto enter_thread = [this] { (*driver_)->cuCtxSetCurrent(context_); };
  const auto& progress = *reinterpret_cast<const ProgressTable*>(progress_memory_.data());
  faults_ = std::make_unique<FaultReporter>(*driver_, link_);
  window_ = std::make_unique<QuietWindow>(progress, workers, window_limits(options_), enter_thread);
  helpers_ = std::make_unique<HelperPool>(kHelperThreads, enter_thread);
  modules_ = std::make_unique<ModuleStore>(*driver_, link_, *window_, *faults_, device_, std::size_t{options_.module_cache_mib} << 20);
  auto& progress_file = *reinterpret_cast<ProgressFile*>(progress_memory_.data());
  parts_ = std::make_unique<ExecutorParts>(ExecutorInput{
      *driver_, link_, *window_, *modules_, *faults_, *helpers_, context_, device_, progress_file.table, progress_address_, progress_file.names,
      options_.connections, std::min(workers - 1, options_.side_contexts), options_.stress, map_counts(), options_.latency});
  result = parts_->start();
  if (result != CUDA_SUCCESS) return result;
  open_assertions();
  if (options_.never_compiles) modules_->linker().never_here();
  parts_->shares.make_ready(proto::parse_percentages(options_.ready_percentages).value_or(std::vector<std::uint32_t>()));
  parts_->open_warm_stream();
  workers_ = std::make_unique<WorkerSet>(*parts_, workers);
  window_->set_on_open([this] { workers_->wake_all(); });
  window_->set_used_streams([this] { return parts_->progress.used(); });
  window_->set_on_starved([this](const QuietWindow::Starving& starving) { tell_starved(starving); });
  // What kernels have printed, and what has failed in an assertion, is written by the driver when somebody synchronises.
  faults_->set_last_words([this](CUresult error) {
    if (error == CUDA_ERROR_ASSERT) (*driver_)->cuCtxSynchronize();
    std::fflush(stderr);
    parts_->output.deliver_last();
  });
  watch_ = std::make_unique<FaultWatch>(*parts_, enter_thread);
  parts_->warm_up();
  log_info("Executor of device {} ready: {} workers, driver {}; context {} ms, the rest {} ms", options_.device, workers, options_.driver_path,
           milliseconds(context_made - began), milliseconds(Clock::now() - context_made));
  return CUDA_SUCCESS;
}

// At the same place of every life, as all that takes device memory.
void Executor::open_assertions() {
  if (!options_.opens_assertions) return;
  int major = 0;
  int minor = 0;
  (*driver_)->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device_);
  (*driver_)->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device_);
  assertions_ = std::make_unique<Assertions>(*driver_, link_, *faults_, *helpers_);
  if (assertions_->open(static_cast<unsigned>(major * 10 + minor), parts_->issue_lock)) modules_->set_assertions(*assertions_);
}

// The context of the life before may still be going when the GPU takes one process at a time.
CUresult Executor::make_context() {
  const Driver& driver = *driver_;
  const Clock::time_point began = Clock::now();
  CUresult result = driver->cuDeviceGet(&device_, static_cast<int>(options_.device));
  if (result != CUDA_SUCCESS) return result;
  unsigned refusals = 0;
  while ((result = driver->cuDevicePrimaryCtxRetain(&context_, device_)) == CUDA_ERROR_DEVICE_UNAVAILABLE) {
    ++refusals;
    if (Clock::now() - began >= std::chrono::milliseconds(options_.device_patience_ms)) break;
    std::this_thread::sleep_for(kDevicePause);
  }
  if (refusals > 0) {
    log_info("The driver refused a context {} times in {} ms, because another process has the device for itself: {}", refusals,
             milliseconds(Clock::now() - began), result == CUDA_SUCCESS ? "then it had gone" : "it is still there");
  }
  if (result == CUDA_SUCCESS) result = driver->cuCtxSetCurrent(context_);
  return result;
}

// Of the device, for malloc() in kernels. The driver changes it no more once an image is loaded whose code calls that, so a later client could not
// have what it asks for; the driver takes the memory only then.
void Executor::enlarge_heap() {
  std::size_t total_bytes = 0;
  (*driver_)->cuDeviceTotalMem_v2(&total_bytes, device_);
  const std::size_t wanted_bytes = std::min(kDeviceHeapBytes, total_bytes / kDeviceHeapShare);
  std::size_t bytes = 0;
  CUresult result = (*driver_)->cuCtxGetLimit(&bytes, CU_LIMIT_MALLOC_HEAP_SIZE);
  if (result == CUDA_SUCCESS && bytes < wanted_bytes) result = (*driver_)->cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, wanted_bytes);
  if (result != CUDA_SUCCESS) log_warning("The heap of the device stays at {} bytes: {}", bytes, driver_->describe(result));
}

CUresult Executor::register_progress() {
  progress_memory_ = proto::Mapping::map(proto::FileDescriptor(kExecutorProgressFd), 0, sizeof(ProgressFile), proto::Access::read_write);
  if (!progress_memory_) return CUDA_ERROR_OUT_OF_MEMORY;
  bool is_registered = false;
  return OwnMemory::enroll(*driver_, {progress_memory_.data(), sizeof(ProgressTable)}, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE,
                           progress_address_, is_registered);
}

// Without it nothing is counted, and all else is as ever.
SessionCountsFile* Executor::map_counts() {
  counts_ = proto::Mapping::map(proto::FileDescriptor(kExecutorCountsFd), 0, sizeof(SessionCountsFile), proto::Access::read_write);
  if (!counts_) log_warning("What sessions do cannot be counted ({}): ps shows neither launches nor GPU time", std::strerror(errno));
  return counts_ ? reinterpret_cast<SessionCountsFile*>(counts_.data()) : nullptr;
}

void Executor::handle(ReceivedMessage& received) {
  switch (received.id()) {
    case ExecutorMessage::session_open: return open_session(received.take<message::SessionOpen>());
    case ExecutorMessage::session_close: return close_session(received.session());
    case ExecutorMessage::quiesce:
      parts_->draining.store(true, std::memory_order_relaxed);
      window_->shut();
      return workers_->after_this_turn([this] { tell_end(message::Quiesced{}); });
    case ExecutorMessage::session_pause: return pause_session(received.read<message::SessionPause>());
    case ExecutorMessage::stay: return workers_->resume(received.session());
    case ExecutorMessage::heap_given: return workers_->give_heap(received.session());
    case ExecutorMessage::session_provision: return provision_session(received.read<message::SessionProvision>());
    case ExecutorMessage::lease_restore:
    case ExecutorMessage::chunk_restore:
    case ExecutorMessage::variables_restore:
    case ExecutorMessage::event_times_restore:
    case ExecutorMessage::segment_restore: restores_[received.session()].push_back(std::move(received)); return;
    case ExecutorMessage::load_replay: return replay(received.take<message::LoadReplay>());
    case ExecutorMessage::copy_reserve: return reserve(received.read<message::CopyReserve>());
    case ExecutorMessage::variables_check: return check_variables(received.take<message::VariablesCheck>());
    case ExecutorMessage::variables_forget: return modules_->forget_owner(received.session());
    case ExecutorMessage::make_context: return;  // it has one
    default: log_error("{} from the control process is not for the executor", received.name());
  }
}

void Executor::replay(const Received<message::LoadReplay>& received) {
  const auto& [entry, fds] = received;
  const ScopedMark mark(0, "cuModuleLoadData", Patience::patient);
  switch (entry.kind) {
    case LogKind::unload: return modules_->replay_unload(entry.object, entry.copy);
    case LogKind::stream: return static_cast<void>(parts_->streams.add(static_cast<int>(entry.object)));
    case LogKind::graph: return parts_->make_graph_again(entry.object);
    case LogKind::side_contexts: return parts_->sides.make_up_to(entry.object);
    case LogKind::load: break;
  }
  if (fds.image.valid() && modules_->replay(entry.object, entry.copy, entry.session, fds.image) != CUDA_SUCCESS) {
    log_error("Image {} of an earlier executor is lost; its clients will be told", entry.object);
  }
}

void Executor::reserve(const message::CopyReserve& copy) { modules_->reserve(copy.image, copy.copy, copy.session); }

// Behind the replays it is about, which are made as they come.
void Executor::check_variables(const Received<message::VariablesCheck>& received) {
  const auto& [check, fds] = received;
  const proto::Mapping file = proto::Mapping::map(fds.variables, 0, sizeof(KeptVariablesFile), proto::Access::read_only);
  const auto* const kept = reinterpret_cast<const KeptVariablesFile*>(file.data());
  const bool are_here = file && modules_->has_kept(table_of(*kept), kept->contents);
  const CUresult result = are_here ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
  link_.send(message::VariablesChecked{.session = check.session, .order = check.order, .status = static_cast<std::uint32_t>(result)});
}

// Whether it can go elsewhere is asked first: another executor is started for one that can.
void Executor::tell_starved(const QuietWindow::Starving& starving) {
  message::Starved starved{.session = starving.session, .blocker = starving.blocker};
  set_text(starved.text, starving.what);
  workers_->ask_whether_movable(starving.session, [this, starved](bool is_movable) mutable {
    starved.flags = is_movable ? 0 : kStarvesInPlace;
    link_.send(starved);
  });
}

}  // namespace mpsshim::broker
