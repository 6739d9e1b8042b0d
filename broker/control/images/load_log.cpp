// SPDX-License-Identifier: Apache-2.0
// The load log of ImageStore: what each executor has loaded, unloaded and made in between, and what of it a next one makes again.
#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "broker/control/images/image_store.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

bool ImageStore::note(const Entry& entry) {
  if (!entry.is_of_image()) {
    if (log_.size() < kMaxLogEntries) log_.push_back(entry);
    return true;
  }
  const auto found = images_.find(entry.object);
  if (found == images_.end() || found->second.state != State::sealed) return false;
  const bool is_load = entry.kind == LogKind::load;
  ++found->second.log_entries;
  found->second.loaded += is_load ? 1 : -1;
  log_.push_back(entry);
  if (is_load) return true;
  ++undone_;
  strike_undone();
  return true;
}

bool ImageStore::has_too_much_undone() const {
  const Holding images = undone_images();
  return undone_ > kMaxUndoneLoads || images.count > kMaxUndoneImages || images.bytes > kMaxUndoneBytes;
}

std::vector<bool> ImageStore::select(ExecutorId executor, const Wanted& wanted) const {
  const auto is_of = [&](const Entry& entry) { return entry.executor == executor; };
  const auto is_needed = [&](const Entry& entry) {
    if (!is_of(entry) || entry.kind != LogKind::load) return false;
    if ((entry.flags & kLoadHasVariables) != 0 && wanted.has_owner(entry)) return true;
    return (entry.flags & kLoadTakesCodeAddresses) != 0 && wanted.is_held(entry.object);
  };
  const auto behind = static_cast<std::size_t>(std::find_if(log_.rbegin(), log_.rend(), is_needed).base() - log_.begin());
  using Copy = std::pair<std::uint64_t, std::uint64_t>;
  std::set<Copy> loaded;  // of what stays
  std::set<Copy> undone;
  for (const Entry& entry : log_) {
    if (is_of(entry) && entry.kind == LogKind::unload) undone.emplace(entry.object, entry.copy);
  }
  std::vector<bool> stays(log_.size());
  for (std::size_t i = 0; i < log_.size(); ++i) {
    const Entry& entry = log_[i];
    if (!is_of(entry)) continue;
    const Copy copy{entry.object, entry.copy};
    const bool is_wanted = entry.kind == LogKind::load && (entry.flags & kLoadHasVariables) == 0 && wanted.is_held(entry.object);
    stays[i] = i < behind || (is_wanted && !undone.contains(copy)) || (entry.kind == LogKind::unload && loaded.contains(copy));
    if (stays[i] && entry.kind == LogKind::load) loaded.insert(copy);
  }
  return stays;
}

void ImageStore::copy_log(ExecutorId from, ExecutorId to, const Wanted& wanted) {
  const std::vector<bool> stays = select(from, wanted);
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < stays.size(); ++i) {
    if (stays[i]) entries.push_back(log_[i]);
  }
  for (Entry& entry : entries) {
    entry.executor = to;
    (void)note(entry);
  }
}

std::size_t ImageStore::shorten(ExecutorId executor, const Wanted& wanted) {
  std::vector<bool> stays = select(executor, wanted);
  for (std::size_t i = 0; i < stays.size(); ++i) {
    if (log_[i].executor != executor) stays[i] = true;
  }
  const std::size_t before = log_.size();
  remove_from_log(stays);
  return before - log_.size();
}

// `stays` by place.
void ImageStore::remove_from_log(const std::vector<bool>& stays) {
  std::vector<Entry> left;
  std::vector<Entry> gone;
  for (std::size_t i = 0; i < log_.size(); ++i) (stays[i] ? left : gone).push_back(log_[i]);
  log_ = std::move(left);
  for (const Entry& entry : gone) {
    if (!entry.is_of_image()) continue;
    images_.at(entry.object).loaded -= entry.kind == LogKind::load ? 1 : -1;
    if (entry.kind == LogKind::unload) --undone_;
    struck(entry);
  }
}

bool ImageStore::has_log(ExecutorId executor) const {
  return std::ranges::any_of(log_, [&](const Entry& entry) { return entry.executor == executor; });
}

ImageStore::Holding ImageStore::undone_images() const {
  Holding holding;
  for (const auto& [id, image] : images_) {
    if (!image.sessions.empty() || image.loaded > 0) continue;
    ++holding.count;
    holding.bytes += image.size_bytes;
  }
  return holding;
}

// Both halves of each load that was undone. What was loaded after them may come to another address when the rest is replayed: the driver's heap is
// another one without them, even where both are gone.
void ImageStore::strike_undone() {
  if (keeps_undone_ || !has_too_much_undone()) return;
  using Copy = std::pair<ExecutorId, std::pair<std::uint64_t, std::uint64_t>>;
  const auto copy_of = [](const Entry& entry) { return Copy{entry.executor, {entry.object, entry.copy}}; };
  std::set<Copy> undone;
  for (const Entry& entry : log_) {
    if (entry.kind == LogKind::unload) undone.insert(copy_of(entry));
  }
  std::vector<Entry> gone;
  std::erase_if(log_, [&](const Entry& entry) {
    if (!entry.is_of_image() || !undone.contains(copy_of(entry))) return false;
    gone.push_back(entry);
    return true;
  });
  log_warning(
      "The load log is shortened by {} entries of modules that are unloaded again, which leaves {}: sessions with variables in modules may end "
      "when their executor is renewed.",
      gone.size(), log_.size());
  undone_ = 0;
  for (const Entry& entry : gone) struck(entry);
}

void ImageStore::forget_log(ExecutorId executor) {
  std::vector<bool> stays(log_.size());
  for (std::size_t i = 0; i < log_.size(); ++i) stays[i] = log_[i].executor != executor;
  remove_from_log(stays);
}

void ImageStore::struck(const Entry& entry) {
  if (--images_.at(entry.object).log_entries == 0) drop_if_unused(entry.object);
}

}  // namespace mpsshim::broker::control
