// SPDX-License-Identifier: Apache-2.0
// libmpsshim.so as a program meets it: settling, cuInit, devices, fork, refusals.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "gen/api_declarations.hpp"
#include "gen/api_ids.hpp"
#include "proto/handshake.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/interposer/fake_facts.hpp"
#include "tests/unit/interposer/scripted_broker.hpp"

using namespace mpsshim;
using namespace mpsshim::test;

#define API(name) library.get<decltype(interposer::api::name)>(#name)

namespace {

constexpr const char* kNoDriver = "MPSSHIM_REAL_DRIVER=/nonexistent/libcuda.so.1";

struct TemporaryDirectory {
  std::string path = "/tmp/mpsshim-test-XXXXXX";
  TemporaryDirectory() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~TemporaryDirectory() { std::filesystem::remove_all(path); }
};

std::size_t lines_of(const std::string& text) { return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')); }

}  // namespace

TEST_CASE("loading does nothing, the first call connects, cuInit makes it ready") {
  const ScriptedBroker broker;
  const ChildEnd end = in_child(broker.directory(), "", [&](const Report& report, const Library& library) {
    int count = -1;
    report.equal(API(cuDeviceGetCount)(&count), CUDA_ERROR_NOT_INITIALIZED, "cuDeviceGetCount before cuInit");
    int version = 0;
    report.equal(API(cuDriverGetVersion)(&version), CUDA_SUCCESS, "cuDriverGetVersion");
    report.equal(version, kFakeDriverVersion, "the driver's version");
    report.equal(API(cuInit)(1), CUDA_ERROR_INVALID_VALUE, "cuInit(1)");
    report.equal(API(cuInit)(0), CUDA_SUCCESS, "cuInit");
    report.equal(API(cuInit)(0), CUDA_SUCCESS, "cuInit again");
    report.equal(API(cuDeviceGetCount)(&count), CUDA_SUCCESS, "cuDeviceGetCount");
    report.equal(count, 2, "the count");
    char name[32] = {};
    report.equal(API(cuDeviceGetName)(name, sizeof name, 1), CUDA_SUCCESS, "cuDeviceGetName");
    report.expect(std::strcmp(name, "Fake GPU 1") == 0, name);
    report.equal(API(cuDeviceGetName)(name, 5, 1), CUDA_SUCCESS, "cuDeviceGetName, short");
    report.expect(std::strcmp(name, "Fake") == 0, name);
    CUdevice device = -1;
    report.equal(API(cuDeviceGetByPCIBusId)(&device, "0000:1a:00.0"), CUDA_SUCCESS, "cuDeviceGetByPCIBusId");
    report.equal(device, 1, "the device by bus id");
    report.equal(API(cuDeviceGetByPCIBusId)(&device, "19:0"), CUDA_SUCCESS, "cuDeviceGetByPCIBusId, short form");
    report.equal(device, 0, "the device by bus id");
    report.equal(API(cuDeviceGetByPCIBusId)(&device, "7f:0.0"), CUDA_ERROR_INVALID_DEVICE, "a bus id nobody has");
    report.equal(API(cuDeviceGetByPCIBusId)(&device, "rubbish"), CUDA_ERROR_INVALID_VALUE, "a bus id that is none");
    report.equal(API(cuDeviceGet)(&device, 2), CUDA_ERROR_INVALID_DEVICE, "cuDeviceGet(2)");
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
  CHECK(end.errors.empty());
  CHECK(broker.hellos() == 1);
  CHECK(broker.pidfd_was_childs());
  CHECK(broker.attaches() == 0);
}

TEST_CASE("CUDA_VISIBLE_DEVICES set from inside, before cuInit") {
  const ScriptedBroker broker(3);
  const ChildEnd end = in_child(broker.directory(), "", [&](const Report& report, const Library& library) {
    int version = 0;
    (void)API(cuDriverGetVersion)(&version);
    setenv("CUDA_VISIBLE_DEVICES", "2", 1);
    report.equal(API(cuInit)(0), CUDA_SUCCESS, "cuInit");
    int count = 0;
    (void)API(cuDeviceGetCount)(&count);
    report.equal(count, 1, "the count");
    char name[32] = {};
    (void)API(cuDeviceGetName)(name, sizeof name, 0);
    report.expect(std::strcmp(name, "Fake GPU 2") == 0, name);
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
}

TEST_CASE("a process that names no device sees them in the broker's order, and not if a launcher has numbered it") {
  ScriptedBroker broker(3);
  broker.turn_order();
  for (const auto& one : {std::pair("", "Fake GPU 2"), std::pair("OMPI_COMM_WORLD_LOCAL_RANK=1", "Fake GPU 0")}) {
    const ChildEnd end = in_child(broker.directory(), one.first, [&](const Report& report, const Library& library) {
      report.equal(API(cuInit)(0), CUDA_SUCCESS, "cuInit");
      int count = 0;
      (void)API(cuDeviceGetCount)(&count);
      report.equal(count, 3, "the count");
      char name[32] = {};
      (void)API(cuDeviceGetName)(name, sizeof name, 0);
      report.expect(std::strcmp(name, one.second) == 0, name);
    });
    INFO(one.first << ' ' << end.complaints << end.errors);
    CHECK(end.fine());
  }
}

TEST_CASE("the multiprocessors that a process is told of follow its percentage, which is set from inside before cuInit, without a session") {
  const ScriptedBroker broker;
  const ChildEnd end = in_child(broker.directory(), "", [&](const Report& report, const Library& library) {
    int version = 0;
    (void)API(cuDriverGetVersion)(&version);
    setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25", 1);
    report.equal(API(cuInit)(0), CUDA_SUCCESS, "cuInit");
    setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50", 1);  // too late
    for (const CUdevice device : {0, 1}) {
      int count = 0;
      report.equal(API(cuDeviceGetAttribute)(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device), CUDA_SUCCESS, "cuDeviceGetAttribute");
      report.equal(count, 248, "multiprocessors, of 1000 in eights");
    }
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
  CHECK(end.errors.empty());
  CHECK(broker.attaches() == 0);
}

TEST_CASE("no visible device is CUDA_ERROR_NO_DEVICE") {
  const ScriptedBroker broker;
  const ChildEnd end = in_child(broker.directory(), "CUDA_VISIBLE_DEVICES=-1", [&](const Report& report, const Library& library) {
    report.equal(API(cuInit)(0), CUDA_ERROR_NO_DEVICE, "cuInit");
    int count = 0;
    report.equal(API(cuDeviceGetCount)(&count), CUDA_ERROR_NOT_INITIALIZED, "cuDeviceGetCount");
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
}

TEST_CASE("no broker and no driver: cuInit says so in one line, and only once") {
  const ChildEnd end = in_child("/nonexistent", kNoDriver, [&](const Report& report, const Library& library) {
    int version = 0;
    report.equal(API(cuDriverGetVersion)(&version), CUDA_SUCCESS, "cuDriverGetVersion");
    report.equal(version, std::max(CUDA_VERSION, kNewestApiVersion), "the version");
    report.equal(API(cuInit)(0), CUDA_ERROR_NO_DEVICE, "cuInit");
    report.equal(API(cuInit)(0), CUDA_ERROR_NO_DEVICE, "cuInit again");
    int count = 0;
    report.equal(API(cuDeviceGetCount)(&count), CUDA_ERROR_NOT_INITIALIZED, "cuDeviceGetCount");
    const char* text = nullptr;
    report.equal(API(cuGetErrorName)(CUDA_ERROR_NO_DEVICE, &text), CUDA_SUCCESS, "cuGetErrorName");
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
  CHECK(lines_of(end.errors) == 2);  // MPSSHIM_REAL_DRIVER names nothing; nothing was found
  CHECK(end.errors.find("mpsbroker") != std::string::npos);
}

TEST_CASE("MPSSHIM_REQUIRE without a broker") {
  const ChildEnd end = in_child("/nonexistent", "MPSSHIM_REQUIRE=1", [&](const Report& report, const Library& library) {
    int version = 0;
    report.equal(API(cuDriverGetVersion)(&version), CUDA_SUCCESS, "cuDriverGetVersion");
    report.equal(version, std::max(CUDA_VERSION, kNewestApiVersion), "the version");
    report.equal(API(cuDriverGetVersion)(nullptr), CUDA_ERROR_INVALID_VALUE, "cuDriverGetVersion into nothing");
    report.equal(API(cuInit)(0), CUDA_ERROR_MPS_CONNECTION_FAILED, "cuInit");
    CUdeviceptr pointer = 0;
    report.equal(API(cuMemAlloc_v2)(&pointer, 16), CUDA_ERROR_MPS_CONNECTION_FAILED, "cuMemAlloc");
    void* function = nullptr;
    report.equal(API(cuGetProcAddress)("cuInit", &function, 12000, 0), CUDA_SUCCESS, "cuGetProcAddress");
    report.expect(function == library.symbol("cuInit"), "cuGetProcAddress gives the exported function");
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
  CHECK(lines_of(end.errors) == 1);
  CHECK(end.errors.find("/nonexistent") != std::string::npos);
}

TEST_CASE("a broker that refuses is not gone around") {
  const ScriptedBroker broker(1, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
  const ChildEnd end = in_child(broker.directory(), "", [&](const Report& report, const Library& library) {
    int version = 0;
    report.equal(API(cuDriverGetVersion)(&version), CUDA_SUCCESS, "cuDriverGetVersion");
    report.expect(version >= kNewestApiVersion, "the version is " + std::to_string(version));
    report.equal(API(cuInit)(0), CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "cuInit");
    report.equal(API(cuInit)(0), CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "cuInit again");
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
  CHECK(lines_of(end.errors) == 1);
  CHECK(broker.hellos() == 1);
}

TEST_CASE("a broker that hangs up before it answers is told of in one line") {
  const TemporaryDirectory folder;
  const proto::Socket listener = proto::Socket::listen_at(folder.path + '/' + proto::kClientSocketName, 4);
  REQUIRE(listener.valid());
  std::thread hangs_up([&] {
    if (listener.wait_readable(20'000)) (void)listener.accept();
  });
  const ChildEnd end = in_child(folder.path, "", [&](const Report& report, const Library& library) {
    int version = 0;
    report.equal(API(cuDriverGetVersion)(&version), CUDA_SUCCESS, "cuDriverGetVersion");
    report.equal(API(cuInit)(0), CUDA_ERROR_MPS_CONNECTION_FAILED, "cuInit");
  });
  hangs_up.join();
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
  CHECK(lines_of(end.errors) == 1);
  CHECK(end.errors.find("did not answer (") != std::string::npos);
  CHECK(end.errors.find("start this program again") != std::string::npos);
}

TEST_CASE("a broker of another release is named with its version, and with what to install") {
  const auto refused_by = [](proto::Version version) {
    const ScriptedBroker broker(1, CUDA_ERROR_MPS_CONNECTION_FAILED, version);
    return in_child(broker.directory(), "",
                    [&](const Report& report, const Library& library) { report.equal(API(cuInit)(0), CUDA_ERROR_MPS_CONNECTION_FAILED, "cuInit"); });
  };
  const ChildEnd older = refused_by({proto::kLayoutMajor, proto::kLayoutMinor - 1});
  INFO(older.complaints << older.errors);
  CHECK(older.fine());
  CHECK(lines_of(older.errors) == 1);
  CHECK(older.errors.find("speaks protocol " + std::to_string(proto::kLayoutMajor) + "." + std::to_string(proto::kLayoutMinor - 1)) !=
        std::string::npos);
  CHECK(older.errors.find("install the newer mpsbroker") != std::string::npos);
  const ChildEnd newer = refused_by({proto::kLayoutMajor, proto::kLayoutMinor + 2});
  INFO(newer.complaints << newer.errors);
  CHECK(newer.fine());
  CHECK(lines_of(newer.errors) == 1);
  CHECK(newer.errors.find("use the library of that release") != std::string::npos);
}

TEST_CASE("a child of an initialised process is not initialised, a child of one that only looked settles anew") {
  const ScriptedBroker broker;
  const auto fork_and = [](const Report& report, const std::function<void()>& body) {
    const pid_t child = fork();
    if (child == 0) {
      body();
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    report.equal(status, 0, "the grandchild's end");
  };
  const ChildEnd end = in_child(broker.directory(), "", [&](const Report& report, const Library& library) {
    int version = 0;
    (void)API(cuDriverGetVersion)(&version);
    fork_and(report, [&] {
      int count = 0;
      report.equal(API(cuInit)(0), CUDA_SUCCESS, "cuInit in the early child");
      report.equal(API(cuDeviceGetCount)(&count), CUDA_SUCCESS, "cuDeviceGetCount in the early child");
    });
    report.equal(API(cuInit)(0), CUDA_SUCCESS, "cuInit");
    fork_and(report, [&] {
      int count = 0;
      report.equal(API(cuInit)(0), CUDA_ERROR_NOT_INITIALIZED, "cuInit in the late child");
      report.equal(API(cuDeviceGetCount)(&count), CUDA_ERROR_NOT_INITIALIZED, "cuDeviceGetCount in the late child");
      report.equal(API(cuDriverGetVersion)(&version), CUDA_SUCCESS, "cuDriverGetVersion in the late child");
      const char* text = nullptr;
      report.equal(API(cuGetErrorString)(CUDA_ERROR_NOT_INITIALIZED, &text), CUDA_SUCCESS, "cuGetErrorString in the late child");
    });
    int count = 0;
    report.equal(API(cuDeviceGetCount)(&count), CUDA_SUCCESS, "cuDeviceGetCount in the parent, afterwards");
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
  CHECK(broker.hellos() == 2);
}

TEST_CASE("threads that come at once settle once") {
  const ScriptedBroker broker;
  const ChildEnd end = in_child(broker.directory(), "", [&](const Report& report, const Library& library) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] { report.equal(API(cuInit)(0), CUDA_SUCCESS, "cuInit"); });
    }
    for (auto& thread : threads) thread.join();
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
  CHECK(broker.hellos() == 1);
}

TEST_CASE("what a CUDA 13.0 runtime asks for, it gets") {
  std::ifstream rows(MPSSHIM_TEST_DATA "/cudart13_resolves.tsv");
  REQUIRE(rows.good());
  const ChildEnd end = in_child("/nonexistent", kNoDriver, [&](const Report& report, const Library& library) {
    int checked = 0;
    for (std::string line; std::getline(rows, line);) {
      if (line.empty() || line[0] == '#') continue;
      std::istringstream columns(line);
      std::string order, name, version, flags, expected;
      std::getline(columns, order, '\t');
      std::getline(columns, name, '\t');
      std::getline(columns, version, '\t');
      std::getline(columns, flags, '\t');
      std::getline(columns, expected, '\t');
      if (name == "(empty string)") name.clear();
      void* function = &checked;
      CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
      const CUresult result = API(cuGetProcAddress_v2)(name.c_str(), &function, std::stoi(version), std::stoull(flags), &status);
      if (expected == "-") {
        report.expect(result == CUDA_SUCCESS && function == nullptr, line);
      } else {
        report.expect(result == CUDA_SUCCESS && status == CU_GET_PROC_ADDRESS_SUCCESS, line);
        report.expect(function != nullptr && function == library.symbol(expected.c_str()), line + ": another function");
      }
      ++checked;
    }
    report.expect(checked >= 439, "only " + std::to_string(checked) + " rows");
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
}

TEST_CASE("cuGetProcAddress: versions, flags and failures") {
  const ChildEnd end = in_child("/nonexistent", kNoDriver, [&](const Report& report, const Library& library) {
    const auto ask = [&](const char* name, int version, cuuint64_t flags, void** function, CUdriverProcAddressQueryResult* status) {
      return API(cuGetProcAddress_v2)(name, function, version, flags, status);
    };
    void* function = nullptr;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    report.equal(ask("cuMemAlloc", 3019, 0, &function, &status), CUDA_SUCCESS, "cuMemAlloc 3019");
    report.expect(function == library.symbol("cuMemAlloc"), "the old cuMemAlloc");
    report.equal(ask("cuMemAlloc", 3020, 0, &function, &status), CUDA_SUCCESS, "cuMemAlloc 3020");
    report.expect(function == library.symbol("cuMemAlloc_v2"), "cuMemAlloc_v2");
    report.equal(ask("cuMemcpy", 13000, 2, &function, &status), CUDA_SUCCESS, "cuMemcpy per thread");
    report.expect(function == library.symbol("cuMemcpy_ptds"), "cuMemcpy_ptds");
    report.equal(ask("cuMemcpy", 13000, 1, &function, &status), CUDA_SUCCESS, "cuMemcpy legacy");
    report.expect(function == library.symbol("cuMemcpy"), "cuMemcpy");
    report.equal(ask("cuInit", 13000, 2, &function, &status), CUDA_SUCCESS, "cuInit per thread");
    report.expect(function == library.symbol("cuInit"), "cuInit has no per-thread variant");
    report.equal(ask("cuLaunchKernelEx", 11000, 0, &function, &status), CUDA_SUCCESS, "cuLaunchKernelEx 11000");
    report.expect(function == nullptr, "null where it is not found");
    report.equal(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, "its status");
    report.equal(ask("cuNoSuchThing", 13000, 0, &function, &status), CUDA_SUCCESS, "cuNoSuchThing");
    report.equal(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, "its status");
    report.equal(ask("cuMemAlloc_v2", 13000, 0, &function, nullptr), CUDA_SUCCESS, "a suffixed name");
    report.expect(function == nullptr, "which is not found");
    report.equal(ask("cuMemcpy", 13000, 3, &function, &status), CUDA_SUCCESS, "both default streams");
    report.expect(function == library.symbol("cuMemcpy_ptds"), "the thread's own of the two");
    report.equal(ask("cuInit", 13000, 4, &function, &status), CUDA_ERROR_INVALID_VALUE, "flag 4");
    report.equal(ask(nullptr, 13000, 0, &function, &status), CUDA_ERROR_INVALID_VALUE, "no name");
    report.equal(ask("cuInit", 13000, 0, nullptr, &status), CUDA_ERROR_INVALID_VALUE, "no destination");
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
}
