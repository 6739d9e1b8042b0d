// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/descriptor_kind.hpp"

#include <charconv>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "proto/segment.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr const char* kGpuDevice = "/dev/nvidiactl";  // its major is that of the GPUs' own

// From what the kernel has at hand.
std::optional<struct statx> status_of(int fd) {
  struct statx status {};
  constexpr unsigned kWanted = STATX_TYPE | STATX_SIZE;
  if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, kWanted, &status) != 0) return std::nullopt;
  return status;
}

dev_t device_of(const struct statx& status) { return makedev(status.stx_dev_major, status.stx_dev_minor); }

// Where the kernel keeps memory files: a file system that can be mounted nowhere.
bool is_memory_file(const struct statx& status) {
  static const dev_t device = [] {
    const auto own = status_of(proto::create_memory_file("mpsshim-kind", 1).get());
    return own ? device_of(*own) : dev_t{};
  }();
  return S_ISREG(status.stx_mode) && device != dev_t{} && device_of(status) == device;
}

// A device file that is open has been opened by its driver, whichever file system names it.
bool is_gpu(const struct statx& status) {
  struct stat gpu {};
  return S_ISCHR(status.stx_mode) && stat(kGpuDevice, &gpu) == 0 && S_ISCHR(gpu.st_mode) && status.stx_rdev_major == major(gpu.st_rdev);
}

// Only dma-bufs say who has exported them.
bool is_dma_buf(int fd, std::optional<std::uint64_t>& size_bytes) {
  constexpr std::string_view kExporter = "exp_name:", kSize = "size:\t";
  std::ifstream facts("/proc/self/fdinfo/" + std::to_string(fd));
  bool is_one = false;
  for (std::string line; std::getline(facts, line);) {
    if (line.starts_with(kExporter)) is_one = true;
    std::uint64_t bytes = 0;
    if (line.starts_with(kSize) && std::from_chars(line.data() + kSize.size(), line.data() + line.size(), bytes).ec == std::errc{})
      size_bytes = bytes;
  }
  return is_one;
}

}  // namespace

DescriptorFacts look_at(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_PATH) != 0) return {};
  const auto status = status_of(fd);
  if (!status) return {};
  if (is_memory_file(*status)) return {DescriptorKind::memory_file, status->stx_size};
  if (is_gpu(*status)) return {DescriptorKind::gpu, std::nullopt};
  DescriptorFacts facts{DescriptorKind::dma_buf, std::nullopt};
  return is_dma_buf(fd, facts.size_bytes) ? facts : DescriptorFacts{};
}

}  // namespace mpsshim::broker::control
