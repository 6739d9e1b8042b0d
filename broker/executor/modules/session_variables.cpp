// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/session_variables.hpp"

#include <algorithm>
#include <cstring>

#include "broker/executor/link/control_link.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::size_t kAlignment = 16;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool is_of_module(const KeptVariable& variable, proto::ModuleId module) { return variable.module == module.value; }

}  // namespace

bool SessionVariables::open() {
  if (file_.load(std::memory_order_relaxed) != nullptr) return true;
  const proto::FileDescriptor file = proto::create_memory_file("mpsshim-variables", sizeof(KeptVariablesFile));
  if (file.valid() && proto::seal(file, proto::Seal::size))
    mapping_ = proto::Mapping::map(file, 0, sizeof(KeptVariablesFile), proto::Access::read_write);
  if (!mapping_) {
    log_warning("Session {}: no memory to keep its modules' variables; if its executor ends, so does the session. Free memory.", session_);
    return false;
  }
  auto* const made = reinterpret_cast<KeptVariablesFile*>(mapping_.data());  // zeroes: exact, of nothing
  made->layout = kKeptLayout;
  control_.send({message::VariablesFile{.session = session_}, {.variables = file.get()}});
  file_.store(made, std::memory_order_release);
  return true;
}

// What an earlier executor noted of a load that its client never heard of and has asked for again; and of a module that has gone. The contents
// stay where they are.
void SessionVariables::forget(proto::ModuleId module) {
  KeptVariablesFile& file = *file_.load(std::memory_order_relaxed);
  const auto table = std::span(file.variable).first(table_of(file).size());
  const auto end = std::remove_if(table.begin(), table.end(), [&](const KeptVariable& variable) { return is_of_module(variable, module); });
  file.count.store(static_cast<std::uint32_t>(end - table.begin()), std::memory_order_relaxed);
}

// To the table; the caller has made the file inexact and makes it exact again. Without contents, or where they are not known, they are out of date.
void SessionVariables::append(Module& module, bool with_contents) {
  KeptVariablesFile& file = *file_.load(std::memory_order_relaxed);
  const LoadedImage& image = *module.image;
  std::uint32_t count = file.count.load(std::memory_order_relaxed);
  std::size_t bytes = 0;
  for (const LoadedImage::Variable& variable : image.variables) bytes += aligned(variable.size_bytes);
  module.is_refused = image.uses_device_heap || image.variables.empty() || image.changes == nullptr || bytes > kMaxKeptBytes - used_bytes_ ||
                      image.variables.size() >= kMaxKeptVariables - count;
  module.kept.assign(image.variables.size(), kNeverKept);
  module.begun_bytes = 0;
  KeptVariable entry{module.id.value, image.image, image.copy};
  if (module.is_refused) {
    log_debug("Session {}: the variables of image {} are not kept: {} of them, {} bytes", session_, image.image, image.variables.size(), bytes);
    if (count < kMaxKeptVariables) file.variable[count++] = entry;
  }
  for (std::size_t i = 0; !module.is_refused && i < image.variables.size(); ++i) {
    const LoadedImage::Variable& variable = image.variables[i];
    entry.address = variable.address;
    entry.size_bytes = variable.size_bytes;
    entry.offset = used_bytes_;
    entry.is_out = image.changes->is_out(i) ? 1 : 0;
    entry.loaded_hash = variable.loaded_hash;
    entry.is_looked_up = module.looked_up.contains(variable.address) ? 1 : 0;
    file.variable[count++] = entry;
    used_bytes_ += aligned(variable.size_bytes);
    if (!with_contents || !variable.is_content_known) continue;
    module.kept[i] = this->count(module, i);
    std::byte* const contents = file.contents + entry.offset;
    if (variable.content.empty())
      std::memset(contents, 0, variable.size_bytes);
    else
      std::memcpy(contents, variable.content.data(), variable.size_bytes);
  }
  file.count.store(count, std::memory_order_relaxed);
}

void SessionVariables::note_span() {
  std::uint64_t begin = ~std::uint64_t{0};
  std::uint64_t end = 0;
  for (const Module& module : modules_) {
    for (const LoadedImage::Variable& variable : module.image->variables) {
      begin = std::min<std::uint64_t>(begin, variable.address);
      end = std::max<std::uint64_t>(end, variable.address + variable.size_bytes);
    }
  }
  begin_.store(begin, std::memory_order_relaxed);
  end_.store(end, std::memory_order_relaxed);
}

// Its variables hold what they held at first: where all others' contents are exact, the file stays so, if that is known.
void SessionVariables::add(proto::ModuleId module, const ImageRef& image) {
  const std::lock_guard lock(mutex_);
  if (image->changes) image->changes->begin(session_);
  Module& added = modules_.emplace_back(Module{module, image, {}, 0, 0, 0, false, {}});
  note_span();
  if (!open()) return;
  KeptVariablesFile& file = *file_.load(std::memory_order_relaxed);
  const std::uint64_t at = file.changes.load(std::memory_order_acquire);
  const bool was_exact = file.kept_at.load(std::memory_order_relaxed) == at;
  file.kept_at.store(kNeverKept, std::memory_order_release);
  ++layout_;
  forget(module);
  append(added, true);
  if (added.is_refused && used_bytes_ > 0) lay_out_anew();  // modules that have gone may have left room
  const bool are_known = std::ranges::find(added.kept, kNeverKept) == added.kept.end();
  if (was_exact && (are_known || added.is_refused)) file.kept_at.store(at, std::memory_order_release);
}

void SessionVariables::remove(proto::ModuleId module) {
  const std::lock_guard lock(mutex_);
  const bool had_it = std::erase_if(modules_, [&](const Module& one) { return one.id == module; }) != 0;
  note_span();
  if (!had_it || file_.load(std::memory_order_relaxed) == nullptr) return;
  KeptVariablesFile& file = *file_.load(std::memory_order_relaxed);
  const std::uint64_t kept_at = file.kept_at.exchange(kNeverKept, std::memory_order_acq_rel);
  ++layout_;
  forget(module);
  if (modules_.empty()) used_bytes_ = 0;
  if (std::ranges::any_of(modules_, &Module::is_refused)) return lay_out_anew();
  file.kept_at.store(kept_at, std::memory_order_release);
}

// The contents move, so they have to be copied again.
void SessionVariables::lay_out_anew() {
  KeptVariablesFile& file = *file_.load(std::memory_order_relaxed);
  file.kept_at.store(kNeverKept, std::memory_order_release);
  ++layout_;
  used_bytes_ = 0;
  file.count.store(0, std::memory_order_relaxed);
  for (Module& module : modules_) append(module, false);
}

void SessionVariables::give_out(proto::ModuleId module, std::uint64_t address, bool is_at_work) {
  VariableChanges::Use use;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(modules_, module, &Module::id);
    if (found == modules_.end() || found->image->changes == nullptr) return;
    note_looked_up(*found, address);
    const auto& variables = found->image->variables;
    const auto variable = std::ranges::find(variables, address, &LoadedImage::Variable::address);
    use.changes = found->image->changes.get();
    use.all = !found->image->uses.are_known || variable == variables.end();  // one may hold others' addresses
    if (!use.all) use.variables.push_back(static_cast<std::uint32_t>(variable - variables.begin()));
  }
  set_out(use);
  if (!is_at_work || !use.changes->is_any_out(use)) return;
  use.changes->note(use);
  if (KeptVariablesFile* const file = file_.load(std::memory_order_relaxed)) file->changes.fetch_add(1, std::memory_order_release);
}

void SessionVariables::note_looked_up(Module& module, std::uint64_t address) {
  module.looked_up.insert(address);
  KeptVariablesFile* const file = file_.load(std::memory_order_relaxed);
  if (file == nullptr) return;
  for (KeptVariable& entry : std::span(file->variable).first(table_of(*file).size())) {
    if (is_of_module(entry, module.id) && entry.address == address) entry.is_looked_up = 1;
  }
}

// Before the driver gets what may use the addresses, and where the next executor finds it.
void SessionVariables::set_out(const VariableChanges::Use& use) {
  const std::lock_guard lock(mutex_);
  use.changes->set_out(use);
  if (!use.changes->is_any_out(use)) return;  // constants
  are_any_out_.store(true, std::memory_order_relaxed);
  KeptVariablesFile* const file = file_.load(std::memory_order_relaxed);
  const auto module = std::ranges::find_if(modules_, [&](const Module& one) { return one.image->changes.get() == use.changes; });
  if (file == nullptr || module == modules_.end() || module->is_refused) return;
  std::size_t variable = 0;
  for (KeptVariable& entry : std::span(file->variable).first(table_of(*file).size())) {
    if (is_of_module(entry, module->id)) entry.is_out = use.changes->is_out(variable++) ? 1 : 0;
  }
}

void SessionVariables::note_launch(const LoadedFunction& kernel) {
  KeptVariablesFile* const file = file_.load(std::memory_order_relaxed);
  if (file == nullptr || !may_write(kernel)) return;
  const VariableChanges::Use* const use = kernel.variables.get();
  if (use != nullptr) use->changes->note(*use);
  if (are_any_out_.load(std::memory_order_relaxed)) anythings_.fetch_add(1, std::memory_order_release);
  file->changes.fetch_add(1, std::memory_order_release);
  if (use != nullptr && use->leaves_addresses && !use->changes->are_out(*use)) set_out(*use);
}

void SessionVariables::note_write(std::uint64_t address, std::uint64_t size_bytes) {
  KeptVariablesFile* const file = file_.load(std::memory_order_relaxed);
  if (file == nullptr || !may_be_in(address, size_bytes)) return;
  {
    const std::lock_guard lock(mutex_);
    for (const Module& module : modules_) {
      for (std::size_t i = 0; i < module.kept.size(); ++i) {
        const LoadedImage::Variable& variable = module.image->variables[i];
        if (address < variable.address + variable.size_bytes && address + size_bytes > variable.address) module.image->changes->note(i);
      }
    }
  }
  file->changes.fetch_add(1, std::memory_order_release);
}

void SessionVariables::note_anything() {
  std::vector<VariableChanges*> all;
  {
    const std::lock_guard lock(mutex_);
    for (const Module& module : modules_) {
      if (module.image->changes) all.push_back(module.image->changes.get());
    }
  }
  for (VariableChanges* const changes : all) {
    changes->note_all();
    set_out({changes, {}, true, true});
  }
  KeptVariablesFile* const file = file_.load(std::memory_order_relaxed);
  if (file != nullptr) file->changes.fetch_add(1, std::memory_order_release);
}

bool SessionVariables::adopt(const proto::FileDescriptor& file) {
  const std::lock_guard lock(mutex_);
  if (proto::sealed_size(file).value_or(0) < sizeof(KeptVariablesFile)) return false;
  mapping_ = proto::Mapping::map(file, 0, sizeof(KeptVariablesFile), proto::Access::read_write);
  if (!mapping_) return false;
  auto* const adopted = reinterpret_cast<KeptVariablesFile*>(mapping_.data());
  is_broken_.store(!adopted->is_exact() || adopted->layout != kKeptLayout, std::memory_order_relaxed);
  for (const KeptVariable& variable : table_of(*adopted)) {
    used_bytes_ = std::max(used_bytes_, variable.offset + aligned(variable.size_bytes));
    if (variable.is_out != 0) are_any_out_.store(true, std::memory_order_relaxed);
  }
  file_.store(adopted, std::memory_order_release);
  return true;
}

std::optional<SessionVariables::Kept> SessionVariables::kept(proto::ModuleId module, std::uint64_t image) const {
  const std::lock_guard lock(mutex_);
  const KeptVariablesFile* const file = file_.load(std::memory_order_relaxed);
  if (file == nullptr || is_broken_ || !file->is_exact()) return std::nullopt;
  Kept found;
  for (const KeptVariable& variable : table_of(*file)) {
    if (!is_of_module(variable, module) || variable.image != image) continue;
    if (variable.size_bytes == 0) return std::nullopt;
    found.copy = variable.copy;
    found.is_any_out |= variable.is_out != 0;
    const std::byte* const contents = file->contents + variable.offset;
    found.variables.push_back({variable.address, variable.size_bytes, std::vector(contents, contents + variable.size_bytes), true,
                               variable.loaded_hash, variable.is_looked_up != 0});
  }
  if (found.variables.empty()) return std::nullopt;
  return found;
}

void SessionVariables::restored(proto::ModuleId module, const ImageRef& image) {
  const std::lock_guard lock(mutex_);
  Module& back = modules_.emplace_back(Module{module, image, {}, 0, 0, 0, false, {}});
  note_span();
  VariableChanges& changes = *image->changes;
  changes.begin(session_);
  for (std::size_t i = 0; i < changes.size(); ++i) back.kept.push_back(count(back, i));
  std::size_t number = 0;
  for (const KeptVariable& entry : table_of(*file_.load(std::memory_order_relaxed))) {
    if (!is_of_module(entry, module)) continue;
    if (entry.is_out != 0) changes.set_out(number);
    if (entry.is_looked_up != 0) back.looked_up.insert(entry.address);
    if (number < image->variables.size() && entry.loaded_hash != image->variables[number].loaded_hash) {
      back.kept[number] = kNeverKept;  // it stands as it was loaded: the file has what the earlier load wrote, and its hash, until it is copied
    }
    ++number;
  }
}

bool SessionVariables::can_be_kept() const {
  const std::lock_guard lock(mutex_);
  const KeptVariablesFile* const file = file_.load(std::memory_order_relaxed);
  if (file == nullptr) return modules_.empty();
  return !is_broken_ && std::ranges::none_of(table_of(*file), [](const KeptVariable& variable) { return variable.size_bytes == 0; });
}

bool SessionVariables::are_kept() const {
  const KeptVariablesFile* const file = file_.load(std::memory_order_relaxed);
  return file == nullptr || file->is_exact();
}

void SessionVariables::give_up() { is_broken_.store(true, std::memory_order_relaxed); }

}  // namespace mpsshim::broker
