// SPDX-License-Identifier: Apache-2.0
// The log of failed calls. What is logged differs from driver to driver; a dump without a buffer is in all.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "driver_under_test.hpp"

#if CUDA_VERSION >= 12090

using namespace mpsshim::test;

#define SKIP_WITHOUT_LOG() \
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver keeps no log")

namespace {

void fail_once() {
  size_t size = 1;
  CHECK(CU(cuLogsDumpToMemory)(nullptr, nullptr, &size, 0) == CUDA_ERROR_INVALID_VALUE);
}

std::string dump(CUlogIterator* iterator, size_t room = 25600) {
  std::vector<char> buffer(room, 'x');
  size_t size = room;
  OK(CU(cuLogsDumpToMemory)(iterator, buffer.data(), &size, 0));
  REQUIRE(size < room);
  CHECK((size == 0 || std::strlen(buffer.data()) == size));
  return {buffer.data(), size};
}

// Of calls that failed; the real driver has lines of explanation beside them.
size_t calls_in(const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find("Returning "); at != std::string::npos; at = text.find("Returning ", at + 1)) ++count;
  return count;
}

struct Heard {
  std::vector<std::string> messages;
};
void CUDA_CB hear(void* data, CUlogLevel, char* message, size_t length) { static_cast<Heard*>(data)->messages.emplace_back(message, length); }

}  // namespace

TEST_CASE("failed calls are in the log from an iterator on", "[forwarded]") {
  SKIP_WITHOUT_LOG();
  OK(CU(cuInit)(0));
  CUlogIterator iterator = 0;
  OK(CU(cuLogsCurrent)(&iterator, 0));
  CHECK(dump(&iterator) == "");
  fail_once();
  const std::string one = dump(&iterator);
  INFO(one);
  CHECK(one.find("[CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLogsDumpToMemory\n") != std::string::npos);
  CHECK(one.back() == '\n');
  CHECK(calls_in(one) == 1);
  CHECK(dump(&iterator) == "");
  for (int i = 0; i < 3; ++i) fail_once();
  CHECK(calls_in(dump(&iterator)) == 3);
  CHECK(calls_in(dump(nullptr)) >= 4);
}

TEST_CASE("the newest entries of the log have precedence", "[forwarded]") {
  SKIP_WITHOUT_LOG();
  OK(CU(cuInit)(0));
  for (int i = 0; i < 150; ++i) fail_once();
  const std::string all = dump(nullptr);
  CHECK(calls_in(all) >= 50);
  CHECK(calls_in(all) <= 101);
  const std::string some = dump(nullptr, 600);
  INFO(some);
  CHECK(calls_in(some) >= 2);
  CHECK(all.substr(all.rfind('\n', all.size() - 2)) == some.substr(some.rfind('\n', some.size() - 2)));
  char small[8];
  size_t size = sizeof small;
  CHECK(CU(cuLogsDumpToMemory)(nullptr, small, &size, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(size == 0);
}

TEST_CASE("the log is written to a file", "[forwarded]") {
  SKIP_WITHOUT_LOG();
  OK(CU(cuInit)(0));
  CUlogIterator iterator = 0;
  OK(CU(cuLogsCurrent)(&iterator, 0));
  fail_once();
  char path[] = "/tmp/mpsshim-log-XXXXXX";
  const int file = mkstemp(path);
  REQUIRE(file >= 0);
  close(file);
  OK(CU(cuLogsDumpToFile)(&iterator, path, 0));
  std::ifstream written(path);
  const std::string text{std::istreambuf_iterator<char>(written), std::istreambuf_iterator<char>()};
  unlink(path);
  CHECK(text.find("from cuLogsDumpToMemory\n") != std::string::npos);
  CHECK(dump(&iterator) == "");
}

TEST_CASE("callbacks hear of failed calls", "[forwarded]") {
  SKIP_WITHOUT_LOG();
  OK(CU(cuInit)(0));
  Heard heard;
  CUlogsCallbackHandle handle = nullptr;
  OK(CU(cuLogsRegisterCallback)(hear, &heard, &handle));
  fail_once();
  const size_t heard_of_one = heard.messages.size();
  REQUIRE(heard_of_one >= 1);
  CHECK(heard.messages.back().find("cuLogsDumpToMemory") != std::string::npos);
  OK(CU(cuLogsUnregisterCallback)(handle));
  fail_once();
  CHECK(heard.messages.size() == heard_of_one);
}

TEST_CASE("the log's calls with wrong arguments", "[forwarded]") {
  SKIP_WITHOUT_LOG();
  OK(CU(cuInit)(0));
  CUlogIterator iterator = 0;
  CHECK(CU(cuLogsCurrent)(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuLogsCurrent)(&iterator, 1));  // flags are not looked at
  char buffer[256];
  size_t size = sizeof buffer;
  CHECK(CU(cuLogsDumpToMemory)(&iterator, buffer, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuLogsDumpToMemory)(&iterator, buffer, &size, 1));
  CHECK(CU(cuLogsDumpToFile)(&iterator, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CUlogsCallbackHandle handle = nullptr;
  CHECK(CU(cuLogsRegisterCallback)(nullptr, nullptr, &handle) == CUDA_ERROR_INVALID_VALUE);
  static Heard heard;  // nobody can take it back
  OK(CU(cuLogsRegisterCallback)(hear, &heard, nullptr));
}

#endif
