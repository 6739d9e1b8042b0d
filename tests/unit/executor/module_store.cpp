// SPDX-License-Identifier: Apache-2.0
// The store over a driver whose device memory is the test's: a module has one variable, which lies in the module's object.
#include "broker/executor/modules/module_store.hpp"

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
#include "broker/executor/window/quiet_window.hpp"
#include "gen/records.hpp"
#include "proto/module_functions.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/executor_messages.hpp"

namespace mpsshim::broker {
namespace {

constexpr std::size_t kPlaces = 2'000;

struct Module {
  std::uint32_t counter = 5;
  std::uint8_t table[kPlaces] = {};  // variables of one byte, named by their places
};
std::vector<std::unique_ptr<Module>> modules;
std::atomic<int> unloaded{0};  // counted by the window's thread
int copies = 0;
int questions = 0;
CUresult global_result = CUDA_SUCCESS;
std::size_t counter_bytes = sizeof(std::uint32_t);  // or the whole module's

CUresult CUDAAPI load(CUmodule* module, const void*, unsigned, CUjit_option*, void**) {
  modules.push_back(std::make_unique<Module>());
  *module = reinterpret_cast<CUmodule>(modules.back().get());
  return CUDA_SUCCESS;
}
CUresult CUDAAPI unload(CUmodule) { return ++unloaded, CUDA_SUCCESS; }
CUresult CUDAAPI count_functions(unsigned* count, CUmodule) { return *count = 1, CUDA_SUCCESS; }
CUresult CUDAAPI list_functions(CUfunction* functions, unsigned, CUmodule module) {
  return *functions = reinterpret_cast<CUfunction>(module), CUDA_SUCCESS;
}
CUresult CUDAAPI name_of(const char** name, CUfunction) { return *name = "kernel", CUDA_SUCCESS; }
CUresult CUDAAPI find_kernel(CUfunction* function, CUmodule module, const char* name) {
  *function = reinterpret_cast<CUfunction>(module);
  return std::string(name) == "kernel" ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult CUDAAPI attribute_of(int* value, CUfunction_attribute attribute, CUfunction) { return *value = attribute + 100, CUDA_SUCCESS; }
CUresult CUDAAPI parameter_of(CUfunction, std::size_t index, std::size_t* offset, std::size_t* size) {
  *offset = 0;
  *size = 8;
  return index == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI find_variable(CUdeviceptr* address, std::size_t* bytes, CUmodule handle, const char* name) {
  ++questions;
  auto* const module = reinterpret_cast<Module*>(handle);
  const bool is_counter = std::string(name) == "counter";
  *address = is_counter ? reinterpret_cast<CUdeviceptr>(&module->counter) : reinterpret_cast<CUdeviceptr>(&module->table[std::stoul(name)]);
  *bytes = is_counter ? counter_bytes : 1;
  return global_result;
}
CUresult CUDAAPI copy_out(void* to, CUdeviceptr from, std::size_t bytes) {
  ++copies;
  return std::memcpy(to, reinterpret_cast<void*>(from), bytes), CUDA_SUCCESS;
}
CUresult CUDAAPI copy_in(CUdeviceptr to, const void* from, std::size_t bytes, CUstream) {
  ++copies;
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), CUDA_SUCCESS;
}
CUresult CUDAAPI make_stream(CUstream* stream, unsigned) { return *stream = reinterpret_cast<CUstream>(16), CUDA_SUCCESS; }
CUresult CUDAAPI synchronize(CUstream) { return CUDA_SUCCESS; }
CUresult CUDAAPI no_linker(unsigned, CUjit_option*, void**, CUlinkState*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult CUDAAPI device_attribute(int* value, CUdevice_attribute, CUdevice) { return *value = 9, CUDA_SUCCESS; }

std::unique_ptr<Driver> make_driver() {
  modules.clear();
  unloaded = 0;
  global_result = CUDA_SUCCESS;
  counter_bytes = sizeof(std::uint32_t);
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

proto::FileDescriptor image_file(const std::string& text) {
  proto::FileDescriptor file = proto::create_memory_file("image", text.size());
  REQUIRE(pwrite(file.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  REQUIRE(proto::seal(file, proto::Seal::content));
  return file;
}

constexpr char kHead[] = ".version 6.4\n.target sm_75\n.address_size 64\n";
const std::string kPlain = std::string(kHead) + ".visible .entry kernel(.param .u64 p) { ret; }\n";
const std::string kCounter = std::string(kHead) + ".visible .global .u32 counter = 5;\n.visible .entry kernel(.param .u64 p) { ret; }\n";

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

}  // namespace

TEST_CASE("an image without variables is one for all, and tells of its functions") {
  Store s;
  s.add(7, kPlain);
  const ImageUse first = s.store.find(7);
  const ImageUse second = s.store.find(7);
  REQUIRE((first && second));
  CHECK(*first == *second);
  CHECK(s.store.find(8) == nullptr);
  CHECK(modules.size() == 1);
  const LoadedImage& image = **first;
  REQUIRE(image.described.size() == 1);
  proto::ModuleFunction entry;
  REQUIRE(image.description.size() == proto::module_function_bytes(1, 6));
  std::memcpy(&entry, image.description.data(), sizeof entry);
  CHECK(entry.entry_bytes == image.description.size());
  CHECK(entry.parameter_bytes == 8);
  CHECK(entry.attribute[3] == 103);
  CHECK(std::memcmp(image.description.data() + sizeof entry + 8, "kernel", 6) == 0);
  CHECK(ModuleStore::find_function(**first, "kernel") == image.described[0]);
  CHECK(ModuleStore::find_function(**first, "another") == nullptr);
}

TEST_CASE("a copy with variables is one client's, and begins anew with the next") {
  Store s;
  s.add(7, kCounter);
  ImageUse first = s.store.find(7);
  REQUIRE(first);
  CHECK(s.store.find(7) == nullptr);
  CHECK((*first)->globals.at("counter").second == 4);
  Store::counter(first) = 99;
  first.reset();
  CHECK(s.store.find(7) == nullptr);  // not before it is restored
  const ImageUse second = s.load(7);
  CHECK(Store::counter(second) == 5);
  CHECK(modules.size() == 1);
  CHECK(unloaded == 0);
}

TEST_CASE("variables of one section are found with two questions, and read and brought back one by one") {
  const std::unique_ptr<Driver> driver = make_driver();
  PreparedImage prepared;
  prepared.has_writable_globals = true;
  prepared.variables.emplace();
  const auto add = [&](unsigned place, bool is_zero, unsigned section, std::uint64_t offset_bytes, std::uint64_t size_bytes = 1) {
    prepared.variables->push_back({std::to_string(place), is_zero, section, offset_bytes, size_bytes});
  };
  for (const unsigned place : {9u, 0u, 1u, 2u, 3u}) add(place, false, 4, place);
  add(1'500, false, 4, 1'500);
  add(41, false, 5, 0);         // another section
  add(42, false, 0, 0);         // not known which
  add(50, true, 6, 100);
  add(53, true, 6, 103);
  LoadedImage image;
  std::string log;
  copies = 0;
  questions = 0;
  const auto load = [&] { REQUIRE(load_image(*driver, prepared, image, log) == CUDA_SUCCESS); };
  const auto places = [&] { return reinterpret_cast<Module*>(image.handle)->table; };
  SECTION("as they are") {
    load();
    CHECK(questions == 2 + 1 + 1 + 2);
    REQUIRE(image.variables.size() == 10);
    CHECK(std::ranges::all_of(image.variables, [](const LoadedImage::Variable& variable) { return variable.size_bytes == 1; }));
    CHECK(std::ranges::count_if(image.variables, [](const LoadedImage::Variable& variable) { return variable.content.empty(); }) == 2);
    CHECK(image.can_be_restored);
    CHECK(image.globals.size() == 10);
    CHECK(image.globals.at("2").first == reinterpret_cast<CUdeviceptr>(places() + 2));
    CHECK(copies == 8);
    std::fill_n(places(), kPlaces, std::uint8_t{7});
    copies = 0;
    REQUIRE(restore_variables(*driver, image.variables, nullptr) == CUDA_SUCCESS);
    CHECK(copies == 10);
    CHECK(std::count(places(), places() + kPlaces, 0) == 10);
  }
  SECTION("more than are read in a window serve one client") {
    for (unsigned place = 100; place < 160; ++place) add(place, false, 4, place);
    load();
    CHECK(image.variables.empty());
    CHECK_FALSE(image.can_be_restored);
    CHECK(image.globals.at("159").first == reinterpret_cast<CUdeviceptr>(places() + 159));
  }
  SECTION("where the file and the driver say otherwise each is asked for") {
    const bool is_size = GENERATE(true, false);
    if (is_size)
      prepared.variables->at(5).size_bytes = 2;
    else
      prepared.variables->at(5).offset_bytes = 1'501;
    load();
    CHECK(questions == 2 + 6 + 1 + 1 + 2);
    CHECK(image.globals.at("1500").first == reinterpret_cast<CUdeviceptr>(places() + 1'500));
  }
  SECTION("where memory elsewhere stands for some, each by itself") {
    prepared.placed.push_back({"shared", true});
    load();
    CHECK(image.variables.size() == 10);
  }
}

TEST_CASE("several copies serve as many clients") {
  Store s;
  s.add(7, kCounter);
  s.add(7, kCounter);
  const ImageUse first = s.load(7);
  const ImageUse second = s.load(7);
  CHECK(*first != *second);
  Store::counter(first) = 1;
  CHECK(Store::counter(second) == 5);
}

TEST_CASE("a copy whose variables are not all known serves one client") {
  Store s;
  global_result = CUDA_ERROR_NOT_FOUND;
  s.add(7, kCounter);
  ImageUse only = s.store.find(7);
  REQUIRE(only);
  only.reset();
  CHECK(s.has_unloaded(1));
  CHECK(s.store.find(7) == nullptr);
}

TEST_CASE("the least recently used images go, and none that is in use") {
  Store s(3 * 64 * 1024);  // small images count 64 KiB each
  for (std::uint64_t image = 1; image <= 3; ++image) s.add(image, kPlain);
  ImageUse used = s.store.find(1);
  (void)s.store.find(2);
  (void)s.store.find(3);
  (void)s.store.find(2);
  s.add(4, kPlain);
  (void)s.store.find(4);  // giving it back finds the cache too full
  CHECK(s.has_unloaded(1));
  CHECK(s.store.find(3) == nullptr);
  CHECK((s.store.find(1) && s.store.find(2) && s.store.find(4)));
}

TEST_CASE("what an image's variables take of the device counts for how long it stays") {
  constexpr std::size_t kSmall = 64 * 1024;
  Store s(2 * kSmall + sizeof(Module));
  const auto fill = [&s] {
    for (const std::uint64_t image : {1u, 2u}) s.add(image, kCounter);
    (void)s.store.find(1);
    (void)s.store.find(2);
  };
  SECTION("small ones fit") {
    fill();
    for (const std::uint64_t image : {1u, 2u}) CHECK(s.load(image));
    CHECK(unloaded == 0);
  }
  SECTION("with larger variables one of them goes") {
    counter_bytes = sizeof(Module);
    fill();
    CHECK(s.has_unloaded(1));
  }
}

TEST_CASE("a logged unload takes the copy of its number") {
  Store s;
  s.add(7, kCounter);  // 1
  s.add(7, kCounter);  // 2
  const CUmodule second = reinterpret_cast<CUmodule>(modules[1].get());
  s.store.replay_unload(7, 1);
  CHECK(unloaded == 1);
  s.store.replay_unload(7, 5);
  CHECK(unloaded == 1);
  const ImageUse left = s.store.find(7);
  REQUIRE(left);
  CHECK((*left)->handle == second);
}

TEST_CASE("a copy with kept variables is its owner's, with what they held") {
  Store s;
  s.add(7, kCounter, 42);
  s.add(7, kCounter, 43);
  const auto variables_of = [](std::size_t module) {
    const std::uint32_t value = 77;
    std::vector<std::byte> content(sizeof value);
    std::memcpy(content.data(), &value, sizeof value);
    return std::vector<LoadedImage::Variable>{{reinterpret_cast<CUdeviceptr>(&modules[module]->counter), sizeof value, std::move(content)}};
  };
  CHECK(s.store.find(7) == nullptr);  // nobody else's
  ImageUse use;
  SECTION("it comes back") {
    REQUIRE(s.store.take_kept(43, 7, 2, variables_of(1), use) == CUDA_SUCCESS);
    CHECK((*use)->copy == 2);
    CHECK(Store::counter(use) == 77);
    CHECK(modules[0]->counter == 5);
    use.reset();
    const ImageUse next = s.load(7);  // anybody's now, from the beginning
    CHECK(Store::counter(next) == 5);
  }
  SECTION("the variables lie elsewhere") {
    CHECK(s.store.take_kept(43, 7, 2, variables_of(0), use) == CUDA_ERROR_MPS_SERVER_NOT_READY);
    CHECK(use == nullptr);
    CHECK(modules[1]->counter == 5);
  }
  SECTION("whether they are where they were can be asked") {
    const auto table = [](std::uint64_t copy, std::size_t module, std::uint64_t size_bytes = 4) {
      return KeptVariable{1, 7, copy, reinterpret_cast<CUdeviceptr>(&modules[module]->counter), size_bytes, 0};
    };
    CHECK(s.store.has_kept({}));
    CHECK(s.store.has_kept(std::vector{table(1, 0), table(2, 1)}));
    CHECK_FALSE(s.store.has_kept(std::vector{table(1, 0), table(2, 0)}));
    CHECK_FALSE(s.store.has_kept(std::vector{table(1, 0, 8)}));
    CHECK_FALSE(s.store.has_kept(std::vector{table(3, 0)}));
    CHECK_FALSE(s.store.has_kept(std::vector{table(1, 0), table(1, 0)}));
  }
  SECTION("no copy has that number, or it is another's") {
    CHECK(s.store.take_kept(43, 7, 3, variables_of(1), use) == CUDA_ERROR_MPS_SERVER_NOT_READY);
    CHECK(s.store.take_kept(43, 7, 1, variables_of(0), use) == CUDA_ERROR_MPS_SERVER_NOT_READY);
    CHECK(use == nullptr);
  }
  SECTION("it does not come back") {
    s.store.forget_owner(43);
    const ImageUse newcomer = s.store.find(7);
    REQUIRE(newcomer);
    CHECK((*newcomer)->copy == 2);
    CHECK(s.store.find(7) == nullptr);
  }
}

}  // namespace mpsshim::broker
