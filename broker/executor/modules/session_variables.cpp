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
  control_.send({message::VariablesFile{.session = session_}, {.variables = file.get()}});
  file_.store(reinterpret_cast<KeptVariablesFile*>(mapping_.data()), std::memory_order_release);  // zeroes: exact, of nothing
  return true;
}

// What an earlier executor noted of a load that its client never heard of and has asked for again.
void SessionVariables::forget(proto::ModuleId module) {
  KeptVariablesFile& file = *file_.load(std::memory_order_relaxed);
  const auto table = std::span(file.variable).first(table_of(file).size());
  const auto end = std::remove_if(table.begin(), table.end(), [&](const KeptVariable& variable) { return variable.module == module.value; });
  file.count.store(static_cast<std::uint32_t>(end - table.begin()), std::memory_order_relaxed);
}

// Appends to the table; the caller has made the file inexact and makes it exact again.
void SessionVariables::append(const Module& module, bool with_contents) {
  KeptVariablesFile& file = *file_.load(std::memory_order_relaxed);
  const LoadedImage& image = *module.image;
  std::uint32_t count = file.count.load(std::memory_order_relaxed);
  std::size_t bytes = 0;
  for (const LoadedImage::Variable& variable : image.variables) bytes += aligned(variable.size_bytes);
  const bool is_kept = !image.uses_device_heap && !image.variables.empty() && bytes <= kMaxKeptBytes - used_bytes_ &&
                       image.variables.size() < kMaxKeptVariables - count;
  KeptVariable entry{module.id.value, image.image, image.copy, 0, 0, 0};
  if (!is_kept) {
    log_debug("Session {}: the variables of image {} are not kept: {} of them, {} bytes", session_, image.image, image.variables.size(), bytes);
    if (count < kMaxKeptVariables) file.variable[count++] = entry;
  } else {
    for (const LoadedImage::Variable& variable : image.variables) {
      entry.address = variable.address;
      entry.size_bytes = variable.size_bytes;
      entry.offset = used_bytes_;
      file.variable[count++] = entry;
      used_bytes_ += aligned(variable.size_bytes);
      std::byte* const contents = file.contents + entry.offset;
      if (!with_contents) continue;
      if (variable.content.empty())
        std::memset(contents, 0, variable.size_bytes);
      else
        std::memcpy(contents, variable.content.data(), variable.size_bytes);
    }
  }
  file.count.store(count, std::memory_order_relaxed);
}

// Its variables hold what they held at first: where all others' contents are exact, the file stays so.
void SessionVariables::add(proto::ModuleId module, const ImageRef& image) {
  const std::lock_guard lock(mutex_);
  modules_.push_back({module, image});
  if (!open()) return;
  KeptVariablesFile& file = *file_.load(std::memory_order_relaxed);
  const std::uint64_t at = file.changes.load(std::memory_order_acquire);
  const bool was_exact = file.kept_at.load(std::memory_order_relaxed) == at;
  file.kept_at.store(kNeverKept, std::memory_order_release);
  ++layout_;
  forget(module);
  append(modules_.back(), was_exact);
  if (was_exact) file.kept_at.store(at, std::memory_order_release);
}

void SessionVariables::remove(proto::ModuleId module) {
  const std::lock_guard lock(mutex_);
  const bool had_it = std::erase_if(modules_, [&](const Module& one) { return one.id == module; }) != 0;
  if (had_it && file_.load(std::memory_order_relaxed) != nullptr) lay_out_anew();
}

// The contents move, so they have to be copied again.
void SessionVariables::lay_out_anew() {
  KeptVariablesFile& file = *file_.load(std::memory_order_relaxed);
  file.kept_at.store(kNeverKept, std::memory_order_release);
  ++layout_;
  used_bytes_ = 0;
  file.count.store(0, std::memory_order_relaxed);
  for (const Module& module : modules_) append(module, false);
}

bool SessionVariables::adopt(const proto::FileDescriptor& file) {
  const std::lock_guard lock(mutex_);
  if (proto::sealed_size(file).value_or(0) < sizeof(KeptVariablesFile)) return false;
  mapping_ = proto::Mapping::map(file, 0, sizeof(KeptVariablesFile), proto::Access::read_write);
  if (!mapping_) return false;
  auto* const adopted = reinterpret_cast<KeptVariablesFile*>(mapping_.data());
  is_broken_ = !adopted->is_exact();
  for (const KeptVariable& variable : table_of(*adopted)) used_bytes_ = std::max(used_bytes_, variable.offset + aligned(variable.size_bytes));
  file_.store(adopted, std::memory_order_release);
  return true;
}

std::optional<SessionVariables::Kept> SessionVariables::kept(proto::ModuleId module, std::uint64_t image) const {
  const std::lock_guard lock(mutex_);
  const KeptVariablesFile* const file = file_.load(std::memory_order_relaxed);
  if (file == nullptr || is_broken_ || !file->is_exact()) return std::nullopt;
  Kept found;
  for (const KeptVariable& variable : table_of(*file)) {
    if (variable.module != module.value || variable.image != image) continue;
    if (variable.size_bytes == 0) return std::nullopt;
    found.copy = variable.copy;
    const std::byte* const contents = file->contents + variable.offset;
    found.variables.push_back({variable.address, variable.size_bytes, std::vector(contents, contents + variable.size_bytes)});
  }
  if (found.variables.empty()) return std::nullopt;
  return found;
}

void SessionVariables::restored(proto::ModuleId module, const ImageRef& image) {
  const std::lock_guard lock(mutex_);
  modules_.push_back({module, image});
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

SessionVariables::Copies SessionVariables::copies() const {
  const std::lock_guard lock(mutex_);
  Copies copies;
  const KeptVariablesFile* const file = file_.load(std::memory_order_relaxed);
  if (file == nullptr || is_broken_ || modules_.empty() || file->is_exact()) return copies;
  copies.at = file->changes.load(std::memory_order_acquire);
  copies.layout = layout_;
  const std::span<const KeptVariable> table = table_of(*file);
  copies.variables.assign(table.begin(), table.end());
  std::erase_if(copies.variables, [](const KeptVariable& variable) { return variable.size_bytes == 0; });
  for (const Module& module : modules_) copies.images.push_back(module.image);
  return copies;
}

bool SessionVariables::keep(const Copies& copies, std::span<const std::byte> contents) {
  const std::lock_guard lock(mutex_);
  KeptVariablesFile& file = *file_.load(std::memory_order_relaxed);
  if (layout_ != copies.layout || file.changes.load(std::memory_order_acquire) != copies.at) return false;
  file.kept_at.store(kNeverKept, std::memory_order_release);
  for (const KeptVariable& variable : copies.variables) {
    std::memcpy(file.contents + variable.offset, contents.data() + variable.offset, variable.size_bytes);
  }
  file.kept_at.store(copies.at, std::memory_order_release);
  return true;
}

}  // namespace mpsshim::broker
