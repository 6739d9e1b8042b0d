// SPDX-License-Identifier: Apache-2.0
// Images loaded into the executor's context, shared between sessions where that cannot be seen: an image without writable globals is loaded
// once for all (content is compared by the control process: equal content, equal image id); one with writable globals has a copy a session.
// Loads, first look-ups and unloads wait for every running kernel, so they run in quiet windows; a look-up answered from memory does not.
//
// Threads: load and look-up are called by helpers and may be slow; handles are read by workers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/image_file.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

class ControlLink;
class FaultReporter;
class QuietWindow;

struct ParameterLayout {
  std::uint32_t offset_bytes = 0;
  std::uint32_t size_bytes = 0;
};

// A function as workers need it. Lives as long as its LoadedImage.
struct LoadedFunction {
  CUfunction handle = nullptr;
  std::uint32_t parameter_bytes = 0;
  std::uint32_t local_bytes = 0;          // per thread; growth of the context's local memory waits for everybody
  std::vector<ParameterLayout> parameters;
  std::int32_t attribute[16] = {};
  std::uint32_t attribute_valid = 0;
};

struct LoadedImage {
  std::uint64_t image = 0;
  CUmodule handle = nullptr;
  bool has_writable_globals = false;
  std::uint32_t function_count = 0;
  std::mutex mutex;                        // the maps below
  std::map<std::string, std::unique_ptr<LoadedFunction>, std::less<>> functions;
  std::map<std::string, std::pair<CUdeviceptr, std::size_t>, std::less<>> globals;
};
using ImageRef = std::shared_ptr<LoadedImage>;

class ModuleStore {
 public:
  ModuleStore(const Driver& driver, ControlLink& control, QuietWindow& window, const FaultReporter& faults, CUdevice device);
  ModuleStore(const ModuleStore&) = delete;

  using LoadDone = std::function<void(CUresult, ImageRef, std::string log)>;
  using FunctionDone = std::function<void(CUresult, const LoadedFunction*)>;
  using GlobalDone = std::function<void(CUresult, CUdeviceptr, std::size_t)>;
  using NamesDone = std::function<void(CUresult, std::vector<std::string>)>;

  // All four may answer from the calling thread or, later, from the window's. `session` is for logs and the load log.
  void load(std::uint64_t session, std::uint64_t image, LoadDone done);
  void find_function(std::uint64_t session, const ImageRef& image, std::string name, FunctionDone done);
  void find_global(std::uint64_t session, const ImageRef& image, std::string name, GlobalDone done);
  void list_functions(std::uint64_t session, const ImageRef& image, NamesDone done);
  // Loads again what an earlier executor had loaded, in its order; before the first session.
  [[nodiscard]] CUresult replay(std::uint64_t image, const proto::FileDescriptor& file);
  void replay_unload(std::uint64_t image);

 private:
  struct Loading;
  [[nodiscard]] ImageRef new_image(std::uint64_t id);
  [[nodiscard]] CUresult load_prepared(const PreparedImage& prepared, LoadedImage& image, std::string& log);
  void load_in_window(Loading& loading);
  void unload(LoadedImage* image);

  const Driver& driver_;
  ControlLink& control_;
  QuietWindow& window_;
  const FaultReporter& faults_;
  const ImageCompiler compiler_;
  std::mutex mutex_;
  std::map<std::uint64_t, ImageRef> shared_;  // by image id; kept for the next client
  std::vector<ImageRef> replayed_;            // loaded again for their place only
};

}  // namespace mpsshim::broker
