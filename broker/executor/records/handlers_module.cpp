// SPDX-License-Identifier: Apache-2.0
// Modules, functions and globals. What the store has in memory is answered at once; loading and looking up are done by helpers and quiet
// windows, whose results come back to the worker. It alone changes the session's tables, and only then is the client answered: a launch that
// follows the answer finds its function.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

#include "broker/executor/modules/module_store.hpp"
#include "broker/executor/records/dispatch.hpp"
#include "broker/log.hpp"
#include "proto/managed_variables.hpp"

namespace mpsshim::broker {

namespace {

std::span<const std::byte> as_bytes_of(const std::string& text) { return std::as_bytes(std::span(text.data(), text.size())); }

// On the worker.
void add_module(Session& session, Reply& reply, proto::ModuleId id, ImageUse use, bool are_variables_restored = false) {
  const ImageRef image = *use;
  auto module = std::make_unique<SessionModule>();
  module->image = image;
  module->use = std::move(use);
  if (image->has_references) module->references = std::make_shared<ModuleReferences>();
  const CUresult result = session.modules().insert(id, std::move(module)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  if (result == CUDA_SUCCESS && image->holds_contents()) session.add_variables(id, image, are_variables_restored);
  const auto held = are_variables_restored ? proto::ModuleGlobals::restored : proto::ModuleGlobals::writable;
  const proto::ModuleLoadReply answer{image->function_count, image->holds_contents() ? held : proto::ModuleGlobals::none, image->adds_for_system, 0};
  reply.answer_with(result, answer, result == CUDA_SUCCESS ? std::span<const std::byte>(image->description) : std::span<const std::byte>());
}

// What its kernels find on the device's heap comes first.
void add_counted(Session& session, const SharedReply& reply, proto::ModuleId id, ImageUse use) {
  if (!(*use)->uses_device_heap) return add_module(session, *reply, id, std::move(use));
  session.seek_blank_heap([&session, reply, id, use = std::move(use)] { add_module(session, *reply, id, use); });
}

// A copy of a session's own takes device memory for it, which counts against its limits as long as it is used. One that several run is nobody's.
bool is_counted(Session& session, const LoadedImage& image) { return session.memory().limit().is_set() && image.is_exclusive(); }

// In a helper. CUDA_ERROR_OUT_OF_MEMORY: it is not to be had.
CUresult count(Session& session, ImageUse& use) {
  struct Counted {
    ImageUse use;
    DeviceGrant grant;
  };
  if (!is_counted(session, **use)) return CUDA_SUCCESS;
  const auto counted = std::make_shared<Counted>(Counted{use, {}});
  const CUresult result = session.memory().limit().ask((*use)->cost_bytes, counted->grant);
  if (result == CUDA_SUCCESS) use = ImageUse(counted, counted->use.get());
  return result;
}

// In a helper. What the session has just given back is waited for.
void count_and_add(Session& session, const SharedReply& reply, proto::ModuleId id, ImageUse use, bool is_releasing) {
  const CUresult result = count(session, use);
  const bool is_awaited = result == CUDA_ERROR_OUT_OF_MEMORY && is_releasing;
  session.finish_job([&session, reply, id, result, is_awaited, use = std::move(use)] {
    if (is_awaited) {
      return session.start_after_releases([reply, id, use](const std::shared_ptr<Session>& self) { count_and_add(*self, reply, id, use, false); });
    }
    if (result != CUDA_SUCCESS) return reply->answer_with(result, proto::ModuleLoadReply{});
    add_counted(session, reply, id, use);
  });
}

void add_loaded(Session& session, const SharedReply& reply, proto::ModuleId id, ImageUse use) {
  if (!is_counted(session, **use)) return add_counted(session, reply, id, std::move(use));
  const bool is_releasing = session.is_releasing();  // before the attempt, as for chunks
  session.start_job([reply, id, is_releasing, use = std::move(use)](const std::shared_ptr<Session>& owner) {
    count_and_add(*owner, reply, id, use, is_releasing);
  });
}

// The name that /proc has for the client's program.
std::string program_of(const Session& session) {
  std::ifstream file("/proc/" + std::to_string(session.client_pid()) + "/comm");
  std::string name;
  return std::getline(file, name) ? name : "?";
}

void finish_load(const std::shared_ptr<Session>& session, const SharedReply& reply, proto::ModuleId id, CUresult result, ImageUse use,
                 std::string log) {
  if (result != CUDA_SUCCESS && !log.empty()) {
    log_warning("Session {} (pid {}, {}): an image is refused ({}): {}", session->id(), session->client_pid(), program_of(*session),
                session->parts().driver.describe(result), log);
  }
  log.resize(std::min(log.size(), proto::kMaxReplyBytes - sizeof(proto::ModuleLoadReply)));
  session->finish_job([session, reply, id, result, use = std::move(use), log = std::move(log)] {
    if (result != CUDA_SUCCESS) return reply->answer_with(result, proto::ModuleLoadReply{}, as_bytes_of(log));
    add_loaded(*session, reply, id, use);
  });
}

// Nothing was loaded: the client places these and comes again.
void answer_managed(const std::shared_ptr<Session>& session, const SharedReply& reply, const std::vector<image::ManagedVariable>& variables) {
  std::vector<std::byte> table;
  for (const image::ManagedVariable& variable : variables) {
    proto::append_managed_entry(table, variable.name, variable.size_bytes, variable.starts_as_zeroes);
  }
  const bool fits = table.size() <= proto::kMaxReplyBytes - sizeof(proto::ModuleLoadReply);
  if (!fits) {
    log_warning("Session {} (pid {}): the names of an image's {} __managed__ variables are more than a reply holds ({} bytes); it is not loaded",
                session->id(), session->client_pid(), variables.size(), table.size());
  }
  session->finish_job([reply, fits, table = std::move(table)] {
    if (!fits) return reply->answer_with(CUDA_ERROR_NOT_SUPPORTED, proto::ModuleLoadReply{});
    reply->answer_with(CUDA_SUCCESS, proto::ModuleLoadReply{0, proto::ModuleGlobals::need_places, false, 0}, table);
  });
}

// Of a session on trial: nobody has the variables' addresses, so they may be others.
void restore_anywhere(OutOfLineCall& incoming, const proto::ModuleLoadRecord& record, SessionVariables::Kept kept) {
  if (kept.is_any_out) return incoming.answer_with(CUDA_ERROR_MPS_SERVER_NOT_READY, proto::ModuleLoadReply{});
  incoming.session.start_job([reply = incoming.share_reply(), record, kept = std::move(kept)](const std::shared_ptr<Session>& session) {
    const auto done = [session, reply, id = record.module, kept](CUresult result, ImageUse use, const std::string&) {
      ModuleStore& modules = session->parts().modules;
      if (result == CUDA_SUCCESS) result = modules.put_elsewhere(session->id(), **use, kept.variables);
      session->finish_job([session, reply, id, result, use = std::move(use)] {
        if (result != CUDA_SUCCESS) return reply->answer_with(result, proto::ModuleLoadReply{});
        add_module(*session, *reply, id, use, true);
      });
    };
    session->parts().modules.load(session->id(), record.image, done, {}, record.offers.has(proto::ModuleOffer::has_objects));
  });
}

// A module of an earlier executor, whose variables are to hold again what they held there: in the same copy of the image, at the same addresses.
void restore_module(OutOfLineCall& incoming, const proto::ModuleLoadRecord& record) {
  std::optional<SessionVariables::Kept> kept = incoming.session.variables().kept(record.module, record.image);
  if (!kept) {
    log_warning(
        "Session {} (pid {}): what the variables of image {} held is gone with its last executor: more than {} bytes in all, written to just before, "
        "or memory of the device's own heap. The session ends",
        incoming.session.id(), incoming.session.client_pid(), record.image, kMaxKeptBytes);
    return incoming.answer_with(CUDA_ERROR_MPS_SERVER_NOT_READY, proto::ModuleLoadReply{});
  }
  if (record.offers.has(proto::ModuleOffer::anywhere)) return restore_anywhere(incoming, record, std::move(*kept));
  incoming.session.start_job([reply = incoming.share_reply(), record, kept = std::move(*kept)](const std::shared_ptr<Session>& session) {
    ImageUse use;
    const CUresult result = session->parts().modules.take_kept(session->id(), record.image, kept.copy, kept.variables, use);
    if (result == CUDA_SUCCESS) (void)count(*session, use);  // it had it before
    session->finish_job([session, reply, id = record.module, result, use = std::move(use)] {
      if (result != CUDA_SUCCESS) return reply->answer_with(result, proto::ModuleLoadReply{});
      add_module(*session, *reply, id, use, true);
    });
  });
}

// The function's name is known to the control process before its first launch.
std::unique_ptr<SessionFunction> bound_function(const Session& session, const SessionModule& module, const LoadedFunction& loaded) {
  if (loaded.name_offset.load(std::memory_order_relaxed) == 0) {
    loaded.name_offset.store(session.parts().function_names.add(loaded.name), std::memory_order_relaxed);
  }
  return std::make_unique<SessionFunction>(SessionFunction{&loaded, module.use, module.references});
}

// On the worker. The module may have gone meanwhile: then so has what was found in it.
CUresult add_function(Session& session, const proto::FunctionLookupRecord& record, const ImageRef& image, const LoadedFunction* loaded) {
  const proto::Known<SessionModule> module = session.modules().find(record.module);
  if (!module || module->image != image) return CUDA_ERROR_INVALID_HANDLE;
  if (!session.functions().insert(record.function, bound_function(session, *module, *loaded))) return CUDA_ERROR_INVALID_HANDLE;
  module->functions.push_back(record.function);
  return CUDA_SUCCESS;
}

// The same of a variable. In a copy that others run as well there is nothing that a client may read or write.
CUresult add_global(Session& session, proto::ModuleId id, const ImageRef& image, std::uint64_t address, std::uint64_t size_bytes) {
  const proto::Known<SessionModule> module = session.modules().find(id);
  if (!module || module->image != image) return CUDA_ERROR_INVALID_HANDLE;
  if (!image->is_one_clients()) return CUDA_SUCCESS;
  session.variables().give_out(id, address, !session.streams().is_idle());
  session.memory().add_global(address, size_bytes);
  if (std::ranges::find(module->globals, address) == module->globals.end()) module->globals.push_back(address);
  return CUDA_SUCCESS;
}

void answer_function(Reply& reply, CUresult result, const LoadedFunction* loaded) {
  proto::FunctionLookupReply answer{};
  if (result != CUDA_SUCCESS) return reply.answer_with(result, answer);
  answer.parameter_count = static_cast<std::uint32_t>(loaded->parameters.size());
  answer.parameter_bytes = loaded->parameter_bytes;
  std::memcpy(answer.attribute, loaded->attribute, sizeof answer.attribute);
  answer.attribute_valid = loaded->attribute_valid;
  static_assert(sizeof(ParameterLayout) == 8);  // {u32 offset, u32 size}, as the record says
  reply.answer_with(result, answer, std::as_bytes(std::span(loaded->parameters)));
}

void answer_names(Reply& reply, CUresult result, const std::vector<std::string>& names, std::uint32_t first) {
  proto::FunctionListReply answer{static_cast<std::uint32_t>(names.size()), 0};
  std::string text;
  for (std::size_t i = first; i < names.size(); ++i) {
    if (text.size() + names[i].size() + 1 > proto::kMaxReplyBytes - sizeof answer) break;
    text.append(names[i].c_str(), names[i].size() + 1);
    ++answer.returned;
  }
  reply.answer_with(result, answer, as_bytes_of(text));
}

}  // namespace

void handle(OutOfLineCall& incoming, const proto::ModuleLoadRecord& record) {
  if (!record.module.has_kind()) return incoming.malformed("its module id is of another kind");
  if (incoming.session.modules().find(record.module)) return incoming.malformed("its module id is in use");
  if (record.restores) return restore_module(incoming, record);
  if (ImageUse known = incoming.session.parts().modules.find(record.image, incoming.session.id())) {
    log_debug("Session {}: image {} is loaded already", incoming.session.id(), record.image);
    return add_loaded(incoming.session, incoming.share_reply(), record.module, std::move(known));
  }
  incoming.session.start_job([reply = incoming.share_reply(), record](const std::shared_ptr<Session>& session) {
    const auto done = [session, reply, id = record.module](CUresult result, ImageUse use, std::string log) {
      finish_load(session, reply, id, result, std::move(use), std::move(log));
    };
    ModuleStore::NeedsPlaces needs_places;
    if (record.offers.has(proto::ModuleOffer::places_managed)) {
      needs_places = [&](const std::vector<image::ManagedVariable>& variables) { answer_managed(session, reply, variables); };
    }
    session->parts().modules.load(session->id(), record.image, done, needs_places, record.offers.has(proto::ModuleOffer::has_objects));
  });
}

void handle(SessionPost& incoming, const proto::ModuleUnloadRecord& record) {
  Session& session = incoming.session;
  if (!incoming.find(session.modules(), record.module)) return;
  const std::unique_ptr<SessionModule> module = session.modules().take(record.module);
  if (module->image->holds_contents()) session.variables().remove(record.module);
  for (const proto::FunctionId function : module->functions) (void)session.functions().take(function);
  for (const proto::ReferenceId reference : module->reference_ids) (void)session.references().take(reference);
  session.retire_module(*module);
}

void handle(SessionPost& incoming, const proto::FunctionBindRecord& record) {
  const proto::Known<SessionModule> module = incoming.find(incoming.session.modules(), record.module);
  if (!module) return;
  if (!record.function.has_kind()) return incoming.malformed("its function id is of another kind");
  if (record.number >= module->image->described.size()) return incoming.malformed("the module has no function of that number");
  const LoadedFunction* loaded = module->image->described[record.number];
  if (!incoming.session.functions().insert(record.function, bound_function(incoming.session, *module, *loaded))) {
    return incoming.malformed("its function id is in use");
  }
  module->functions.push_back(record.function);
}

void handle(OutOfLineCall& incoming, const proto::FunctionLookupRecord& record) {
  const proto::Known<SessionModule> module = incoming.find(incoming.session.modules(), record.module);
  if (!module) return;
  if (!record.function.has_kind()) return incoming.malformed("its function id is of another kind");
  if (const LoadedFunction* known = ModuleStore::find_function(*module->image, incoming.text())) {
    return answer_function(incoming.reply(), add_function(incoming.session, record, module->image, known), known);
  }
  incoming.session.start_job(
      [reply = incoming.share_reply(), record, image = module->image, name = incoming.text()](const std::shared_ptr<Session>& session) {
        session->parts().modules.find_function(
            session->id(), image, name, [session, reply, record, image](CUresult result, const LoadedFunction* loaded) {
              session->finish_job([session, reply, record, image, result, loaded] {
                answer_function(*reply, result == CUDA_SUCCESS ? add_function(*session, record, image, loaded) : result, loaded);
              });
            });
      });
}

void handle(OutOfLineCall& incoming, const proto::FunctionListRecord& record) {
  const proto::Known<SessionModule> module = incoming.find(incoming.session.modules(), record.module);
  if (!module) return;
  incoming.session.start_job([reply = incoming.share_reply(), first = record.first, image = module->image](const std::shared_ptr<Session>& session) {
    session->parts().modules.list_functions(session->id(), image, [session, reply, first](CUresult result, const std::vector<std::string>& names) {
      answer_names(*reply, result, names, first);
      session->finish_job();
    });
  });
}

void handle(OutOfLineCall& incoming, const proto::GlobalLookupRecord& record) {
  const proto::Known<SessionModule> module = incoming.find(incoming.session.modules(), record.module);
  if (!module) return;
  incoming.session.start_job(
      [reply = incoming.share_reply(), id = record.module, image = module->image, name = incoming.text()](const std::shared_ptr<Session>& session) {
        session->parts().modules.find_global(
            session->id(), image, name, [session, reply, id, image](CUresult result, CUdeviceptr address, std::size_t size) {
              session->finish_job([session, reply, id, image, result, address, size] {
                const CUresult added = result == CUDA_SUCCESS ? add_global(*session, id, image, address, size) : result;
                reply->answer_with(added, added == CUDA_SUCCESS ? proto::GlobalLookupReply{address, size} : proto::GlobalLookupReply{});
              });
            });
      });
}

void handle(SessionCall& incoming, const proto::VariableReadRecord& record) {
  const proto::Known<SessionModule> module = incoming.find(incoming.session.modules(), record.module);
  if (!module) return;
  const LoadedImage& image = *module->image;
  const auto found = image.placed.find(incoming.text());
  if (found == image.placed.end()) return incoming.answer_with(CUDA_ERROR_NOT_FOUND, proto::VariableReadReply{});
  const auto rest = std::span(found->second).subspan(std::min<std::size_t>(record.offset, found->second.size()));
  incoming.answer_with(CUDA_SUCCESS, proto::VariableReadReply{found->second.size()},
                       rest.first(std::min(rest.size(), proto::kMaxReplyBytes - sizeof(proto::VariableReadReply))));
}

}  // namespace mpsshim::broker
