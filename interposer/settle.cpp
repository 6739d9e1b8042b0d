// SPDX-License-Identifier: Apache-2.0
#include "interposer/settle.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gen/api_ids.hpp"
#include "gen/protocol_hash.hpp"
#include "interposer/asked_terms.hpp"
#include "interposer/channel/connection.hpp"
#include "interposer/channel/refusal.hpp"
#include "interposer/environment.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"
#include "interposer/log.hpp"
#include "interposer/passthrough.hpp"
#include "interposer/trace.hpp"
#include "proto/handshake.hpp"
#include "proto/mps_variables.hpp"
#include "proto/pipe_directory.hpp"
#include "proto/segment.hpp"
#include "proto/trace.hpp"

namespace mpsshim::interposer {

constinit ForkCleared fork_cleared{};

namespace {

// What the decision found. Inherited by children of fork(), which is how a child knows what its parent was.
struct Settled {
  ProcessState state = ProcessState::undecided;
  bool initialised = false;
  CUresult refusal = CUDA_ERROR_MPS_CONNECTION_FAILED;
  int driver_version = std::max(CUDA_VERSION, kNewestApiVersion);
  const proto::DriverFacts* facts = nullptr;  // in a mapping that children do not have
  const char* path = nullptr;                 // of the broker's socket; never freed
  std::atomic<Connection*> connections[kMaxSessions] = {};  // the first is that of the decision
};
constinit Settled settled;

// Kernels before 4.14 do not clear the page: then the child does it itself, except after a raw clone().
void watch_forks() {
  static bool watched = false;
  if (std::exchange(watched, true)) return;
  if (madvise(&fork_cleared, sizeof fork_cleared, MADV_WIPEONFORK) == 0) return;
  pthread_atfork(nullptr, nullptr, [] { fork_cleared.state.store(ProcessState::undecided, std::memory_order_relaxed); });
}

proto::FileDescriptor open_own_pidfd() { return proto::FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))); }

ProcessState refuse(CUresult error) {
  settled.refusal = error;
  return ProcessState::refused;
}

// False, with a line, if the facts are not what this release reads.
bool take_facts(const proto::FileDescriptor& file) {
  const auto size_bytes = proto::sealed_size(file);
  if (!size_bytes || *size_bytes < sizeof(proto::DriverFacts)) {
    log_line("The broker's device facts are not a sealed file of %zu bytes or more: use a broker of this release.", sizeof(proto::DriverFacts));
    return false;
  }
  static_assert(std::is_trivially_destructible_v<Settled>);
  auto* mapping = new proto::Mapping(proto::Mapping::map(file, 0, sizeof(proto::DriverFacts), proto::Access::read_only));  // never unmapped
  if (!*mapping) {
    log_line("The broker's device facts cannot be mapped (%s).", std::strerror(errno));
    return false;
  }
  const auto* facts = reinterpret_cast<const proto::DriverFacts*>(mapping->data());
  if (facts->size_bytes != sizeof(proto::DriverFacts) || facts->device_count > proto::kMaxDevices) {
    log_line("The broker's device facts have %u bytes and %u devices, this library reads %zu bytes: use a broker of this release.", facts->size_bytes,
             facts->device_count, sizeof(proto::DriverFacts));
    return false;
  }
  settled.facts = facts;
  settled.driver_version = facts->driver_version;
  return true;
}

CUresult say_hello(Connection& connection, proto::Received<proto::Welcome>& received) {
  const proto::FileDescriptor pidfd = open_own_pidfd();  // without one (old kernel, seccomp) the broker has the hang-up alone
  proto::Hello hello;
  hello.protocol_hash = proto::kProtocolHash;
  return connection.request(hello, received, {.self = pidfd.get()});
}

ProcessState greet(Connection& connection, const std::string& path) {
  proto::Received<proto::Welcome> received;
  const CUresult status = say_hello(connection, received);
  const proto::Welcome& welcome = received.message;
  if (const auto refusal = proto::agree({welcome.layout_major, welcome.layout_minor}, proto::kVersion);
      status == CUDA_ERROR_MPS_CONNECTION_FAILED && refusal != proto::Agreement::served) {
    log_line("The broker at %s speaks protocol %u.%u, for which this library's %u.%u is too %s: %s.", path.c_str(), welcome.layout_major,
             welcome.layout_minor, proto::kLayoutMajor, proto::kLayoutMinor, refusal == proto::Agreement::too_old ? "old" : "new",
             refusal == proto::Agreement::too_old ? "use the library of that release" : "install the newer mpsbroker and run mpsctl restart");
    return refuse(status);
  }
  if (status != CUDA_SUCCESS) {
    if (const char* why = connection.why_lost(); why != nullptr) {
      log_line("The broker at %s did not answer (%s): if it runs (`mpsctl get_server_list`), its log says why; start this program again.",
               path.c_str(), why);
    } else {
      tell_refusal(path, status, connection.peer_uid());
    }
    return refuse(status);
  }
  connection.greeted();
  if (proto::Version{welcome.layout_major, welcome.layout_minor} != proto::kVersion) {
    log_line("The broker at %s wants to speak protocol %u.%u to this library, which speaks %u.%u: use a broker of this release.", path.c_str(),
             welcome.layout_major, welcome.layout_minor, proto::kLayoutMajor, proto::kLayoutMinor);
    return refuse(CUDA_ERROR_MPS_CONNECTION_FAILED);
  }
  if (!take_facts(received.fds.facts)) return refuse(CUDA_ERROR_MPS_CONNECTION_FAILED);
  debug_line(DebugTopic::settle, "Attached to the broker at %s (driver %d, %u devices).", path.c_str(), settled.driver_version,
             settled.facts->device_count);
  return ProcessState::attached;
}

ProcessState go_without_broker() {
  const bool found = load_real_driver();
  debug_line(DebugTopic::settle, found ? "No broker: calls go to %s." : "No broker, and no real driver%s.", found ? real_driver_path() : "");
  return found ? ProcessState::pass_through : ProcessState::no_driver;
}

// Its loader is its own, and not the one that this library is linked with, which then knows of no object and gives none thread-local storage.
bool is_program_static() {
  bool is_empty = true;
  dl_iterate_phdr(
      [](dl_phdr_info*, std::size_t, void* empty) {
        *static_cast<bool*>(empty) = false;
        return 1;
      },
      &is_empty);
  return is_empty;
}

std::string socket_in(const std::string& directory) { return directory + '/' + proto::kClientSocketName; }

// Anybody may make a directory under /tmp: what listens where nobody has named a place must be this user's or root's.
bool is_trusted(const Connection& connection) { return connection.peer_uid() == geteuid() || connection.peer_uid() == 0; }

struct FoundBroker {
  Connection* connection = nullptr;         // lives as long as the process, also after destructors have run
  std::string path;                         // where it answers; else that of the first place, or of one that this user may not use
  int error = 0;                            // why it does not answer there
  uid_t stranger = static_cast<uid_t>(-1);  // whose it is, where it is somebody's who is not trusted
};

// A named directory is the user's word.
FoundBroker find_broker(const std::vector<std::string>& directories, bool is_named) {
  FoundBroker found;
  for (const std::string& directory : directories) {
    auto* connection = new Connection();
    std::string path = socket_in(directory);
    const bool answers = connection->open(path);
    const int error = errno;
    if (answers && (is_named || is_trusted(*connection))) return {connection, std::move(path), 0};
    // A place for the whole machine may have any user's broker, which is nothing to this one.
    const bool is_own = is_named || (directory != proto::kCompatiblePipeDirectory && directory != proto::kCompatibleRunDirectory);
    const bool is_news = found.path.empty() || (is_own && (answers || error == EACCES) && found.error == ENOENT);
    if (is_news) found = {nullptr, std::move(path), answers ? EACCES : error, answers ? connection->peer_uid() : static_cast<uid_t>(-1)};
    delete connection;
  }
  return found;
}

// In a directory that is not named, although another one is: "" if there is none.
std::string broker_elsewhere() {
  if (environment_value(Variable::pipe_directory).empty()) return "";
  const FoundBroker found = find_broker(unnamed_pipe_directories(), false);
  delete found.connection;
  return found.connection == nullptr ? "" : found.path.substr(0, found.path.rfind('/'));
}

ProcessState do_without(const FoundBroker& found) {
  if (found.stranger != static_cast<uid_t>(-1)) {
    log_line("The broker at %s belongs to user %u: name its directory in CUDA_MPS_PIPE_DIRECTORY if you trust it.", found.path.c_str(),
             found.stranger);
    return refuse(CUDA_ERROR_MPS_CONNECTION_FAILED);
  }
  const std::string elsewhere = broker_elsewhere();
  if (environment_switch(Variable::require)) {
    tell_absence(found.path, found.error, elsewhere);
    return refuse(CUDA_ERROR_MPS_CONNECTION_FAILED);
  }
  if (!elsewhere.empty()) tell_elsewhere(found.path, elsewhere);
  return go_without_broker();
}

ProcessState look_for_broker() {
  if (environment_switch(Variable::disable)) return go_without_broker();
  const FoundBroker found = find_broker(pipe_directories(), !environment_value(Variable::pipe_directory).empty());
  if (found.connection == nullptr) return do_without(found);
  Connection* const connection = found.connection;
  const std::string& path = found.path;
  if (is_program_static()) {
    delete connection;
    log_line(
        "This program is linked statically, and its loader gives libraries no thread-local storage: link it dynamically to use %s, or set "
        "MPSSHIM_DISABLE=1.",
        path.c_str());
    return refuse(CUDA_ERROR_NOT_SUPPORTED);
  }
  settled.path = strdup(path.c_str());
  settled.connections[0].store(connection, std::memory_order_release);
  return greet(*connection, path);
}

// In a child of fork(): what its parent was decides. Nothing of the parent's session is touched.
ProcessState settle_child() {
  switch (settled.state) {
    case ProcessState::ready:
    case ProcessState::ready_traced:
    case ProcessState::attached:
      if (settled.initialised) return ProcessState::forked;
      settled.connections[0].load(std::memory_order_relaxed)->abandon_after_fork();
      settled.connections[0].store(nullptr, std::memory_order_relaxed);
      settled.facts = nullptr;
      return look_for_broker();
    case ProcessState::undecided:
    case ProcessState::pass_through:  // the real driver knows by itself
    case ProcessState::no_driver:
    case ProcessState::refused:
    case ProcessState::forked: return settled.state;
  }
  return settled.state;
}

// Whoever cares about the order has it from the broker, once in its life.
CUresult settle_devices() {
  if (!follows_device_order()) return initialise_devices();
  proto::DeviceOrderTold told;
  if (const CUresult error = connection().ask(proto::DeviceOrderAsk{}, told); error != CUDA_SUCCESS) return error;
  return initialise_devices(std::span(told.device).first(std::min<std::size_t>(told.count, std::size(told.device))));
}

// A limit that somebody relies on and that nothing keeps is worse than none.
void tell_unenforced() {
  char** entry = environ;
  const std::string names =
      proto::unenforced_variables([&] { return entry == nullptr || *entry == nullptr ? std::string_view() : std::string_view(*entry++); });
  if (names.empty()) return;
  log_line("%s %s set and without effect: mpsshim does not enforce that yet.", names.c_str(), names.find(',') == std::string::npos ? "is" : "are");
}

}  // namespace

ProcessState settle() {
  const std::lock_guard lock(fork_cleared.mutex);
  ProcessState state = process_state();
  if (state != ProcessState::undecided) return state;
  if (settled.state == ProcessState::undecided) print_environment();
  start_trace();
  watch_forks();
  state = settled.state == ProcessState::undecided ? look_for_broker() : settle_child();
  settled.state = state;
  fork_cleared.state.store(state, std::memory_order_release);
  return state;
}

CUresult initialise_process() {
  const std::lock_guard lock(fork_cleared.mutex);
  if (is_initialised()) return CUDA_SUCCESS;
  if (const CUresult error = settle_devices(); error != CUDA_SUCCESS) return error;
  if (const CUresult error = ask_provision(connection()); error != CUDA_SUCCESS) return error;
  settled.initialised = true;
  tell_unenforced();
  const bool traced = debug_enabled(DebugTopic::calls) || proto::trace::enabled();
  settled.state = traced ? ProcessState::ready_traced : ProcessState::ready;
  fork_cleared.state.store(settled.state, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult refusal() { return settled.refusal; }
int driver_version() { return settled.driver_version; }
const proto::DriverFacts& driver_facts() { return *settled.facts; }
Connection& connection() {
  Connection* const own = settled.connections[ActingSession::index()].load(std::memory_order_acquire);
  return own != nullptr ? *own : *settled.connections[0].load(std::memory_order_acquire);
}

CUresult open_connection() {
  std::atomic<Connection*>& own = settled.connections[ActingSession::index()];
  if (own.load(std::memory_order_acquire) != nullptr) return CUDA_SUCCESS;
  auto connection = std::make_unique<Connection>();
  if (settled.path == nullptr || !connection->open(settled.path)) {
    log_line("No second connection to the broker at %s can be had (%s): this process has no context on a further device.", settled.path,
             std::strerror(errno));
    return CUDA_ERROR_MPS_CONNECTION_FAILED;
  }
  proto::Received<proto::Welcome> received;
  if (const CUresult error = say_hello(*connection, received); error != CUDA_SUCCESS) return error;
  connection->greeted();
  if (const CUresult error = ask_provision(*connection); error != CUDA_SUCCESS) return error;
  own.store(connection.release(), std::memory_order_release);  // never destroyed
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer
