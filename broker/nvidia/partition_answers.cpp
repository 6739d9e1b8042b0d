// SPDX-License-Identifier: Apache-2.0
// Static partitions, in the words and the form of NVIDIA's manual.
#include "broker/nvidia/answers.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "broker/ctl/client_rows.hpp"

namespace mpsshim::broker::nvidia {

namespace {

constexpr std::size_t kColumnsOfPartitions = 9;  // device, UUID, partition, name, free and used chunks, free and used multiprocessors, clients

// How much of each is to be shown: at least "GPU-" and eight digits, so that devices can be told apart.
std::size_t telling_length(const std::set<std::string>& uuids) {
  constexpr std::size_t kLengths[] = {12, 17, 22, 27};  // before a dash
  for (const std::size_t length : kLengths) {
    std::set<std::string> shown;
    for (const std::string& uuid : uuids) shown.insert(uuid.substr(0, length));
    if (shown.size() == uuids.size()) return length;
  }
  return std::string::npos;
}

}  // namespace

std::optional<std::vector<Answers::Words>> Answers::partition_rows() {
  const ctl::Answer table = ask_("lspart --format=csv,noheader");
  is_lost_ |= !table.was_asked;
  if (!table.ok) return std::nullopt;
  auto rows = ctl::read_comma_separated(table.text);
  if (rows) std::erase_if(*rows, [](const Words& row) { return row.size() < kColumnsOfPartitions; });
  return rows;
}

// In the form that programs read which were written for NVIDIA's: of a device and of a partition there are five words, where the manual has dashes.
std::string Answers::lspart(const Words& words) {
  const auto rows = partition_rows();
  if (!rows) return unknown_command(words.front());
  std::set<std::string> uuids;
  for (const Words& row : *rows) uuids.insert(row[1]);
  const std::size_t length = telling_length(uuids);
  static constexpr char kLine[] = "{:<17}  {:<10}  {:<6}  {:<6}  {:<4}  {:<4}  {}\n";
  std::string text = fmt::format(kLine, "GPU", "Partition", "free", "used", "free", "used", "clients");
  text += fmt::format(kLine, "", "", "chunks", "chunks", "SM", "SM", "");
  for (const Words& row : *rows) {
    const bool is_device = row[2].empty();
    text += fmt::format(kLine, row[1].substr(0, length), row[2], row[4], row[5], row[6], row[7],
                        is_device                                      ? ""
                        : number_at(row, kColumnsOfPartitions - 1) > 0 ? "Yes"
                                                                       : "No");
  }
  return text;
}

// A daemon without static partitions does not know the command, as NVIDIA's of CUDA 13.0 does not.
std::string Answers::sm_partition(const Words& words) {
  const auto rows = partition_rows();
  const std::string verb = words.size() > 1 ? words[1] : "";
  if (!rows || (verb != "add" && verb != "rm")) return unknown_command(words.front());
  const std::string device = words.size() > 2 ? words[2] : "";
  const std::string what = words.size() > 3 ? words[3] : "";
  const ctl::Answer done = ask_(fmt::format("sm_partition {} {} {}", verb, device, what));
  is_lost_ |= !done.was_asked;
  if (done.ok) return verb == "rm" ? "" : fmt::format("Partition {} created\n", done.text.substr(0, done.text.find('\n')));
  const bool has_device =
      !device.empty() && std::ranges::any_of(*rows, [&](const Words& row) { return row[0] == device || row[1].starts_with(device); });
  if (verb == "rm" || !has_device) return done.text + '\n';
  return fmt::format("Failed to fulfill the requested SM partition of {} chunks, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION\n",
                     number_at(words, 3));
}

}  // namespace mpsshim::broker::nvidia
