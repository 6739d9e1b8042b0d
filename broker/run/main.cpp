// SPDX-License-Identifier: Apache-2.0
// mpsrun: sees to it that there is a broker, then becomes the program. So nothing of it is left that could make noise, hold up a signal or a
// launcher, or be killed before it has cleaned up: whatever ends the program, the broker notices (starter.hpp).
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include <unistd.h>

#include "broker/commands/command_table.hpp"
#include "broker/commands/json_writer.hpp"
#include "broker/control/base/pipe_directory.hpp"
#include "broker/run/device.hpp"
#include "broker/run/parts.hpp"
#include "broker/run/place.hpp"
#include "broker/run/starter.hpp"
#include "proto/latency.hpp"
#include "proto/provision.hpp"
#include "proto/sm_partition.hpp"

namespace {

using namespace mpsshim::broker;

constexpr int kFailed = 125;  // as of env, timeout and nohup
constexpr int kCannotExecute = 126;
constexpr int kNotFound = 127;

constexpr std::size_t kHelpWidth = 118;

// What --help and --describe say; read_options() obeys them.
struct OptionText {
  const char* names;
  const char* value;  // "": none
  const char* help;
};
constexpr OptionText kOptions[] = {
    {"--driver", "D", "The driver for a broker that is started here (auto, cuda, cpu or a path; default auto; MPSRUN_DRIVER sets another default)"},
    {"--pipe-dir", "DIR",
     "Where the broker listens (default: $CUDA_MPS_PIPE_DIRECTORY; else where one answers, of $XDG_RUNTIME_DIR/mpsshim, /run/user/<uid>/mpsshim, "
     "/tmp/mpsshim-<uid>, /run/mpsshim, /tmp/nvidia-mps, /run/nvidia-mps; one is started in the user's first, root's is /run/mpsshim). In a Slurm "
     "job the job's own "
     "come "
     "first, and a step starts one of its own"},
    {"--job", "",
     "One broker for the batch job this runs in. Without PROGRAM it stays as long as the shell that says so, and prints where it is: "
     "eval \"$(mpsrun --job)\""},
    {"--mem", "SIZE", "How much memory of each device PROGRAM may have, such as 900M or 4G (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT); a lower limit holds"},
    {"--gpu-share", "PERCENTAGE",
     "How many of each device's multiprocessors PROGRAM may use, such as 30% or 12.5 (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE), rounded down to what the "
     "device can part; a lower percentage holds"},
    {"--group", "NAME",
     "The group of clients whose limits PROGRAM shares (MPSSHIM_GROUP; mpsctl namespace): lowercase letters, digits and underscores, 64 at most"},
    {"--latency", "WORD",
     "How PROGRAM's threads wait for the GPU (MPSSHIM_LATENCY): low stays awake on its core for up to a second, saving sleeps after some 50 us, "
     "balanced is as the broker says (mpsbroker --latency; the default)"},
    {"--sm-partition", "ID",
     "The static partition of the multiprocessors that PROGRAM runs in (CUDA_MPS_SM_PARTITION), as mpsctl sm_partition add says it, such as "
     "GPU-cb1213a3/P0000001; of several devices by commas. Of a broker that has such (mpsbroker --static-partitioning)"},
    {"--device", "DEVICE",
     "The device that PROGRAM sees (CUDA_VISIBLE_DEVICES): an index from 0, GPU- and a UUID, or local: of several devices that of this rank's number "
     "on its "
     "machine, as Open MPI, MPICH, Intel MPI, MVAPICH, PALS, Flux, jsrun, torchrun or Slurm say it"},
    {"--idle", "SECONDS", "How long a broker that is started here waits for another program (default 2)"},
    {"-v,--version", "", "Print the version"},
    {"-h,--help", "", "Print this"},
};
constexpr const char* kPurpose = "run a program, or a rank of an MPI job, by a broker";

std::string usage() {
  std::string text = R"TEXT(usage: mpsrun [OPTION...] [--] PROGRAM [ARGUMENT...]
       mpsrun --job [OPTION...]
Runs PROGRAM with libmpsshim.so preloaded (LD_PRELOAD), and first where a loader looks for libcuda.so by its name (LD_LIBRARY_PATH), for what is
started without LD_PRELOAD. Starts a broker if none answers; that one keeps nothing of this program and ends by itself when the last program that was
started with mpsrun, and its last client, have ended. mpsrun becomes PROGRAM: its exit status, its signals and its input are PROGRAM's own.
As a wrapper of MPI ranks: mpirun -n 4 mpsrun ./app
Options:
)TEXT";
  for (const OptionText& option : kOptions) {
    text += std::string("  ") + option.names + (*option.value != '\0' ? " " : "") + option.value + '\n' + wrapped(option.help, 6, kHelpWidth);
  }
  return text +
         R"TEXT(PROGRAM runs with MPSSHIM_REQUIRE=1: losing the broker is an error, not a silent run beside it. MPSSHIM_REQUIRE=0 in the environment turns that off.
Exit status: PROGRAM's; 125: there is no broker; 126: PROGRAM cannot be executed; 127: it is not there
)TEXT";
}

// As CommandLine's --describe.
std::string description() {
  JsonWriter json;
  json.begin_object().member("schema", "mpsshim.description").member("version", 1).member("program", "mpsrun").member("purpose", kPurpose);
  json.key("options").begin_array();
  for (const OptionText& option : kOptions) {
    const std::string_view names = option.names;
    json.begin_object().key("names").begin_array();
    if (names[1] != '-') json.value(names.substr(0, 2));
    json.value(names[1] != '-' ? names.substr(3) : names).end_array();
    json.member("takes_value", *option.value != '\0').member("type", option.value).member("default", "").member("group", "Options");
    json.member("help", option.help).end_object();
  }
  return json.end_array().end_object().text() + '\n';
}

struct Options {
  std::string driver = "auto";
  std::string pipe_dir;
  std::string memory;  // a size; empty: no limit is asked for
  std::string share;   // a percentage; empty: none is asked for
  std::string device;  // empty: as the environment has it
  std::string group;   // likewise
  std::string latency;    // likewise
  std::string partition;  // likewise
  bool for_job = false;
  unsigned idle_s = 2;
  int program = 0;  // where it stands in argv; argc: nowhere
};

[[noreturn]] void fail(const std::string& why, int status = kFailed) {
  std::fprintf(stderr, "mpsrun: %s\n", why.c_str());
  std::exit(status);
}

unsigned seconds(const std::string& text) {
  if (text.empty() || text.size() > 6 || text.find_first_not_of("0123456789") != std::string::npos)
    fail("--idle " + text + " is not a number of seconds");
  return static_cast<unsigned>(std::stoul(text));
}

// By hand: what follows the program is the program's, whatever it looks like.
Options read_options(int argc, char** argv) {
  Options options;
  if (const char* driver = std::getenv("MPSRUN_DRIVER"); driver != nullptr && *driver != '\0') options.driver = driver;
  int at = 1;
  for (; at < argc; ++at) {
    const std::string_view word = argv[at];
    if (word == "--") {
      ++at;
      break;
    }
    if (!word.starts_with('-') || word == "-") break;
    if (word == "-h" || word == "--help") std::exit(std::fputs(usage().c_str(), stdout) < 0 ? 1 : 0);
    if (word == "--describe") std::exit(std::fputs(description().c_str(), stdout) < 0 ? 1 : 0);
    if (word == "-v" || word == "--version") std::exit(std::puts(MPSSHIM_VERSION) < 0 ? 1 : 0);
    if (word == "--job") {
      options.for_job = true;
      continue;
    }
    const std::size_t equals = word.find('=');
    const std::string name(word.substr(0, equals));
    if (name != "--driver" && name != "--pipe-dir" && name != "--idle" && name != "--mem" && name != "--gpu-share" && name != "--group" &&
        name != "--latency" && name != "--sm-partition" && name != "--device")
      fail("unknown option " + std::string(word) + " (see mpsrun --help)");
    std::string value;
    if (equals != std::string_view::npos) {
      value = word.substr(equals + 1);
    } else if (at + 1 < argc) {
      value = argv[++at];
    }
    if (value.empty()) fail(name + " needs a value (see mpsrun --help)");
    if (name == "--driver") options.driver = value;
    if (name == "--pipe-dir") options.pipe_dir = value;
    if (name == "--idle") options.idle_s = seconds(value);
    if (name == "--mem") options.memory = value;
    if (name == "--gpu-share") options.share = value;
    if (name == "--group") options.group = value;
    if (name == "--latency") options.latency = value;
    if (name == "--sm-partition") options.partition = value;
    if (name == "--device") options.device = value;
  }
  options.program = at;
  return options;
}

std::string absolute(const std::string& path) {
  std::error_code error;
  std::string text = std::filesystem::absolute(path, error).lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

constexpr char kVisible[] = "CUDA_VISIBLE_DEVICES";
constexpr char kGroup[] = "MPSSHIM_GROUP";
constexpr char kLatency[] = "MPSSHIM_LATENCY";
constexpr char kPartition[] = "CUDA_MPS_SM_PARTITION";
constexpr char kPercentage[] = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
constexpr char kLimits[] = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

// Before there is a broker: what can be known to be wrong.
void check_options(const Options& options) {
  std::string why;
  const auto one = [](std::string&) { return std::optional<unsigned>(1); };
  if (!options.memory.empty() && !run::with_memory_limit(options.memory, ""))
    fail("--mem " + options.memory + " is no size: an integer above 0 with M or G, such as 900M");
  if (!options.share.empty() && !run::with_gpu_share(options.share, ""))
    fail("--gpu-share " + options.share + " is no percentage: above 0, to 100, such as 30% or 12.5");
  if (!options.group.empty() && !mpsshim::proto::parse_group(options.group))
    fail("--group " + options.group + " is no name of a group: lowercase letters, digits and underscores, 64 at most");
  if (!options.latency.empty() && !mpsshim::proto::parse_latency(options.latency))
    fail("--latency " + options.latency + " is none of low, balanced and saving");
  if (!options.partition.empty() && !mpsshim::proto::are_partitions(options.partition))
    fail("--sm-partition " + options.partition +
         " is no partition: a device's UUID or index, a slash and P with its number, as mpsctl lspart has them");
  if (!options.device.empty() && !run::choose_device(options.device, variable, one, why)) fail(why);
}

// What PROGRAM gets besides, of the broker in the directory.
void set_shares(const Options& options, const std::string& directory) {
  std::string why;
  if (!options.memory.empty()) setenv(kLimits, run::with_memory_limit(options.memory, variable(kLimits))->c_str(), 1);
  if (!options.share.empty()) setenv(kPercentage, run::with_gpu_share(options.share, variable(kPercentage))->c_str(), 1);
  if (!options.group.empty()) setenv(kGroup, options.group.c_str(), 1);
  if (!options.latency.empty()) setenv(kLatency, options.latency.c_str(), 1);
  if (!options.partition.empty()) setenv(kPartition, options.partition.c_str(), 1);
  if (options.device.empty()) return;
  const auto count = [&](std::string& reason) { return run::count_devices(directory, reason); };
  const auto device = run::choose_device(options.device, variable, count, why);
  if (!device) fail(why);
  setenv(kVisible, device->c_str(), 1);
}

}  // namespace

int main(int argc, char** argv) {
  Options options = read_options(argc, argv);
  const bool has_program = options.program < argc;
  if (!has_program && !options.for_job) {
    std::fputs(usage().c_str(), stderr);
    return kFailed;
  }
  if (has_program && *argv[options.program] == '\0') fail("the program's name is empty", kNotFound);
  check_options(options);
  if (options.driver.find('/') != std::string::npos) options.driver = absolute(options.driver);
  std::string why;
  const auto parts = run::find_parts(why);
  if (!parts) fail(why);
  auto place =
      run::choose_place(options.pipe_dir, options.for_job, variable, control::choose_pipe_directory(""), control::pipe_directories_to_search(""));
  if (!place) fail("--job: this is no batch job (none of SLURM_JOB_ID, PBS_JOBID, LSB_JOBID, FLUX_JOB_ID and JOB_ID is set)");
  for (std::string& directory : place->search) directory = absolute(directory);
  place->make = absolute(place->make);
  const run::BrokerWish wish{options.driver, options.idle_s, has_program ? getpid() : getppid()};
  const std::string directory = run::have_broker(*parts, *place, wish, why);
  if (directory.empty()) {
    if (why.starts_with("mpsbroker: ")) std::fprintf(stderr, "%s\n", why.c_str()), std::exit(kFailed);
    fail(why);
  }
  if (!has_program) return std::printf("export CUDA_MPS_PIPE_DIRECTORY='%s'\n", directory.c_str()) > 0 ? 0 : kFailed;
  set_shares(options, directory);
  run::prepare_program(*parts, directory);
  execvp(argv[options.program], argv + options.program);
  fail(std::string(argv[options.program]) + ": " + std::strerror(errno), errno == ENOENT ? kNotFound : kCannotExecute);
}
