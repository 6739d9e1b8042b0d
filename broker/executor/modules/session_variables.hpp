// SPDX-License-Identifier: Apache-2.0
// The variables of one session's modules, kept for the next executor (broker/kept_variables.hpp).
//
// Owned by its session, shared with the VariableKeeper. Threads: add(), remove() and restored() by the session's worker; note_change() by
// whoever issues for the session, behind the progress table's `issued`; copies() and keep() by the keeper; adopt() before the first record.
// Without memory for the file nothing is kept, and the session does not survive its executor: it is told so.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "broker/executor/modules/module_store.hpp"
#include "broker/kept_variables.hpp"
#include "proto/ids.hpp"
#include "proto/mutex.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

class SessionVariables {
 public:
  SessionVariables(std::uint64_t session, ControlLink& control) : session_(session), control_(control) {}
  SessionVariables(const SessionVariables&) = delete;

  [[nodiscard]] std::uint64_t session() const { return session_; }

  // A module whose image has variables, as it was loaded. (One that uses the device's heap as well: noted, and never kept.)
  void add(proto::ModuleId module, const ImageRef& image);
  void remove(proto::ModuleId module);

  // The file of an earlier executor, and what it says about a module of that time. nullopt: its contents are gone.
  [[nodiscard]] bool adopt(const proto::FileDescriptor& file);
  struct Kept {
    std::uint64_t copy = 0;
    std::vector<LoadedImage::Variable> variables;
  };
  [[nodiscard]] std::optional<Kept> kept(proto::ModuleId module, std::uint64_t image) const;
  // The contents are back in `image`.
  void restored(proto::ModuleId module, const ImageRef& image);

  void note_change() {
    if (KeptVariablesFile* file = file_.load(std::memory_order_relaxed)) file->changes.fetch_add(1, std::memory_order_release);
  }

  [[nodiscard]] std::uint64_t changes() const {
    const KeptVariablesFile* const file = file_.load(std::memory_order_acquire);
    return file == nullptr ? 0 : file->changes.load(std::memory_order_acquire);
  }

  // Whether the next executor can have all of it, and whether it has all of it by now.
  [[nodiscard]] bool can_be_kept() const;
  [[nodiscard]] bool is_any() const { return file_.load(std::memory_order_relaxed) != nullptr; }
  [[nodiscard]] bool are_kept() const;  // cheap

  // What is to be copied to have the contents as of change `at`. Empty: nothing is out of date, or nothing can be kept.
  struct Copies {
    std::uint64_t at = 0;
    std::uint64_t layout = 0;
    std::vector<KeptVariable> variables;
    std::vector<ImageRef> images;  // they stay loaded meanwhile
  };
  [[nodiscard]] Copies copies() const;
  // `contents` by the offsets of `copies`. False: the session has gone on meanwhile.
  [[nodiscard]] bool keep(const Copies& copies, std::span<const std::byte> contents);

 private:
  struct Module {
    proto::ModuleId id;
    ImageRef image;
  };

  [[nodiscard]] bool open() REQUIRES(mutex_);
  void forget(proto::ModuleId module);
  void append(const Module& module, bool with_contents) REQUIRES(mutex_);
  void lay_out_anew() REQUIRES(mutex_);

  const std::uint64_t session_;
  ControlLink& control_;
  std::atomic<KeptVariablesFile*> file_{nullptr};  // set once
  proto::Mapping mapping_ GUARDED_BY(mutex_);
  mutable Mutex mutex_;  // the file's table and what follows
  std::vector<Module> modules_ GUARDED_BY(mutex_);
  std::uint64_t layout_ GUARDED_BY(mutex_) = 0;  // counts changes of the table
  std::size_t used_bytes_ GUARDED_BY(mutex_) = 0;
  bool is_broken_ GUARDED_BY(mutex_) = false;  // taken over with contents that are gone: the session ends
};

}  // namespace mpsshim::broker
