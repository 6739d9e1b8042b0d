// SPDX-License-Identifier: Apache-2.0
#include "broker/control/server/configuration.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "broker/commands/parsed_command.hpp"
#include "proto/memory_limit.hpp"
#include "proto/provision.hpp"
#include "proto/sm_partition.hpp"

#if MPSSHIM_HAVE_TOML
#include <toml++/toml.h>
#endif

namespace mpsshim::broker::control {

#if MPSSHIM_HAVE_TOML

namespace {

constexpr std::size_t kMostBytes = 1 << 20;
constexpr std::string_view kSchemaVersion = "1.0";

// Reads a document, and stops at the first mistake.
class Reader {
 public:
  Reader(const std::string& path, uid_t uid, SessionLimits& limits) : path_(path), uid_(uid), limits_(limits) {}

  [[nodiscard]] std::string read(const toml::table& document) {
    for (const auto& [key, node] : document) {
      if (key.str() == "schema_version") {
        if (text_of(node) != kSchemaVersion) refuse(node, "schema_version", fmt::format("it is to be \"{}\"", kSchemaVersion));
      } else if (key.str() == "servers") {
        read_servers(node);
      } else {
        refuse(node, key.str(), "no such key is obeyed: schema_version, servers");
      }
    }
    return fault_;
  }

 private:
  void refuse(const toml::node& node, std::string_view key, std::string_view why) {
    if (fault_.empty()) fault_ = fmt::format("{}:{}: {}: {}", path_, node.source().begin.line, as_quoted(key), why);
  }
  // Of a word or a whole number: NVIDIA writes numbers as words.
  [[nodiscard]] static std::string text_of(const toml::node& node) {
    if (const auto text = node.value_exact<std::string>()) return *text;
    const auto number = node.value_exact<std::int64_t>();
    return number ? std::to_string(*number) : "";
  }
  // nullptr: it is none, and that was told.
  [[nodiscard]] const toml::table* table_of(const toml::node& node, std::string_view key) {
    if (node.is_table()) return node.as_table();
    refuse(node, key, "it is to be a table");
    return nullptr;
  }

  void read_servers(const toml::node& node) {
    const toml::table* const servers = table_of(node, "servers");
    if (servers == nullptr) return;
    for (const auto& [name, server] : *servers) {
      if (&server != &servers->begin()->second)
        refuse(server, name.str(), "a broker's servers have no names: one table of servers says what all have");
      if (const toml::table* const settings = table_of(server, name.str())) read_server(*settings);
    }
  }

  void read_server(const toml::table& settings) {
    for (const auto& [key, node] : settings) {
      if (key.str() == "namespaces") {
        read_namespaces(node);
      } else if (key.str() == "uid") {
        if (text_of(node) != std::to_string(uid_)) refuse(node, "uid", fmt::format("this broker's servers are of user {}", uid_));
      } else if (key.str() == "pinned_memory_limit") {
        if (size_of(node, "pinned_memory_limit")) limits_.memory_limit_text = "all=" + text_of(node);
      } else if (key.str() == "active_thread_percentage") {
        if (percentage_of(node)) limits_.thread_percentage_text = text_of(node);
      } else if (key.str() == "client_priority") {
        if (priority_of(node)) limits_.client_priority_text = text_of(node);
      } else if (key.str() == "devices") {
        for_each_table(node, "devices", [this](const toml::table& device) { read_device(device); });
      } else {
        refuse(node, key.str(), "no such key is obeyed: pinned_memory_limit, active_thread_percentage, client_priority, uid, namespaces, devices");
      }
    }
  }

  template <typename Read>
  void for_each_table(const toml::node& node, std::string_view key, Read&& read) {
    if (!node.is_array()) return refuse(node, key, "it is to be an array of tables");
    for (const toml::node& each : *node.as_array()) {
      if (const toml::table* const table = table_of(each, key)) read(*table);
    }
  }

  void read_device(const toml::table& settings) {
    const toml::node* const uuid = settings.get("uuid");
    const std::string device = uuid != nullptr ? text_of(*uuid) : "";
    if (device.empty()) return refuse(settings, "uuid", "a device needs one: GPU- and a UUID's beginning, or an index");
    for (const auto& [key, node] : settings) {
      if (key.str() == "uuid") continue;
      if (key.str() != "sm_partitions") refuse(node, key.str(), "no such key is obeyed: uuid, sm_partitions");
      if (!limits_.has_static_partitions) refuse(node, key.str(), "there are partitions with --static-partitioning alone");
      if (fault_.empty()) for_each_table(node, key.str(), [&](const toml::table& partition) { read_partition(device, partition); });
    }
  }

  void read_partition(const std::string& device, const toml::table& settings) {
    PartitionWish wish;
    wish.device = device;
    for (const auto& [key, node] : settings) {
      if (key.str() == "name") {
        wish.name = proto::parse_group(text_of(node)).value_or("");
        if (wish.name.empty()) refuse(node, "name", "a partition's name has lowercase letters, digits and underscores");
      } else if (key.str() == "chunks") {
        const auto chunks = node.value_exact<std::int64_t>().value_or(0);
        if (chunks < 1 || chunks > proto::kMostChunks) refuse(node, "chunks", fmt::format("it is 1 to {}", proto::kMostChunks));
        wish.chunks = static_cast<unsigned>(chunks);
      } else if (key.str() == "include_remainder") {
        if (!node.value_exact<bool>()) refuse(node, key.str(), "it is true or false");
        wish.with_remainder = node.value_exact<bool>().value_or(false);
      } else {
        refuse(node, key.str(), "no such key is obeyed: name, chunks, include_remainder");
      }
    }
    if (wish.name.empty() || wish.chunks == 0) refuse(settings, "sm_partitions", "a partition needs a name and chunks");
    const auto is_same = [&](const PartitionWish& other) { return other.device == device && other.name == wish.name; };
    if (std::ranges::any_of(limits_.partitions, is_same)) refuse(settings, wish.name, "there is a partition of that name already");
    limits_.partitions.push_back(std::move(wish));
  }

  void read_namespaces(const toml::node& node) {
    const toml::table* const namespaces = table_of(node, "namespaces");
    if (namespaces == nullptr) return;
    for (const auto& [name, settings] : *namespaces) {
      if (!proto::parse_group(name.str())) refuse(settings, name.str(), "a namespace's name has lowercase letters, digits and underscores");
      if (name.str() == Namespaces::kDefault) refuse(settings, name.str(), "it has no settings of its own: they are those of its server");
      const toml::table* const table = table_of(settings, name.str());
      if (table != nullptr) limits_.namespaces.emplace_back(std::string(name.str()), read_namespace(*table));
    }
  }

  [[nodiscard]] Namespace read_namespace(const toml::table& settings) {
    Namespace made;
    for (const auto& [key, node] : settings) {
      if (key.str() == "pinned_memory_limit") {
        made.memory_limit_bytes = size_of(node, key.str()).value_or(0);
      } else if (key.str() == "pinned_memory_request") {
        made.memory_request_bytes = size_of(node, key.str()).value_or(0);
      } else if (key.str() == "active_thread_percentage") {
        const std::uint32_t percentage = percentage_of(node).value_or(0);
        made.thread_percentage = percentage == proto::kWholePercentage ? 0 : percentage;
      } else if (key.str() == "active_thread_percentage_request") {
        made.thread_percentage_request = percentage_of(node, key.str()).value_or(0);
      } else if (key.str() == "client_priority") {
        made.client_priority = priority_of(node);
      } else if (key.str() == "own_executor") {
        const auto is_own = node.value_exact<bool>();
        if (!is_own) refuse(node, key.str(), "it is true or false");
        made.has_own_executor = is_own.value_or(false);
      } else {
        refuse(node, key.str(),
               "no such key is obeyed: pinned_memory_limit, pinned_memory_request, active_thread_percentage, "
               "active_thread_percentage_request, client_priority, own_executor");
      }
    }
    if (made.memory_limit_bytes != 0 && made.memory_request_bytes > made.memory_limit_bytes)
      refuse(settings, "pinned_memory_request", "it is more than pinned_memory_limit");
    return made;
  }

  [[nodiscard]] std::optional<std::uint64_t> size_of(const toml::node& node, std::string_view key) {
    const auto bytes = proto::parse_memory_size(text_of(node));
    if (!bytes) refuse(node, key, "it is no size: an integer above 0 with M or G, such as \"900M\"");
    return bytes;
  }
  [[nodiscard]] std::optional<std::uint32_t> percentage_of(const toml::node& node, std::string_view key = "active_thread_percentage") {
    const auto percentage = proto::parse_percentage(text_of(node));
    if (!percentage) refuse(node, key, "it is no percentage: above 0, to 100, such as \"25\" or \"12.5\"");
    return percentage;
  }
  [[nodiscard]] std::optional<std::uint32_t> priority_of(const toml::node& node) {
    const auto priority = proto::parse_client_priority(text_of(node));
    if (!priority)
      refuse(node, "client_priority", "it is no priority: \"0\" (normal), \"1\" (below normal), or \"2\" or \"3\" with --client-priorities");
    return priority;
  }

  const std::string& path_;
  const uid_t uid_;
  SessionLimits& limits_;
  std::string fault_;
};

}  // namespace

bool apply_configuration(const std::string& path, uid_t uid, SessionLimits& limits, std::string& why) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) text.assign(std::istreambuf_iterator<char>(file), {});
  if (!file || text.size() > kMostBytes) {
    why = fmt::format("{} cannot be read ({}): name a file of TOML with -a", path, file ? "it is longer than 1 MiB" : std::strerror(errno));
    return false;
  }
  SessionLimits changed = limits;
  try {
    why = Reader(path, uid, changed).read(toml::parse(text, path));
  } catch (const toml::parse_error& error) {
    why = fmt::format("{}:{}: it is no TOML: {}", path, error.source().begin.line, error.description());
  }
  if (why.empty()) limits = std::move(changed);
  return why.empty();
}

#else

bool apply_configuration(const std::string& path, uid_t /*uid*/, SessionLimits& /*limits*/, std::string& why) {
  why = fmt::format("{} is not read: this mpsbroker was built without toml++ (libtomlplusplus-dev)", path);
  return false;
}

#endif

}  // namespace mpsshim::broker::control
