// SPDX-License-Identifier: Apache-2.0
#include "broker/linker/linker_main.hpp"

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <string_view>

#include <malloc.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "broker/compiler/compiler_messages.hpp"
#include "broker/compiler/sandbox.hpp"
#include "broker/compiler/test_faults.hpp"
#include "broker/driver/driver.hpp"
#include "broker/executor/link/fault.hpp"
#include "broker/linker/driver_link.hpp"
#include "broker/linker/link_file.hpp"
#include "broker/linker/link_runner.hpp"
#include "broker/linker/nvjitlink.hpp"
#include "broker/rights/rights.hpp"
#include "proto/socket.hpp"

namespace mpsshim::broker {

namespace {

// Whether `nobody` may use the GPU as any user may. Where its files are a group's, root stays what it is, without its capabilities.
bool are_devices_everybodys() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    struct stat file {};
    if (!name.starts_with("nvidia") || stat(entry.path().c_str(), &file) != 0 || !S_ISCHR(file.st_mode)) continue;
    const bool is_needed = name == "nvidiactl" || name == "nvidia-uvm" || name.find_first_not_of("0123456789", 6) == std::string::npos;
    if (is_needed && (file.st_mode & 0006) != 0006) return false;
  }
  return !error;
}

// Of memory that it may write: reservations, of which a driver makes large ones, do not count.
std::size_t written_memory_bytes() {
  std::ifstream status("/proc/self/status");
  std::size_t kibibytes = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmData:")) kibibytes = std::strtoul(line.c_str() + 7, nullptr, 10);
  }
  return kibibytes << 10;
}

constexpr const char* kSmallText = ".version 6.4\n.target sm_{}\n.address_size 64\n.visible .entry warm_up() {{ ret; }}\n";

class LinkerProcess {
 public:
  explicit LinkerProcess(const LinkerOptions& options) : options_(options), control_(proto::FileDescriptor(kCompilerControlFd)) {}

  void serve() {
    driver_ = Driver::load(options_.driver_path, driver_error_);  // as root still: it may lie where others cannot read
    go_first();
    tell(0, give_up_rights());
    for (;;) {
      CompilerJob job;
      std::size_t received = 0;
      proto::ReceivedFds fds;
      if (control_.receive(std::as_writable_bytes(std::span(&job, 1)), received, fds) != proto::SocketStatus::ok) return;
      if (received != sizeof job || fds.count != 1) return;
      limit_job_time(options_.job_time);
      CUresult status = CUDA_ERROR_OUT_OF_MEMORY;
      proto::FileDescriptor file;
      try {
        const LinkOutcome outcome = run(fds.fds[0]);
        status = outcome.status;
        file = write_outcome(outcome);
      } catch (const std::bad_alloc&) {
        file.reset();
      }
      malloc_trim(0);
      if (!answer({job.number, static_cast<std::uint32_t>(status), 0}, file)) return;
    }
  }

 private:
  LinkOutcome run(const proto::FileDescriptor& file) {
    LinkOutcome outcome;
    LinkRequest request;
    if (!read_request(file, request)) {
      outcome.status = CUDA_ERROR_INVALID_VALUE;
      outcome.error_log = "the request is not understood";
      return outcome;
    }
    open(outcome);
    if (!runner_) return outcome;
    if (options_.has_test_faults) {
      for (const LinkStep& step : request.steps) fail_as_asked(step.bytes, "mpsshim-test-link:");
    }
    outcome = runner_->run(request);
    if (is_fatal(outcome.status)) _exit(1);  // the context answers nothing else: the next process tries again
    return outcome;
  }

  // Asked again at each job while it fails: memory may have become free. Nothing of a client's has been looked at before.
  void open(LinkOutcome& outcome) {
    if (runner_) return;
    CUresult result = driver_ ? find_device() : CUDA_ERROR_NOT_FOUND;
    outcome.end = LinkOutcome::End::no_context;
    if (result == CUDA_SUCCESS) result = choose_compiler(outcome);
    outcome.status = result;
    if (result != CUDA_SUCCESS) {
      if (outcome.error_log.empty()) explain(result, outcome.error_log);
      return;
    }
    outcome.end = LinkOutcome::End::done;
    runner_ = std::make_unique<LinkRunner>(*library_);
    warm_up();
    tell(0, wall_in());
  }

  void explain(CUresult result, std::string& why) const {
    why = fmt::format("PTX is compiled in a process of its own, which has no context on device {}: {}. ", options_.device,
                      driver_ ? driver_->describe(result) : driver_error_);
    why += result == CUDA_ERROR_OUT_OF_MEMORY
               ? "It takes some half a GiB of a GPU: free memory there, or bring machine code for this GPU (nvcc -arch)"
               : "Bring machine code for this GPU (nvcc -arch), or see to the driver; root becomes nobody for it unless --keep-rights is given";
  }

  CUresult find_device() {
    const Driver& driver = *driver_;
    CUresult result = driver->cuInit(0);
    if (result == CUDA_SUCCESS) result = driver->cuDeviceGet(&device_, static_cast<int>(options_.device));
    if (result != CUDA_SUCCESS) return result;
    driver->cuDeviceGetAttribute(&major_, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device_);
    driver->cuDeviceGetAttribute(&minor_, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device_);
    return CUDA_SUCCESS;
  }

  // Where one process alone may have a context, an executor has it.
  CUresult choose_compiler(LinkOutcome& outcome) {
    int mode = CU_COMPUTEMODE_DEFAULT;
    (*driver_)->cuDeviceGetAttribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device_);
    const bool is_exclusive = mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS, is_automatic = options_.ptx_compiler == "auto";
    if (options_.ptx_compiler == "driver" || (is_automatic && !is_exclusive)) {
      if (!is_exclusive) return make_context();
      outcome.error_log = "the GPU takes one process at a time";
    } else if (is_automatic && driver_->is_cpu()) {
      outcome.error_log = "the CPU driver takes one process at a time, and has machine code of its own";
    } else {
      LinkTarget target{.compute = static_cast<unsigned>(10 * major_ + minor_)};
      (*driver_)->cuDriverGetVersion(&target.driver_version);
      const bool is_named = options_.ptx_compiler.starts_with('/');
      library_ = NvJitLink::load(is_named ? options_.ptx_compiler : "", target, outcome.error_log);
      if (library_) return CUDA_SUCCESS;
      if (!is_automatic) return CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
    }
    outcome.end = LinkOutcome::End::not_there;
    return CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
  }

  CUresult make_context() {
    CUcontext context = nullptr;
    CUresult result = (*driver_)->cuDevicePrimaryCtxRetain(&context, device_);
    if (result == CUDA_SUCCESS) result = (*driver_)->cuCtxSetCurrent(context);
    if (result == CUDA_SUCCESS) library_ = std::make_unique<DriverLinkLibrary>(*driver_);
    return result;
  }

  // So that the compiler's libraries are there before files and programs are out of reach. A failure is for the first job to find.
  void warm_up() {
    const std::string text = fmt::format(kSmallText, major_ < 7 ? 50 : 75);
    const auto bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
    const ImageBytes image(std::vector<std::byte>(bytes.begin(), bytes.end()));
    LinkRequest request;
    request.steps.push_back({CU_JIT_INPUT_PTX, image, "warm up"});
    (void)runner_->run(request);
    request.task = LinkRequest::Task::load;
    (void)runner_->run(request);
  }

  // Before the driver is initialised, which is then as for any user's program.
  Restraint give_up_rights() {
    if (!options_.keeps_rights && ((are_devices_everybodys() && !leave_root()) || !keep_capabilities({}))) return Restraint::user;
    if (!options_.dumpable) prctl(PR_SET_DUMPABLE, 0);  // changing the user may have set it
    return set_limit(RLIMIT_CORE, 0) && set_limit(RLIMIT_NOFILE, kLinkerFiles) ? Restraint::none : Restraint::limits;
  }

  // With the context made, and before the first text.
  Restraint wall_in() {
    const std::size_t has = written_memory_bytes();
    if (!set_limit(RLIMIT_FSIZE, kLinkerFileBytes) || (!kIsSanitized && (has == 0 || !set_limit(RLIMIT_DATA, has + kLinkerMemoryBytes)))) {
      return Restraint::limits;
    }
    return options_.keeps_rights || wall_in_executor() ? Restraint::none : Restraint::system_calls;
  }

  // With number 0: what could not be given up.
  void tell(std::uint64_t number, Restraint missing) {
    if (missing != Restraint::none) (void)answer({number, static_cast<std::uint32_t>(errno), static_cast<std::uint32_t>(missing)}, {});
  }

  bool answer(const CompilerAnswer& answer, const proto::FileDescriptor& file) {
    const std::array<int, 1> fd{file.get()};
    proto::SocketStatus sent = proto::SocketStatus::failed;
    do {  // where this user's sockets hold too many descriptors for now
      sent = proto::send_message(control_, answer, std::span(fd).first(file.valid() ? 1 : 0));
    } while (sent == proto::SocketStatus::failed && proto::is_shortage(errno));
    return sent == proto::SocketStatus::ok;
  }

  const LinkerOptions options_;
  const proto::Socket control_;
  std::string driver_error_;
  std::unique_ptr<Driver> driver_;
  CUdevice device_ = 0;
  int major_ = 0, minor_ = 0;  // its compute capability
  std::unique_ptr<LinkLibrary> library_;
  std::unique_ptr<LinkRunner> runner_;  // once the library is there
};

}  // namespace

int linker_main(const LinkerOptions& options) {
  LinkerProcess(options).serve();
  _exit(0);
}

}  // namespace mpsshim::broker
