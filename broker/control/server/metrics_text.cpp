// SPDX-License-Identifier: Apache-2.0
#include "broker/control/server/metrics_text.hpp"

#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <unistd.h>

#include "broker/control/server/cells.hpp"
#include "broker/control/server/client_facts.hpp"
#include "broker/printable.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker::control {

namespace {

using Labels = MetricsText::Labels;
using Type = MetricsText::Type;

std::string escaped(std::string_view text) {
  std::string value;
  for (const char c : text) {
    if (c == '\\' || c == '"') value += '\\';
    value += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return value;
}

std::string uuid_of(const SessionManager& manager, unsigned device) {
  return manager.facts() != nullptr ? uuid_text(manager.facts()->device[device]) : "";
}

double seconds(std::uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }

// Of a client in all samples: they stay what they are as long as its session lives.
Labels labels_of(const SessionManager& manager, const ClientSession& session) {
  const ClientIdentity& client = session.client;
  return {{"session", std::to_string(session.id)},    {"pid", client.pid > 0 ? std::to_string(client.pid) : ""},
          {"uid", std::to_string(client.uid)},        {"device", std::to_string(session.device)},
          {"uuid", uuid_of(manager, session.device)}, {"pod_uid", client.pod.pod},
          {"container_id", client.pod.container}};
}

void write_clients(MetricsText& text, const SessionManager& manager) {
  const std::vector<ClientFacts> clients = client_facts(manager, nullptr);
  text.family("mpsshim_client_info", Type::gauge, "1 for each client; what may change of it, and its command.");
  for (const ClientFacts& facts : clients) {
    const ClientSession& session = *facts.session;
    text.sample({{"session", std::to_string(session.id)},
                 {"server", session.executor != nullptr ? std::to_string(session.executor->number().number()) : ""},
                 {"state", phase_name(session.phase)},
                 {"group", session.name_space},
                 {"command", session.client.command}},
                std::uint64_t{1});
  }
  const auto write = [&](std::string_view name, Type type, std::string_view help,
                         const std::function<void(const Labels&, const ClientFacts&)>& sample) {
    text.family(name, type, help);
    for (const ClientFacts& facts : clients) sample(labels_of(manager, *facts.session), facts);
  };
  write("mpsshim_client_age_seconds", Type::gauge, "Since the client's session began.",
        [&](const Labels& labels, const ClientFacts& facts) { text.sample(labels, static_cast<double>(facts.age.count()) / 1e3); });
  write("mpsshim_client_device_memory_bytes", Type::gauge, "Device memory that the client has allocated.",
        [&](const Labels& labels, const ClientFacts& facts) { text.sample(labels, facts.session->chunks.total_bytes()); });
  write("mpsshim_client_device_memory_limit_bytes", Type::gauge, "Device memory that the client may have; no sample where there is no limit.",
        [&](const Labels& labels, const ClientFacts& facts) {
          if (const std::uint64_t limit = facts.session->memory_limit_bytes.value_or(0); limit != 0) text.sample(labels, limit);
        });
  write("mpsshim_client_active_thread_percentage", Type::gauge, "What part of the device's multiprocessors the client may use, in percent.",
        [&](const Labels& labels, const ClientFacts& facts) {
          const std::uint32_t percentage = facts.session->thread_percentage.value_or(0);
          if (facts.session->thread_percentage && facts.session->sm_partition == 0)
            text.sample(labels, (percentage != 0 ? percentage : proto::kWholePercentage) / 100.0);
        });
  write("mpsshim_client_sm_partition", Type::gauge, "Number of the static partition of the multiprocessors that the client runs in.",
        [&](const Labels& labels, const ClientFacts& facts) {
          if (facts.session->sm_partition != 0) text.sample(labels, std::uint64_t{facts.session->sm_partition});
        });
  write("mpsshim_client_priority", Type::gauge, "0: normal, 1 and more: below normal.", [&](const Labels& labels, const ClientFacts& facts) {
    if (facts.session->client_priority) text.sample(labels, std::uint64_t{*facts.session->client_priority});
  });
  write("mpsshim_client_gpu_seconds_total", Type::counter, "Time with work under way on the device.",
        [&](const Labels& labels, const ClientFacts& facts) {
          if (facts.counts) text.sample(labels, seconds(facts.counts->gpu_ns));
        });
  write("mpsshim_client_launches_total", Type::counter, "Kernels handed to the driver; a launched graph is one.",
        [&](const Labels& labels, const ClientFacts& facts) {
          if (facts.counts) text.sample(labels, facts.counts->launches);
        });
  write("mpsshim_client_waits_total", Type::counter, "Times that threads of the client lay down to sleep until work had ended.",
        [&](const Labels& labels, const ClientFacts& facts) {
          if (facts.counts) text.sample(labels, facts.counts->waits);
        });
  write("mpsshim_client_wait_seconds_total", Type::counter, "Time in which a thread of the client so slept.",
        [&](const Labels& labels, const ClientFacts& facts) {
          if (facts.counts) text.sample(labels, seconds(facts.counts->wait_ns));
        });
  write("mpsshim_client_operations_in_flight", Type::gauge, "Operations that the driver has been given and that have not ended.",
        [&](const Labels& labels, const ClientFacts& facts) { text.sample(labels, facts.in_flight); });
}

void write_servers(MetricsText& text, const SessionManager& manager) {
  const auto write = [&](std::string_view name, Type type, std::string_view help, const std::function<std::uint64_t(const ManagedExecutor&)>& value) {
    text.family(name, type, help);
    for (const auto& [id, executor] : manager.executors()) {
      if (executor->number().number() <= 0) continue;
      text.sample({{"server", std::to_string(executor->number().number())},
                   {"device", std::to_string(executor->device())},
                   {"uuid", uuid_of(manager, executor->device())},
                   {"uid", std::to_string(executor->log_user())}},
                  value(*executor));
    }
  };
  write("mpsshim_server_up", Type::gauge, "1 if the server is ACTIVE, else 0.",
        [](const ManagedExecutor& executor) { return executor.state() == ExecutorState::active ? 1u : 0u; });
  write("mpsshim_server_clients", Type::gauge, "Clients that the server has.", [&](const ManagedExecutor& executor) {
    const auto is_its = [&executor](const auto& entry) { return entry.second.executor == &executor; };
    return static_cast<std::uint64_t>(std::ranges::count_if(manager.sessions(), is_its));
  });
  write("mpsshim_server_lives_total", Type::counter, "Processes that the server has had.",
        [](const ManagedExecutor& executor) { return executor.epoch(); });
}

void write_users(MetricsText& text, const SessionManager& manager) {
  const auto holdings = manager.holdings();
  const auto of = [](uid_t uid) { return Labels{{"uid", std::to_string(uid)}}; };
  text.family("mpsshim_user_sessions", Type::gauge, "Sessions of all clients of the user, one a device of each.");
  for (const auto& [uid, held] : holdings) text.sample(of(uid), std::uint64_t{held.sessions});
  text.family("mpsshim_user_device_memory_bytes", Type::gauge, "Device memory that all clients of the user hold on the device.");
  for (const auto& [uid, held] : holdings) {
    for (std::size_t device = 0; device < held.device_bytes.size(); ++device) {
      text.sample({{"uid", std::to_string(uid)}, {"device", std::to_string(device)}}, held.device_bytes[device]);
    }
  }
  text.family("mpsshim_user_host_memory_bytes", Type::gauge, "Pinned and staging memory, and images, of all clients of the user.");
  for (const auto& [uid, held] : holdings) text.sample(of(uid), held.host_bytes);
}

}  // namespace

void MetricsText::family(std::string_view name, Type type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type == Type::gauge ? "gauge" : "counter");
}

void MetricsText::begin_sample(const Labels& labels) {
  text_ += name_;
  char before = '{';
  for (const auto& [name, value] : labels) {
    if (value.empty()) continue;  // which is the same as no label
    text_ += fmt::format("{}{}=\"{}\"", before, name, escaped(broker::printable(value)));
    before = ',';
  }
  text_ += before == '{' ? " " : "} ";
}

void MetricsText::sample(const Labels& labels, std::uint64_t value) {
  begin_sample(labels);
  text_ += fmt::format("{}\n", value);
}

void MetricsText::sample(const Labels& labels, double value) {
  begin_sample(labels);
  text_ += fmt::format("{:.6f}\n", value);
}

std::string metrics_of(const SessionManager& manager, std::uint64_t dropped) {
  MetricsText text;
  text.family("mpsshim_broker_info", Type::gauge, "1; the broker's version and process.");
  text.sample({{"version", MPSSHIM_VERSION}, {"pid", std::to_string(getpid())}}, std::uint64_t{1});
  text.family("mpsshim_metrics_dropped_total", Type::counter,
              "Connections for these figures that were given up: nothing was asked, or not read, in time.");
  text.sample({}, dropped);
  write_servers(text, manager);
  write_users(text, manager);
  write_clients(text, manager);
  return text.text();
}

}  // namespace mpsshim::broker::control
