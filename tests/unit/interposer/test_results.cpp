// SPDX-License-Identifier: Apache-2.0
// Every CUresult that the installed cuda.h knows has its name and a text, and nothing else has.
#include <fstream>
#include <map>
#include <regex>
#include <string>

#include "gen/api_declarations.hpp"
#include "tests/support/catch.hpp"

namespace api = mpsshim::interposer::api;

namespace {

std::map<int, std::string> results_of_header() {
  std::ifstream header(MPSSHIM_CUDA_HEADER);
  const std::regex pattern(R"(^\s*(CUDA_SUCCESS|CUDA_ERROR_\w+)\s*=\s*(\d+))");
  std::map<int, std::string> results;
  std::smatch match;
  for (std::string line; std::getline(header, line);) {
    if (std::regex_search(line, match, pattern)) results[std::stoi(match[2])] = match[1];
  }
  return results;
}

}  // namespace

TEST_CASE("names are those of cuda.h") {
  const auto results = results_of_header();
  REQUIRE(results.size() > 90);
  for (const auto& [number, name] : results) {
    const char* told = nullptr;
    REQUIRE(api::cuGetErrorName(static_cast<CUresult>(number), &told) == CUDA_SUCCESS);
    CHECK(told == name);
    REQUIRE(api::cuGetErrorString(static_cast<CUresult>(number), &told) == CUDA_SUCCESS);
    CHECK(std::string(told).size() > 3);
  }
}

TEST_CASE("texts are the driver's") {
  const std::map<CUresult, std::string> known = {
      {CUDA_SUCCESS, "no error"},
      {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
      {CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
      {CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"},
      {CUDA_ERROR_INVALID_CONTEXT, "invalid device context"},
      {CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
      {CUDA_ERROR_MPS_CONNECTION_FAILED, "MPS client failed to connect to the MPS control daemon or the MPS server"},
      {CUDA_ERROR_UNKNOWN, "unknown error"},
  };
  for (const auto& [result, text] : known) {
    const char* told = nullptr;
    REQUIRE(api::cuGetErrorString(result, &told) == CUDA_SUCCESS);
    CHECK(told == text);
  }
}

TEST_CASE("a number that is no result gives null and CUDA_ERROR_INVALID_VALUE") {
  const auto results = results_of_header();
  for (int number = -2; number < 1100; ++number) {
    if (results.count(number) != 0 || number == 36 || number == 721 || number == 917) continue;
    const char* told = "untouched";
    CHECK(api::cuGetErrorName(static_cast<CUresult>(number), &told) == CUDA_ERROR_INVALID_VALUE);
    CHECK(told == nullptr);
  }
  CHECK(api::cuGetErrorName(CUDA_SUCCESS, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(api::cuGetErrorString(CUDA_SUCCESS, nullptr) == CUDA_ERROR_INVALID_VALUE);
}
