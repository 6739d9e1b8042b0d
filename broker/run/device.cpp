// SPDX-License-Identifier: Apache-2.0
#include "broker/run/device.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "gen/protocol_hash.hpp"
#include "proto/device_facts.hpp"
#include "proto/handshake.hpp"
#include "proto/local_rank.hpp"
#include "proto/memory_limit.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker::run {

namespace {

constexpr int kAnswerLimitMs = 60'000;  // a broker's first executor may be given 50 s

std::optional<unsigned> number(const std::string& text) {
  unsigned value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || rest != end) return std::nullopt;
  return value;
}

std::optional<unsigned> local_rank(const Environment& environment, std::string& why) {
  for (const char* name : proto::kLocalRanks) {
    const std::string text = environment(name);
    if (text.empty()) continue;
    const auto rank = number(text);
    if (!rank) why = fmt::format("--device local: {}={} is no number", name, text);
    return rank;
  }
  why =
      "--device local: no launcher has said which rank of this machine this is (OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID, SLURM_LOCALID and kin): "
      "name the device";
  return std::nullopt;
}

std::vector<std::string> entries_of(const std::string& list) {
  std::vector<std::string> entries;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    if (end != begin) entries.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return entries;
}

}  // namespace

std::optional<std::string> choose_device(const std::string& option, const Environment& environment,
                                         const std::function<std::optional<unsigned>(std::string& why)>& count, std::string& why) {
  if (option != "local") {
    if (number(option) || option.starts_with("GPU-") || option.starts_with("MIG-")) return option;
    why = fmt::format("--device {} is no device: an index from 0, GPU- or MIG- and a UUID, or local", option);
    return std::nullopt;
  }
  const auto rank = local_rank(environment, why);
  if (!rank) return std::nullopt;
  const std::vector<std::string> visible = entries_of(environment("CUDA_VISIBLE_DEVICES"));
  if (!visible.empty()) return visible[*rank % visible.size()];
  const auto devices = count(why);
  if (!devices) return std::nullopt;
  return std::to_string(*rank % *devices);
}

std::optional<unsigned> count_devices(const std::string& pipe_dir, std::string& why) {
  why = fmt::format("--device local: the broker in {} does not say how many devices it has: name the device", pipe_dir);
  const proto::Socket socket = proto::Socket::connect_to(pipe_dir + "/" + proto::kClientSocketName);
  proto::Hello hello;
  hello.protocol_hash = proto::kProtocolHash;
  if (!socket.valid() || proto::send_message(socket, hello, {}) != proto::SocketStatus::ok) return std::nullopt;
  std::array<std::byte, proto::kMaxMessageBytes> buffer;
  std::size_t bytes = 0;
  proto::ReceivedFds fds;
  if (!socket.wait_readable(kAnswerLimitMs) || socket.receive(buffer, bytes, fds) != proto::SocketStatus::ok) return std::nullopt;
  proto::Welcome welcome;
  if (bytes != sizeof welcome || fds.count != 1) return std::nullopt;
  std::memcpy(&welcome, buffer.data(), sizeof welcome);
  const auto size = proto::sealed_size(fds.fds[0]);
  if (welcome.header.type != proto::MessageType::welcome || welcome.header.status != 0 || !size || *size < sizeof(proto::DriverFacts))
    return std::nullopt;
  const proto::Mapping facts = proto::Mapping::map(fds.fds[0], 0, sizeof(proto::DriverFacts), proto::Access::read_only);
  if (!facts) return std::nullopt;
  const std::uint32_t devices = reinterpret_cast<const proto::DriverFacts*>(facts.data())->device_count;
  if (devices == 0 || devices > proto::kMaxDevices) return std::nullopt;
  why.clear();
  return devices;
}

std::optional<std::string> with_memory_limit(const std::string& asked, const std::string& limits) {
  if (!proto::parse_memory_size(asked)) return std::nullopt;
  return fmt::format("{}{}{}={}", limits, limits.empty() ? "" : ",", proto::kAllDevices, asked);
}

std::optional<std::string> with_gpu_share(const std::string& asked, const std::string& percentage) {
  const auto wanted = proto::parse_percentage(asked.ends_with('%') ? asked.substr(0, asked.size() - 1) : asked);
  if (!wanted) return std::nullopt;
  return proto::percentage_text(proto::lower_percentage(*wanted, proto::parse_percentage(percentage).value_or(0)));
}

}  // namespace mpsshim::broker::run
