// SPDX-License-Identifier: Apache-2.0
#include "broker/control/loading/load_replays.hpp"

#include <algorithm>

#include "broker/kept_variables.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {
constexpr std::chrono::milliseconds kFeedDelay{50};
}

void LoadReplays::noted(ManagedExecutor& executor, const message::ModuleNote& note) {
  images_.keep_undone(std::ranges::any_of(pool_.all(), [](const auto& entry) { return entry.second->has_next(); }));
  if (!images_.note({executor.id(), note.kind, note.object, note.copy, note.flags})) {
    log_error("Executor {} notes image {} as loaded, which the control process does not know; its globals cannot be brought back.", executor.label(),
              note.object);
  }
  if (note.kind == LogKind::unload && images_.has_too_much_undone()) renew_standbys();
  // Later, when the load has not been the executor's end.
  if (executor.standby() != nullptr) standby_feeds_[executor.id()] = loop_.after(kFeedDelay, [this, &executor] { feed_standby(executor); });
}

// They have been told what is to leave the log.
void LoadReplays::renew_standbys() {
  for (const auto& [id, executor] : pool_.all()) executor->renew_standby();
}

void LoadReplays::begin(const ManagedExecutor& executor, ExecutorInstance& life) {
  if (life.loads_given == 0) shorten_log(executor);
  reserve_fed(executor, life);
  replay(executor, life);
}

// Whose a copy is was not known yet when a standby was fed, or has changed since.
void LoadReplays::reserve_fed(const ManagedExecutor& executor, ExecutorInstance& life) const {
  const CopyOwners owners = copy_owners(executor);
  std::size_t number = 0;
  for (const ImageStore::Entry& entry : images_.log()) {
    if (entry.executor != executor.id() || ++number > life.loads_given || entry.kind != LogKind::load) continue;
    const auto owner = owners.find({entry.object, entry.copy});
    life.send(message::CopyReserve{.session = owner != owners.end() ? owner->second : 0, .image = entry.object, .copy = entry.copy});
  }
}

// Nobody may attach before what is in the log has been made again.
void LoadReplays::shorten_log(const ManagedExecutor& executor) {
  const CopyOwners owners = copy_owners(executor);
  // After a restart of the broker sessions are placed only when they come.
  const auto comes_here = [&](const ClientSession& session) {
    const bool is_to_come = session.executor == nullptr && limits_.house_of(session.client.uid) == executor.user();
    return (session.executor == &executor || is_to_come) && session.phase != SessionPhase::lost && !session.is_ending();
  };
  const auto is_held = [&](std::uint64_t image) {
    return std::ranges::any_of(sessions_.all(), [&](const auto& entry) { return comes_here(entry.second) && images_.is_held(image, entry.first); });
  };
  const std::size_t before = images_.log().size();
  const std::size_t gone = images_.shorten(executor.id(), {[&](const ImageStore::Entry& entry) {
                                                             return owners.contains({entry.object, entry.copy});
                                                           },
                                                           is_held});
  if (gone == 0) return;
  log_info("Executor {}: {} of {} loads, streams, graphs and side contexts of the life before are made again when they are wanted.", executor.label(),
           gone, before);
}

void LoadReplays::replay(const ManagedExecutor& executor, ExecutorInstance& life) {
  const CopyOwners owners = copy_owners(executor);
  std::size_t number = 0;
  for (const ImageStore::Entry& entry : images_.log()) {
    if (entry.executor != executor.id() || ++number <= life.loads_given) continue;
    life.loads_given = number;
    message::LoadReplay replay{.object = entry.object, .copy = entry.copy, .kind = entry.kind};
    if (entry.kind != LogKind::load) {
      life.send(replay);
      continue;
    }
    if (const auto owner = owners.find({entry.object, entry.copy}); owner != owners.end()) replay.session = owner->second;
    std::uint64_t size_bytes = 0;
    int fd = images_.compiled_file(executor.id().device, entry.object);
    if (fd < 0) fd = images_.sealed_file(0, entry.object, size_bytes);
    life.send({replay, {.image = fd}});
  }
}

void LoadReplays::feed_standby(const ManagedExecutor& executor) {
  if (ExecutorInstance* standby = executor.standby()) replay(executor, *standby);
}

// Its own executor has ended with the program that was before; then sessions are placed when they come.
bool LoadReplays::comes_after_restart(const ClientSession& session, const ManagedExecutor& executor) const {
  const bool is_its_device = executor.id().ordinal == 0 && executor.id().device == session.device;
  return session.executor == nullptr && is_its_device && limits_.house_of(session.client.uid) == executor.user() &&
         session.phase != SessionPhase::lost && !session.is_ending();
}

// Which session of this executor has which copy of an image, with variables that it is to have again.
LoadReplays::CopyOwners LoadReplays::copy_owners(const ManagedExecutor& executor) const {
  CopyOwners owners;
  for (const auto& [id, session] : sessions_.all()) {
    const bool is_coming = session.relocation && session.relocation->to == &executor;
    if (session.executor == &executor || is_coming || comes_after_restart(session, executor)) add_copies_of(session, owners);
  }
  return owners;
}

void LoadReplays::add_copies_of(const ClientSession& session, CopyOwners& owners) {
  if (!session.variables.valid()) return;
  const auto file = proto::Mapping::map(session.variables, 0, sizeof(KeptVariablesFile), proto::Access::read_only);
  if (!file) return;
  for (const KeptVariable& variable : table_of(*reinterpret_cast<const KeptVariablesFile*>(file.data())))
    owners.emplace(std::pair(variable.image, variable.copy), session.id);
}

void LoadReplays::copy_log(const ClientSession& session, const ManagedExecutor& from, const ManagedExecutor& to) {
  CopyOwners owners;
  add_copies_of(session, owners);
  images_.copy_log(from.id(), to.id(),
                   {[&](const ImageStore::Entry& entry) {
                      return owners.contains({entry.object, entry.copy});
                    },
                    [&](std::uint64_t image) { return images_.is_held(image, session.id); }});
}

void LoadReplays::forget_variables(ClientSession& session) {
  if (session.executor != nullptr) release_copies(session, *session.executor);
  session.variables.reset();
}

void LoadReplays::release_copies(const ClientSession& session, ManagedExecutor& executor) {
  if (!session.variables.valid() || executor.state() != ExecutorState::active) return;
  executor.send(message::VariablesForget{.session = session.id});
}

}  // namespace mpsshim::broker::control
