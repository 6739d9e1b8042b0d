// SPDX-License-Identifier: Apache-2.0
#include "broker/ctl/container_device.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/commands/json_writer.hpp"
#include "proto/handshake.hpp"
#include "proto/pipe_directory.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker::ctl {

namespace {

// Of every GNU loader one of these is a default, whatever the image says of LD_LIBRARY_PATH and LD_PRELOAD.
constexpr const char* kLoaderFolders[] = {"/usr/lib/x86_64-linux-gnu", "/usr/lib64"};

void write_mount(JsonWriter& json, const std::string& from, const std::string& to) {
  json.begin_object().member("hostPath", from).member("containerPath", to).key("options").begin_array();
  for (const char* option : {"bind", "ro", "nosuid", "nodev"}) json.value(option);
  json.end_array().end_object();
}

}  // namespace

std::string container_device_name(const ContainerParts& parts) { return parts.group.empty() ? "shared" : parts.group; }

std::string container_device_file(const ContainerParts& parts) {
  return fmt::format("/etc/cdi/mpsshim{}.json", parts.group.empty() ? "" : '-' + parts.group);
}

std::string container_device(const ContainerParts& parts) {
  JsonWriter json;
  json.begin_object().member("cdiVersion", "0.5.0").member("kind", "mpsshim.dev/gpu").key("devices").begin_array();
  json.begin_object().member("name", container_device_name(parts)).key("containerEdits").begin_object();
  // The directory is named: in a container with users of its own nobody could tell that the socket there is root's.
  json.key("env").begin_array().value(fmt::format("CUDA_MPS_PIPE_DIRECTORY={}", proto::kSystemPipeDirectory)).value("MPSSHIM_REQUIRE=1").end_array();
  json.key("mounts").begin_array();
  for (const char* folder : kLoaderFolders) {
    for (const char* name : {"libcuda.so.1", "libcuda.so"}) write_mount(json, parts.library, fmt::format("{}/{}", folder, name));
    write_mount(json, parts.management_library, fmt::format("{}/libnvidia-ml.so.1", folder));
  }
  // The one file, and not its directory: commands are not for containers, whose root has root's uid.
  write_mount(json, parts.socket, fmt::format("{}/{}", proto::kSystemPipeDirectory, proto::kClientSocketName));
  json.end_array().end_object().end_object().end_array().end_object();
  return json.text() + '\n';
}

bool replace_file(const std::string& path, const std::string& text, std::string& why) {
  const std::filesystem::path wanted(path);
  const std::string folder = wanted.has_parent_path() ? wanted.parent_path().string() : ".";
  (void)mkdir(folder.c_str(), 0755);
  // Engines read what ends in .json or .yaml.
  std::string name = fmt::format("{}/.{}.XXXXXX", folder, wanted.filename().string());
  const auto fail = [&](const char* what) {
    why = fmt::format("{} cannot be {} ({}): as root, or name another file with --output", path, what, std::strerror(errno));
    return false;
  };
  const proto::FileDescriptor file(mkostemp(name.data(), O_CLOEXEC));
  if (!file.valid()) return fail("made");
  const bool is_written = write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fchmod(file.get(), 0644) == 0 &&
                          fsync(file.get()) == 0 && rename(name.c_str(), path.c_str()) == 0;
  if (is_written) return true;
  const int error = errno;
  unlink(name.c_str());
  errno = error;
  return fail("written");
}

}  // namespace mpsshim::broker::ctl
