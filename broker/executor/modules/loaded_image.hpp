// SPDX-License-Identifier: Apache-2.0
// One copy of an image in the executor's context: its functions, its variables, and what those held when it was loaded.
// Loading and looking up wait for every running kernel, so they are called in quiet windows (or before the first session). Restoring does not.
//
// Threads: ModuleStore says who may call what; handles, functions and descriptions are read by workers. What stands below `mutex` changes.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/modules/assertions.hpp"
#include "broker/executor/modules/cluster_setting.hpp"
#include "broker/executor/modules/function_settings.hpp"
#include "broker/executor/modules/image_file.hpp"
#include "broker/executor/modules/variable_changes.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

struct ParameterLayout {
  std::uint32_t offset_bytes = 0;
  std::uint32_t size_bytes = 0;
};

// A function as workers need it. Lives as long as its LoadedImage.
struct LoadedFunction {
  CUfunction handle = nullptr;
  std::string name;
  mutable std::atomic<std::uint32_t> name_offset{0};  // FunctionNameTable's, once a client has bound it
  std::uint32_t parameter_bytes = 0;
  std::uint32_t local_bytes = 0;          // per thread; growth of the context's local memory waits for everybody
  bool prints = false;                    // it may call printf(): device_output.hpp
  bool uses_device_heap = false;          // it may call malloc(): what that gives it outlives the session
  std::unique_ptr<VariableChanges::Use> variables;  // that it may write to; null: none
  bool has_fixed_cluster = false;                   // its image says how large, or that each launch says it: no node of a prepared graph may have it
  mutable FunctionSettings settings{};
  mutable ClusterSetting cluster{};
  std::vector<ParameterLayout> parameters;
  std::int32_t attribute[16] = {};
  std::uint32_t attribute_valid = 0;
};

struct LoadedImage {
  // What a variable held when the image was loaded, or several that lie side by side.
  struct Variable {
    CUdeviceptr address = 0;
    std::size_t size_bytes = 0;
    std::vector<std::byte> content;  // empty: zeroes
    bool is_content_known = true;    // else the copy serves one client, and what it holds is known once it was copied
    // A hash of what it held when it was loaded, addresses of functions and variables among it: where another load has another one, what is kept of
    // this one does not belong there. 0: zeroes, or not read.
    std::uint64_t loaded_hash = 0;
    bool is_looked_up = false;  // of kept ones: the client has asked for its address, and may know what it holds
  };

  std::uint64_t image = 0;
  std::uint64_t copy = 0;                  // this executor's number for it, in the load log
  CUmodule handle = nullptr;
  bool has_writable_globals = false;
  bool has_managed = false;                // loaded for a client that does not place them: nobody else's
  bool has_references = false;             // texture or surface references, whose bindings are the copy's: it serves one client, once
  bool takes_code_addresses = false;       // PreparedImage's
  bool code_takes_addresses = false;       // the same
  bool adds_for_system = false;            // the same
  bool uses_device_heap = false;           // what its kernels allocate there ends with the context
  bool all_may_use_device_heap = false;    // PreparedImage's
  std::set<std::string, std::less<>> heap_kernels;
  bool all_may_print = false;              // PreparedImage's
  std::set<std::string, std::less<>> printing_kernels;
  bool can_be_restored = true;             // all variables are known: another client may have this copy later
  std::shared_ptr<const Assertions::Entry> assertions;  // its kernels' assertions are told of there; nullptr: they end the context, or there are none
  std::uint32_t function_count = 0;
  std::size_t cost_bytes = 0;              // against the cache's limit
  std::vector<Variable> variables;         // all of them, or none: then some are not known
  std::unique_ptr<VariableChanges> changes;                            // of `variables`
  std::map<std::string, std::uint32_t, std::less<>> variable_numbers;  // in `variables`
  image::VariableUses uses;                                            // by names
  std::map<std::string, std::vector<std::byte>, std::less<>> placed;  // initial values of placed variables that do not start as zeroes
  std::vector<std::byte> description;      // proto/module_functions.hpp, as the reply to ModuleLoad carries it
  std::vector<const LoadedFunction*> described;  // the same functions, by number

  // Its kernels may leave something in the context that loading it again does not bring back.
  [[nodiscard]] bool holds_contents() const { return has_writable_globals || uses_device_heap; }
  // A client may have what variables hold for itself; otherwise others run the same copy.
  [[nodiscard]] bool is_one_clients() const { return has_writable_globals || has_managed; }

  // One session at a time has it: for what its variables hold, or because its kernels' assertions are told that session.
  [[nodiscard]] bool is_exclusive() const { return has_writable_globals || assertions != nullptr; }

  Mutex mutex;  // the maps below
  std::map<std::string, std::unique_ptr<LoadedFunction>, std::less<>> functions GUARDED_BY(mutex);
  std::map<std::string, std::pair<CUdeviceptr, std::size_t>, std::less<>> globals GUARDED_BY(mutex);
  std::vector<std::string> names GUARDED_BY(mutex);  // of all functions, once they were listed
};

// Loads `prepared`, looks up the functions of a small module, and saves what its variables hold. `log`: the driver's words where it failed.
[[nodiscard]] CUresult load_image(const Driver& driver, const PreparedImage& prepared, LoadedImage& image, std::string& log);
// What the function may do to the image's variables, of which it is a kernel; null: nothing.
[[nodiscard]] std::unique_ptr<VariableChanges::Use> variable_use_of(const LoadedImage& image, std::string_view function);
// LoadedImage::Variable's, of what it held; never 0.
[[nodiscard]] std::uint64_t loaded_hash_of(std::span<const std::byte> content);
// What it takes of the device, as far as that is known: an image of a few bytes may have a variable of gigabytes.
[[nodiscard]] std::size_t cost_of(const PreparedImage& prepared, const LoadedImage& loaded);
// For the log, where its variables lie; behind a sentence.
[[nodiscard]] std::string words_for_place(const LoadedImage& image);
// Adds the function to the image's map.
[[nodiscard]] CUresult look_up(const Driver& driver, LoadedImage& image, const std::string& name, const LoadedFunction*& found);
[[nodiscard]] CUresult list_names(const Driver& driver, LoadedImage& image, std::vector<std::string>& names);
// The variables hold their `content` when this returns; nobody uses the copy. On a stream of the caller's own.
[[nodiscard]] CUresult restore_variables(const Driver& driver, std::span<const LoadedImage::Variable> variables, CUstream stream);

}  // namespace mpsshim::broker
