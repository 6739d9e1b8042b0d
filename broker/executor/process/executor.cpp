// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/process/executor.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include <unistd.h>

#include "broker/executor/memory/application_memory.hpp"
#include "broker/executor/process/device_facts.hpp"
#include "broker/executor/process/stress_thread.hpp"
#include "broker/executor/sessions/session.hpp"
#include "broker/log.hpp"
#include "broker/rights/rights.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kHelperThreads = 2;
constexpr std::size_t kDeviceHeapBytes = 256u << 20;
constexpr std::size_t kDeviceHeapShare = 128;  // of the device's memory, at most
constexpr std::chrono::milliseconds kDevicePause{2};

long long milliseconds(Clock::duration time) { return std::chrono::duration_cast<std::chrono::milliseconds>(time).count(); }

long long elapsed_us(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration_cast<std::chrono::microseconds>(to - from).count();
}

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
    tell(ExecutorMessage::standing_by, result);
    if (!link_.await(ExecutorMessage::make_context)) _exit(0);
  }
  if (result == CUDA_SUCCESS) result = start();
  if (result == CUDA_SUCCESS && !options_.keeps_rights && !wall_in_executor()) {
    log_warning("No system calls can be refused to this executor ({}): what it is made to do by a client is bounded by its user's rights alone",
                std::strerror(errno));
  }
  tell(ExecutorMessage::ready, result);
  if (result != CUDA_SUCCESS) return 2;
  link_.run([this](const ExecutorPacket& packet, proto::ReceivedFds& fds) { handle(packet, fds); });
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
  std::string error;
  driver_ = Driver::load(options_.driver_path, error);
  if (!driver_) {
    log_error("{}", error);
    return CUDA_ERROR_NOT_FOUND;
  }
  const Clock::time_point loaded = Clock::now();
  const CUresult result = (*driver_)->cuInit(0);
  log_info("Driver {}: library {} ms, cuInit {} ms", options_.driver_path, milliseconds(loaded - began), milliseconds(Clock::now() - loaded));
  if (result != CUDA_SUCCESS) log_error("The driver {} cannot be initialised: {}", options_.driver_path, driver_->describe(result));
  return result;
}

CUresult Executor::start() {
  const Clock::time_point began = Clock::now();
  CUresult result = make_context();
  const Clock::time_point context_made = Clock::now();
  if (result == CUDA_SUCCESS) result = register_progress();
  if (result != CUDA_SUCCESS) {
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
  parts_ = std::make_unique<ExecutorParts>(ExecutorInput{*driver_, link_, *window_, *modules_, *faults_, *helpers_, context_, device_,
                                                              progress_file.table, progress_address_, progress_file.names, options_.connections,
                                                              std::min(workers - 1, options_.side_contexts), options_.stress});
  result = parts_->start();
  if (result != CUDA_SUCCESS) return result;
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

void Executor::handle(const ExecutorPacket& packet, proto::ReceivedFds& fds) {
  switch (packet.header.type) {
    case ExecutorMessage::session_open: return open_session(packet, fds);
    case ExecutorMessage::session_close: return close_session(packet.header.session);
    case ExecutorMessage::quiesce:
      parts_->draining.store(true, std::memory_order_relaxed);
      window_->shut();
      return workers_->after_this_turn([this] { tell(ExecutorMessage::quiesced, CUDA_SUCCESS); });
    case ExecutorMessage::session_pause: return pause_session(packet);
    case ExecutorMessage::stay: return workers_->resume(packet.header.session);
    case ExecutorMessage::lease_restore: restores_[packet.header.session].push_back({packet, {}}); return;
    case ExecutorMessage::chunk_restore:
    case ExecutorMessage::variables_restore:
    case ExecutorMessage::event_times_restore:
    case ExecutorMessage::segment_restore:
      if (fds.count == 1) restores_[packet.header.session].push_back({packet, std::move(fds.fds[0])});
      return;
    case ExecutorMessage::load_replay: return replay(packet, fds);
    case ExecutorMessage::variables_check: return check_variables(packet, fds);
    case ExecutorMessage::variables_forget: return modules_->forget_owner(packet.header.session);
    case ExecutorMessage::make_context: return;  // it has one
    default: log_error("Message {} from the control process is not known to the executor", static_cast<unsigned>(packet.header.type));
  }
}

void Executor::replay(const ExecutorPacket& packet, proto::ReceivedFds& fds) {
  const ScopedMark mark(0, "cuModuleLoadData", Patience::patient);
  switch (static_cast<LogKind>(packet.purpose)) {
    case LogKind::unload: return modules_->replay_unload(packet.object, packet.address);
    case LogKind::stream: return static_cast<void>(parts_->streams.add(static_cast<int>(packet.object)));
    case LogKind::graph: return parts_->make_graph_again(packet.object);
    case LogKind::side_contexts: return parts_->sides.make_up_to(packet.object);
    case LogKind::load: break;
  }
  if (fds.count == 1 && modules_->replay(packet.object, packet.address, packet.header.session, fds.fds[0]) != CUDA_SUCCESS) {
    log_error("Image {} of an earlier executor is lost; its clients will be told", packet.object);
  }
}

// Behind the replays it is about, which are made as they come.
void Executor::check_variables(const ExecutorPacket& packet, const proto::ReceivedFds& fds) {
  proto::Mapping file;
  if (fds.count == 1) file = proto::Mapping::map(fds.fds[0], 0, sizeof(KeptVariablesFile), proto::Access::read_only);
  const bool are_here = file && modules_->has_kept(table_of(*reinterpret_cast<const KeptVariablesFile*>(file.data())));
  ExecutorPacket answer;
  answer.header = {ExecutorMessage::variables_checked, static_cast<std::uint32_t>(are_here ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND), packet.header.session};
  answer.object = packet.object;
  link_.send(answer);
}

void Executor::open_session(const ExecutorPacket& packet, proto::ReceivedFds& fds) {
  CUresult result = CUDA_SUCCESS;
  const ScopedMark mark(packet.header.session, "opening a session");
  const auto pieces = restores_.extract(packet.header.session);
  const Clock::time_point began = Clock::now();
  std::shared_ptr<Session> session = Session::open(*parts_, packet, fds, result);
  const Clock::time_point opened = Clock::now();
  if (session && !pieces.empty()) {
    result = restore(*session, pieces.mapped());
    log_info("Session {}: opened in {} us, {} pieces of its memory brought back in {} us", packet.header.session, elapsed_us(began, opened),
             pieces.mapped().size(), elapsed_us(opened, Clock::now()));
  }
  if (!stress_) stress_ = std::make_unique<StressThread>(*parts_);
  if (session && result == CUDA_SUCCESS) workers_->add(session);
  if (session && result != CUDA_SUCCESS) Session::discard(session);
  if (result != CUDA_SUCCESS)
    log_error("Session {} (pid {}) could not be opened: {}", packet.header.session, packet.client_pid, driver_->describe(result));
  tell(ExecutorMessage::session_opened, result, packet.header.session);
}

CUresult Executor::restore(Session& session, const std::vector<Restore>& pieces) {
  for (const Restore& piece : pieces) {
    const ScopedMark mark(session.id(), "restoring memory", Patience::patient);
    CUresult result = CUDA_SUCCESS;
    if (piece.packet.header.type == ExecutorMessage::lease_restore) {
      result = session.memory().add_lease(piece.packet.device_lease);
    } else if (piece.packet.header.type == ExecutorMessage::chunk_restore) {
      const std::uint64_t object = piece.packet.object;
      result = ApplicationMemory::is_piece(object)
                   ? session.memory().application().adopt(proto::MemoryId{object}, piece.packet.size_bytes, piece.file)
                   : session.memory().restore_chunk(object, piece.packet.size_bytes, piece.file.get());
    } else if (piece.packet.header.type == ExecutorMessage::variables_restore) {
      if (!session.variables().adopt(piece.file)) result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (piece.packet.header.type == ExecutorMessage::event_times_restore) {
      if (session.times().adopt(piece.file)) session.times().set_base(parts_->host_clock.base());
    } else {
      std::uint64_t device_address = 0;
      result = session.memory().segments().map(piece.packet.object, static_cast<proto::SegmentPurpose>(piece.packet.purpose), piece.packet.address,
                                               piece.packet.flags, piece.file, device_address);
      // The client goes by one address for host and device.
      const bool is_pinned = proto::has_own_address(static_cast<proto::SegmentPurpose>(piece.packet.purpose));
      if (result == CUDA_SUCCESS && is_pinned && device_address != piece.packet.address) result = CUDA_ERROR_MPS_SERVER_NOT_READY;
    }
    if (result != CUDA_SUCCESS) return faults_->check(result, piece.packet.header.session, "restoring a session's memory");
  }
  return CUDA_SUCCESS;
}

void Executor::close_session(std::uint64_t session) {
  restores_.erase(session);
  link_.forget_session(session);
  window_->cancel(session);  // what it still waits for would keep it from being taken down
  workers_->close(session, [this, session] { tell(ExecutorMessage::session_closed, CUDA_SUCCESS, session); });
}

void Executor::pause_session(const ExecutorPacket& packet) {
  const std::uint64_t session = packet.header.session;
  const auto answer = [this, session, order = packet.object, flags = packet.flags](CUresult result) {
    ExecutorPacket paused;
    paused.header = {ExecutorMessage::session_paused, static_cast<std::uint32_t>(result), session};
    paused.object = order;
    paused.flags = flags;
    link_.send(paused);
  };
  if ((packet.flags & kPauseToRest) != 0) return workers_->rest(session, (packet.flags & kPauseDespiteVariables) != 0, answer);
  workers_->pause(session, (packet.flags & kPauseWithoutVariables) != 0, answer);
}

// Whether it can go elsewhere is asked first: another executor is started for one that can.
void Executor::tell_starved(const QuietWindow::Starving& starving) {
  ExecutorPacket packet;
  packet.header = {ExecutorMessage::starved, 0, starving.session};
  packet.object = starving.blocker;
  std::strncpy(packet.text, starving.what, sizeof packet.text - 1);
  workers_->ask_whether_movable(starving.session, [this, packet](bool is_movable) mutable {
    packet.flags = is_movable ? 0 : kStarvesInPlace;
    link_.send(packet);
  });
}

void Executor::tell(ExecutorMessage type, CUresult status, std::uint64_t session) {
  ExecutorPacket packet;
  packet.header = {type, static_cast<std::uint32_t>(status), session};
  link_.send(packet);
}

}  // namespace mpsshim::broker
