// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/launch.hpp"

#include <array>
#include <cstring>
#include <vector>

#include "tests/support/catch.hpp"

using namespace mpsshim::interposer::forward;

namespace {

constexpr LaunchLimits kLimits{2147483647, 65535, 65535, 1024, 1024, 64, 1024};

CUresult check(LaunchShape shape, int threads = 1024, int shared = 49152) { return check_launch(shape, kLimits, threads, shared); }

}  // namespace

TEST_CASE("launch: arguments are copied to their offsets") {
  struct Big {
    char text[24];
  };
  const double number = 2.5;
  const int count = 7;
  const char flag = 'x';
  const Big big{"a structure of 24 bytes"};
  const std::array<Parameter, 4> layout{{{0, 8}, {8, 4}, {12, 1}, {16, 24}}};
  void* pointers[] = {const_cast<double*>(&number), const_cast<int*>(&count), const_cast<char*>(&flag), const_cast<Big*>(&big)};
  std::array<std::byte, 48> buffer;
  buffer.fill(std::byte{0xee});
  copy_arguments({pointers, nullptr, 0}, layout, 40, buffer.data());
  CHECK(std::memcmp(buffer.data(), &number, 8) == 0);
  CHECK(std::memcmp(buffer.data() + 8, &count, 4) == 0);
  CHECK(buffer[12] == std::byte{'x'});
  CHECK(std::memcmp(buffer.data() + 16, &big, 24) == 0);
  CHECK(buffer[13] == std::byte{0xee});
  for (std::size_t i = 40; i < buffer.size(); ++i) CHECK(buffer[i] == std::byte{0xee});
}

TEST_CASE("launch: a ready buffer is copied as it is, up to the parameters' end") {
  std::array<std::byte, 20> ready;
  for (std::size_t i = 0; i < ready.size(); ++i) ready[i] = static_cast<std::byte>(i);
  std::size_t size = ready.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, ready.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  Arguments arguments;
  REQUIRE(find_arguments(nullptr, extra, 20, arguments) == CUDA_SUCCESS);
  std::array<std::byte, 32> buffer;
  buffer.fill(std::byte{0xee});
  copy_arguments(arguments, {}, 20, buffer.data());
  CHECK(std::memcmp(buffer.data(), ready.data(), 20) == 0);
  CHECK(buffer[20] == std::byte{0xee});

  size = 12;  // what is missing is 0
  REQUIRE(find_arguments(nullptr, extra, 20, arguments) == CUDA_SUCCESS);
  copy_arguments(arguments, {}, 20, buffer.data());
  CHECK(buffer[11] == std::byte{11});
  CHECK(buffer[12] == std::byte{0});
  CHECK(buffer[19] == std::byte{0});
  CHECK(buffer[20] == std::byte{0xee});
  size = 0;
  CHECK(find_arguments(nullptr, extra, 20, arguments) == CUDA_ERROR_INVALID_VALUE);
  size = 21;
  CHECK(find_arguments(nullptr, extra, 20, arguments) == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  void* pointers[] = {nullptr};
  CHECK(find_arguments(pointers, extra, 20, arguments) == CUDA_ERROR_INVALID_VALUE);
  CHECK(find_arguments(nullptr, nullptr, 20, arguments) == CUDA_ERROR_INVALID_VALUE);
  CHECK(find_arguments(nullptr, nullptr, 0, arguments) == CUDA_SUCCESS);
  void* unknown[] = {reinterpret_cast<void*>(9), nullptr, CU_LAUNCH_PARAM_END};
  CHECK(find_arguments(nullptr, unknown, 0, arguments) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("launch: shapes at the limits pass, one past them does not") {
  CHECK(check({1, 1, 1, 1, 1, 1, 0}) == CUDA_SUCCESS);
  CHECK(check({2147483647, 65535, 65535, 1024, 1, 1, 0}) == CUDA_SUCCESS);
  CHECK(check({2147483648u, 1, 1, 1, 1, 1, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check({1, 65536, 1, 1, 1, 1, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check({1, 1, 1, 1, 1, 65, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check({1, 1, 1, 32, 32, 1, 0}) == CUDA_SUCCESS);
  CHECK(check({1, 1, 1, 33, 32, 1, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check({0, 1, 1, 1, 1, 1, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check({1, 1, 1, 1, 0, 1, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check({1, 1, 1, 512, 1, 1, 0}, 512) == CUDA_SUCCESS);
  CHECK(check({1, 1, 1, 513, 1, 1, 0}, 512) == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  CHECK(check({1, 1, 1, 1, 1, 1, 49152}) == CUDA_SUCCESS);
  CHECK(check({1, 1, 1, 1, 1, 1, 49153}) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("launch: clusters are refused as the driver refuses them") {
  Function function;
  const auto refused = [&](std::uint32_t grid_x, std::uint32_t cluster_x, std::uint32_t cluster_y = 1) {
    std::array<CUlaunchAttribute, 1> attributes{};
    attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[0].value.clusterDim = {cluster_x, cluster_y, 1};
    return check_cluster(function, {grid_x, 8, 1, 32, 1, 1, 0}, attributes) == CUDA_ERROR_INVALID_CLUSTER_SIZE;
  };
  CHECK_FALSE(refused(64, 1));
  CHECK_FALSE(refused(64, 8));
  CHECK_FALSE(refused(64, 4, 2));
  CHECK(refused(64, 3));
  CHECK(refused(64, 16));
  CHECK(refused(64, 4, 4));
  CHECK(refused(64, 0));
  CHECK(refused(0x80000000u, 0x80000000u, 2));
  function.attribute[CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED] = 1;
  CHECK_FALSE(refused(64, 16));
  CHECK(refused(64, 32));
  for (const CUfunction_attribute dimension :
       {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH}) {
    function.attribute[dimension] = dimension == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH ? 4 : 1;
  }
  CHECK_FALSE(refused(64, 4));
  CHECK(refused(64, 2));                 // than was set on the function
  function.has_compiled_cluster = true;  // which counts then
  for (const CUfunction_attribute dimension :
       {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH}) {
    function.attribute[dimension] = dimension == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH ? 2 : 1;
  }
  CHECK(check_cluster(function, {3, 1, 1, 32, 1, 1, 0}, {}) == CUDA_ERROR_INVALID_CLUSTER_SIZE);
  CHECK(check_cluster(function, {4, 1, 1, 32, 1, 1, 0}, {}) == CUDA_SUCCESS);
}
