// SPDX-License-Identifier: Apache-2.0
// NVIDIA's own runtime, linked into this test, goes through its first calls on the library: look-ups, tables, devices, the self-test, the
// primary context. It finds the library as every program does: by dlopen("libcuda.so.1").
#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "tests/support/catch.hpp"
#include "tests/unit/interposer/scripted_broker.hpp"

using namespace mpsshim;
using namespace mpsshim::test;

TEST_CASE("the CUDA runtime accepts the library as its driver") {
  const ScriptedBroker broker(1);
  const ChildEnd end = in_child(broker.directory(), "", [&](const Report& report, const Library&) {
    int number = 0;
    report.equal(cudaDriverGetVersion(&number), cudaSuccess, "cudaDriverGetVersion");
    report.equal(cudaGetDeviceCount(&number), cudaSuccess, "cudaGetDeviceCount");
    report.equal(number, 1, "the count");
    cudaDeviceProp properties{};
    report.equal(cudaGetDeviceProperties(&properties, 0), cudaSuccess, "cudaGetDeviceProperties");
    report.expect(std::strcmp(properties.name, "Fake GPU 0") == 0, properties.name);
    report.equal(properties.major, 9, "the compute capability");
    // 103 here would mean that the self-test's answer is wrong.
    report.equal(cudaSetDevice(0), cudaSuccess, "cudaSetDevice");
    report.equal(cudaFree(nullptr), cudaSuccess, "cudaFree(NULL), which makes the context");
    std::size_t limit = 0;
    report.equal(cudaDeviceGetLimit(&limit, cudaLimitStackSize), cudaSuccess, "cudaDeviceGetLimit");
    report.equal(static_cast<long long>(limit), 1024, "the stack limit");
    std::thread([&] {
      int device = -1;
      report.equal(cudaFree(nullptr), cudaSuccess, "cudaFree(NULL) in another thread");
      report.equal(cudaGetDevice(&device), cudaSuccess, "cudaGetDevice in another thread");
    }).join();
    report.equal(cudaDeviceReset(), cudaSuccess, "cudaDeviceReset");
    report.equal(cudaFree(nullptr), cudaSuccess, "cudaFree(NULL) after the reset");
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
  CHECK(broker.attaches() == 1);
}

TEST_CASE("the CUDA runtime tells what a broker that refuses says") {
  struct Row {
    CUresult status;
    proto::Version version;
    std::string runtime;  // cudaGetErrorString
    std::string ours;
  };
  const std::string failed_to_connect = "MPS client failed to connect to the MPS control daemon or the MPS server";
  const std::vector<Row> rows = {
      {CUDA_ERROR_MPS_CONNECTION_FAILED, {proto::kLayoutMajor + 1, 0}, failed_to_connect, "use the library of that release"},
      {CUDA_ERROR_MPS_CONNECTION_FAILED,
       {proto::kLayoutMajor, proto::kLayoutMinor - 1},
       failed_to_connect,
       "install the newer mpsbroker and run mpsctl restart"},
      {CUDA_ERROR_MPS_CONNECTION_FAILED, proto::kVersion, failed_to_connect, "its log says why"},
      {CUDA_ERROR_MPS_SERVER_NOT_READY, proto::kVersion, "MPS server is not ready to accept new MPS client requests",
       "has no executor that is ready"},
      {CUDA_ERROR_MPS_RPC_FAILURE, proto::kVersion, "the remote procedural call between the MPS server and the MPS client failed",
       "its log says why"},
  };
  for (const Row& row : rows) {
    const ScriptedBroker broker(1, row.status, row.version);
    const ChildEnd end = in_child(broker.directory(), "", [&](const Report& report, const Library&) {
      int number = 0;
      report.equal(cudaDriverGetVersion(&number), cudaSuccess, "cudaDriverGetVersion");
      report.expect(number >= CUDART_VERSION, "the version is " + std::to_string(number));
      // The runtime has the same numbers for these; 35 would be cudaErrorInsufficientDriver.
      report.equal(cudaGetDeviceCount(&number), static_cast<int>(row.status), "cudaGetDeviceCount");
      void* memory = nullptr;
      const cudaError_t error = cudaMalloc(&memory, 16);
      report.equal(error, static_cast<int>(row.status), "cudaMalloc");
      report.expect(cudaGetErrorString(error) == row.runtime, cudaGetErrorString(error));
    });
    INFO(row.status << ": " << end.complaints << end.errors);
    CHECK(end.fine());
    CHECK(end.errors.find(row.ours) != std::string::npos);
    CHECK(std::count(end.errors.begin(), end.errors.end(), '\n') == 1);
  }
}
