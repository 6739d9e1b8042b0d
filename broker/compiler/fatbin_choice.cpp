// SPDX-License-Identifier: Apache-2.0
#include "broker/compiler/fatbin_choice.hpp"

namespace mpsshim::broker {

namespace {

// The CPU driver runs the texts of all variants.
bool is_variant_for(const image::FatbinEntry& entry, const ImageTarget& target) {
  if (target.runs_texts) return true;
  if (entry.is_architecture_specific()) return entry.architecture == target.compute;
  return !entry.is_family_specific() || entry.architecture / 10 == target.compute / 10;
}

}  // namespace

bool is_code_for(const image::FatbinEntry& entry, const ImageTarget& target) {
  return entry.is(image::EntryKind::elf) && entry.architecture <= target.compute && entry.architecture / 10 == target.compute / 10 &&
         is_variant_for(entry, target);
}

FatbinChoice choose_entries(std::span<const image::FatbinEntry> entries, const ImageTarget& target) {
  FatbinChoice choice;
  for (const image::FatbinEntry& entry : entries) {
    const bool is_text = entry.is(image::EntryKind::ptx);
    if (is_text && entry.architecture > target.compute) choice.newer_ptx = &entry;
    if (is_text && entry.architecture <= target.compute && is_variant_for(entry, target) &&
        (choice.ptx == nullptr || entry.architecture > choice.ptx->architecture)) {
      choice.ptx = &entry;
    }
    if (!is_code_for(entry, target)) continue;
    if (!choice.cubins.empty() && entry.architecture > choice.cubins.front().architecture) choice.cubins.clear();
    if (choice.cubins.empty() || entry.architecture == choice.cubins.front().architecture) choice.cubins.push_back(entry);
  }
  return choice;
}

}  // namespace mpsshim::broker
