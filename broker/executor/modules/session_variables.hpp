// SPDX-License-Identifier: Apache-2.0
// The variables of one session's modules, kept for the next executor (broker/kept_variables.hpp).
//
// Owned by its session, shared with the VariableKeeper. Threads: add(), remove(), give_out() and restored() by the session's worker; note_…() by
// whoever issues for the session, behind the progress table's `issued` and `wrote`; copies() and keep() by the keeper; adopt() before the first
// record. Without memory for the file nothing is kept, and the session does not survive its executor: it is told so.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
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
  // Its client is about to know the address of this variable: any kernel may have it from now on.
  // `is_at_work`: so may one that runs.
  void give_out(proto::ModuleId module, std::uint64_t address, bool is_at_work);
  [[nodiscard]] bool are_any_out() const { return are_any_out_.load(std::memory_order_acquire); }

  // The file of an earlier executor, and what it says about a module of that time. nullopt: its contents are gone.
  [[nodiscard]] bool adopt(const proto::FileDescriptor& file);
  struct Kept {
    std::uint64_t copy = 0;
    std::vector<LoadedImage::Variable> variables;
    bool is_any_out = false;  // somebody may have their addresses
  };
  [[nodiscard]] std::optional<Kept> kept(proto::ModuleId module, std::uint64_t image) const;
  // The contents are back in `image`.
  void restored(proto::ModuleId module, const ImageRef& image);

  // Whether work may write to a variable; who issues it then says so in `wrote` before note_…().
  [[nodiscard]] bool may_write(const LoadedFunction& kernel) const {
    return kernel.variables != nullptr || are_any_out_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool may_be_in(std::uint64_t address, std::uint64_t size_bytes) const {
    return address < end_.load(std::memory_order_relaxed) && address + size_bytes > begin_.load(std::memory_order_relaxed);
  }
  void note_launch(const LoadedFunction& kernel);
  void note_write(std::uint64_t address, std::uint64_t size_bytes);
  void note_anything();  // by kernels of which nothing is known

  [[nodiscard]] std::uint64_t changes() const {
    const KeptVariablesFile* const file = file_.load(std::memory_order_acquire);
    return file == nullptr ? 0 : file->changes.load(std::memory_order_acquire);
  }

  // Whether the next executor can have all of it, and whether it has all of it by now.
  [[nodiscard]] bool can_be_kept() const;
  [[nodiscard]] bool is_any() const { return file_.load(std::memory_order_relaxed) != nullptr; }
  [[nodiscard]] bool are_kept() const;  // cheap
  [[nodiscard]] bool may_be_copied() const { return !are_kept() && !is_broken_.load(std::memory_order_relaxed); }
  void give_up();  // the driver does not copy them

  // What is to be copied next to have the contents as of change `at`, `most_bytes` at most. Without pieces: nothing is out of date, or nothing can
  // be kept.
  struct Piece {
    std::uint64_t address = 0;
    std::size_t size_bytes = 0;
    std::size_t at = 0;        // in the copies' buffer
    std::uint64_t offset = 0;  // of the file's contents
    std::size_t module = 0;
    std::size_t variable = 0;
    std::uint64_t count = 0;  // of its changes
    std::size_t end = 0;      // how much of the variable is kept with it
  };
  struct Copies {
    std::uint64_t at = 0;
    std::uint64_t layout = 0;
    std::vector<Piece> pieces;
    std::vector<ImageRef> images;  // they stay loaded meanwhile
    std::size_t bytes = 0;
    bool is_last = true;  // then all is kept
  };
  [[nodiscard]] Copies copies(std::size_t most_bytes);
  // How much is out of date; an estimate, for who has to choose a time.
  [[nodiscard]] std::size_t stale_bytes() const;
  // `contents` of the pieces. False: something may have been written meanwhile.
  [[nodiscard]] bool keep(const Copies& copies, std::span<const std::byte> contents);

 private:
  struct Module {
    proto::ModuleId id;
    ImageRef image;
    std::vector<std::uint64_t> kept;  // by variable: the count of changes that the file has the contents of
    std::size_t begun = 0;            // a variable of which the file has the first `begun_bytes` as of `begun_count`
    std::size_t begun_bytes = 0;
    std::uint64_t begun_count = 0;
    bool is_refused = false;  // its variables are not kept
    std::set<std::uint64_t> looked_up;  // addresses that its client has asked for
  };

  [[nodiscard]] bool open() REQUIRES(mutex_);
  void note_looked_up(Module& module, std::uint64_t address) REQUIRES(mutex_);
  void forget(proto::ModuleId module) REQUIRES(mutex_);
  void append(Module& module, bool with_contents) REQUIRES(mutex_);
  void lay_out_anew() REQUIRES(mutex_);
  void note_span() REQUIRES(mutex_);
  void set_out(const VariableChanges::Use& use);
  [[nodiscard]] std::uint64_t count(const Module& module, std::size_t variable) const;

  const std::uint64_t session_;
  ControlLink& control_;
  std::atomic<KeptVariablesFile*> file_{nullptr};  // set once
  std::atomic<bool> are_any_out_{false};
  std::atomic<std::uint64_t> anythings_{0};              // what may have written to whatever is out
  std::atomic<std::uint64_t> begin_{~std::uint64_t{0}};  // of all variables' addresses
  std::atomic<std::uint64_t> end_{0};
  proto::Mapping mapping_ GUARDED_BY(mutex_);
  mutable Mutex mutex_;  // the file's table and what follows
  std::vector<Module> modules_ GUARDED_BY(mutex_);
  std::uint64_t layout_ GUARDED_BY(mutex_) = 0;  // counts changes of the table
  std::size_t used_bytes_ GUARDED_BY(mutex_) = 0;
  std::atomic<bool> is_broken_{false};  // taken over with contents that are gone, or given up: the session ends with its executor
};

}  // namespace mpsshim::broker
