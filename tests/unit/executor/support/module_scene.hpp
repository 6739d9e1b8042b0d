// SPDX-License-Identifier: Apache-2.0
// A store of modules over a driver whose device memory is the test's: a module has one variable, which lies in the module's object.
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

#include "broker/executor/link/control_link.hpp"
#include "broker/executor/link/fault.hpp"
#include "broker/executor/modules/module_store.hpp"
#include "broker/executor/window/quiet_window.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/executor_messages.hpp"

namespace mpsshim::broker::module_scene {

constexpr std::size_t kPlaces = 2'000;

inline std::uint32_t loaded_counter = 5;  // what the next module's counter starts as: with an address in it that would be another one elsewhere

struct Module {
  std::uint32_t counter = loaded_counter;
  std::uint8_t table[kPlaces] = {};  // variables of one byte, named by their places
};
inline std::vector<std::unique_ptr<Module>> modules;
inline std::atomic<int> unloaded{0};  // counted by the window's thread
inline int copies = 0;
inline int questions = 0;
inline CUresult global_result = CUDA_SUCCESS;
inline std::size_t counter_bytes = sizeof(std::uint32_t);  // or the whole module's

inline CUresult CUDAAPI load(CUmodule* module, const void*, unsigned, CUjit_option*, void**) {
  modules.push_back(std::make_unique<Module>());
  *module = reinterpret_cast<CUmodule>(modules.back().get());
  return CUDA_SUCCESS;
}
inline CUresult CUDAAPI unload(CUmodule) { return ++unloaded, CUDA_SUCCESS; }
inline CUresult CUDAAPI count_functions(unsigned* count, CUmodule) { return *count = 1, CUDA_SUCCESS; }
inline CUresult CUDAAPI list_functions(CUfunction* functions, unsigned, CUmodule module) {
  return *functions = reinterpret_cast<CUfunction>(module), CUDA_SUCCESS;
}
inline CUresult CUDAAPI name_of(const char** name, CUfunction) { return *name = "kernel", CUDA_SUCCESS; }
inline CUresult CUDAAPI find_kernel(CUfunction* function, CUmodule module, const char* name) {
  *function = reinterpret_cast<CUfunction>(module);
  return std::string(name) == "kernel" ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
inline CUresult CUDAAPI attribute_of(int* value, CUfunction_attribute attribute, CUfunction) { return *value = attribute + 100, CUDA_SUCCESS; }
inline CUresult CUDAAPI parameter_of(CUfunction, std::size_t index, std::size_t* offset, std::size_t* size) {
  *offset = 0;
  *size = 8;
  return index == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
inline CUresult CUDAAPI find_variable(CUdeviceptr* address, std::size_t* bytes, CUmodule handle, const char* name) {
  ++questions;
  auto* const module = reinterpret_cast<Module*>(handle);
  const bool is_counter = std::string(name) == "counter";
  *address = is_counter ? reinterpret_cast<CUdeviceptr>(&module->counter) : reinterpret_cast<CUdeviceptr>(&module->table[std::stoul(name)]);
  *bytes = is_counter ? counter_bytes : 1;
  return global_result;
}
inline CUresult CUDAAPI copy_out(void* to, CUdeviceptr from, std::size_t bytes) {
  ++copies;
  return std::memcpy(to, reinterpret_cast<void*>(from), bytes), CUDA_SUCCESS;
}
inline CUresult CUDAAPI copy_in(CUdeviceptr to, const void* from, std::size_t bytes, CUstream) {
  ++copies;
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), CUDA_SUCCESS;
}
inline CUresult CUDAAPI make_stream(CUstream* stream, unsigned) { return *stream = reinterpret_cast<CUstream>(16), CUDA_SUCCESS; }
inline CUresult CUDAAPI synchronize(CUstream) { return CUDA_SUCCESS; }
inline CUresult CUDAAPI no_linker(unsigned, CUjit_option*, void**, CUlinkState*) { return CUDA_ERROR_NOT_SUPPORTED; }
inline CUresult CUDAAPI device_attribute(int* value, CUdevice_attribute, CUdevice) { return *value = 9, CUDA_SUCCESS; }

inline std::unique_ptr<Driver> make_driver() {
  modules.clear();
  unloaded = 0;
  global_result = CUDA_SUCCESS;
  counter_bytes = sizeof(std::uint32_t);
  loaded_counter = 5;
  DriverTable table;
  table.cuModuleLoadDataEx = load;
  table.cuModuleUnload = unload;
  table.cuModuleGetFunctionCount = count_functions;
  table.cuModuleEnumerateFunctions = list_functions;
  table.cuFuncGetName = name_of;
  table.cuModuleGetFunction = find_kernel;
  table.cuFuncGetAttribute = attribute_of;
  table.cuFuncGetParamInfo = parameter_of;
  table.cuModuleGetGlobal_v2 = find_variable;
  table.cuMemcpyDtoH_v2 = copy_out;
  table.cuMemcpyHtoDAsync_v2 = copy_in;
  table.cuStreamCreate = make_stream;
  table.cuStreamSynchronize = synchronize;
  table.cuLinkCreate_v2 = no_linker;
  table.cuDeviceGetAttribute = device_attribute;
  return Driver::from_table(table);
}

inline proto::FileDescriptor image_file(const std::string& text) {
  proto::FileDescriptor file = proto::create_memory_file("image", text.size());
  REQUIRE(pwrite(file.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  REQUIRE(proto::seal(file, proto::Seal::content));
  return file;
}

constexpr char kHead[] = ".version 6.4\n.target sm_75\n.address_size 64\n";
inline const std::string kPlain = std::string(kHead) + ".visible .entry kernel(.param .u64 p) { ret; }\n";
inline const std::string kCounter = std::string(kHead) + ".visible .global .u32 counter = 5;\n.visible .entry kernel(.param .u64 p) { ret; }\n";
inline const std::string kLinked = std::string(kHead) +
                                   ".visible .global .u32 counter = 5;\n.func helper() { ret; }\n"
                                   ".visible .entry kernel(.param .u64 p) { .reg .b64 %r; mov.u64 %r, helper; ret; }\n";
// The same, but for its code, which has no address of a function.
inline const std::string kTable =
    std::string(kHead) + ".visible .global .u32 counter = 5;\n.func helper() { ret; }\n.visible .entry kernel(.param .u64 p) { call helper; ret; }\n";

struct Store {
  explicit Store(std::size_t limit_bytes = 1u << 20) : store(*driver, link, window, faults, 0, limit_bytes) {}
  ~Store() {
    ::shutdown(sockets[0].fd(), SHUT_RDWR);
    control.join();
    receiver.join();
  }
  void add(std::uint64_t image, const std::string& text, std::uint64_t owner = 0) {
    REQUIRE(store.replay(image, next_copy++, owner, image_file(text)) == CUDA_SUCCESS);
  }
  ImageUse load(std::uint64_t image) {
    ImageUse loaded;
    CUresult status = CUDA_ERROR_UNKNOWN;
    store.load(
        1, image,
        [&](CUresult result, ImageUse use, std::string) {
          status = result;
          loaded = std::move(use);
        },
        [](const std::vector<image::ManagedVariable>&) { FAIL("the image has no managed variables"); });
    REQUIRE(status == CUDA_SUCCESS);  // from memory: at once
    return loaded;
  }
  static std::uint32_t& counter(const ImageUse& use) { return reinterpret_cast<Module*>((*use)->handle)->counter; }
  bool has_unloaded(int count) const {
    for (int i = 0; i < 2'000 && unloaded < count; ++i) usleep(1'000);
    return unloaded == count;
  }

  std::unique_ptr<Driver> driver = make_driver();
  std::array<proto::Socket, 2> sockets = proto::Socket::pair();
  ControlLink link{std::move(sockets[1])};
  FaultReporter faults{*driver, link};
  std::unique_ptr<ProgressTable> table = std::make_unique<ProgressTable>();
  std::uint64_t next_copy = 1;
  QuietWindow window{*table, 1, {}, [] {}};
  ModuleStore store;
  // A control process that has no linker process: executors link themselves then.
  std::thread control{[this] {
    while (auto received = test::receive_message(sockets[0], proto::MessageDirection::from_executor)) {
      if (!received->is<message::LinkWant>()) continue;
      const auto [want, fds] = received->take<message::LinkWant>();
      (void)test::send_message(sockets[0], {message::ImageGive{.question = want.question}, {.image = fds.request.get()}});
    }
  }};
  std::thread receiver{[this] { link.run([](ReceivedMessage&) {}); }};
};

}  // namespace mpsshim::broker::module_scene
