// SPDX-License-Identifier: Apache-2.0
// What goes to a linker process and comes back from it, which neither side's reader may believe.
#include <cstring>
#include <random>

#include <unistd.h>

#include "broker/linker/link_file.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;

namespace {

ImageBytes bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return ImageBytes(std::vector<std::byte>(bytes.begin(), bytes.end()));
}
std::string text_of(const ImageBytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

LinkRequest make_request() {
  LinkRequest request;
  request.task = LinkRequest::Task::step;
  request.linker = 0x1234'5678'9abc'def0;
  request.known = 3;
  request.completes = true;
  request.options = {{CU_JIT_MAX_REGISTERS, 32}, {CU_JIT_LOG_VERBOSE, 1}};
  request.steps.push_back({CU_JIT_INPUT_PTX, bytes_of(std::string(1000, 'p')), "first", {{CU_JIT_OPTIMIZATION_LEVEL, 2}}});
  request.steps.push_back({CU_JIT_INPUT_OBJECT, {}, "", {}});
  return request;
}

std::vector<std::byte> content_of(const proto::FileDescriptor& file) {
  std::vector<std::byte> content(proto::sealed_size(file).value());
  REQUIRE(pread(file.get(), content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
  return content;
}
proto::FileDescriptor sealed(const std::vector<std::byte>& content) {
  proto::FileDescriptor file = proto::create_memory_file("test-link", content.size());
  REQUIRE(pwrite(file.get(), content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
  REQUIRE(proto::seal(file, proto::Seal::content));
  return file;
}

}  // namespace

TEST_CASE("a request to a linker process arrives as it was") {
  const LinkRequest sent = make_request();
  LinkRequest got;
  REQUIRE(read_request(write_request(sent), got));
  CHECK(got.task == sent.task);
  CHECK(got.linker == sent.linker);
  CHECK(got.known == sent.known);
  CHECK(got.completes);
  REQUIRE(got.options.size() == 2);
  CHECK(got.options[0].option == CU_JIT_MAX_REGISTERS);
  CHECK(got.options[0].value == 32);
  REQUIRE(got.steps.size() == 2);
  CHECK(text_of(got.steps[0].bytes) == std::string(1000, 'p'));
  CHECK(got.steps[0].name == "first");
  CHECK(got.steps[0].options[0].value == 2);
  CHECK(got.steps[1].type == CU_JIT_INPUT_OBJECT);
  CHECK(got.steps[1].bytes.empty());
}

TEST_CASE("a request with what a driver takes for an address is none") {
  LinkRequest request = make_request();
  SECTION("an option that is an address") { request.options.push_back({CU_JIT_ERROR_LOG_BUFFER, 4096}); }
  SECTION("of an input") { request.steps[0].options.push_back({CU_JIT_INFO_LOG_BUFFER, 4096}); }
  SECTION("a name that ends before its end") { request.steps[0].name = std::string("a\0b", 3); }
  SECTION("nothing to be loaded") {
    request.task = LinkRequest::Task::load;
    request.steps.clear();
  }
  LinkRequest got;
  CHECK_FALSE(read_request(write_request(request), got));
}

TEST_CASE("what has come of a link arrives as it was, its logs bounded") {
  LinkOutcome sent;
  sent.status = CUDA_ERROR_INVALID_PTX;
  sent.error_log = "ptxas: line 1\nptxas: line 2\n" + std::string(2 * kLinkLogBytes, 'x');
  sent.info_log = std::string("before\0behind", 13);
  sent.code = bytes_of("machine code");
  LinkOutcome got;
  REQUIRE(read_outcome(write_outcome(sent), got));
  CHECK(got.end == LinkOutcome::End::done);
  CHECK(got.status == CUDA_ERROR_INVALID_PTX);
  CHECK(got.error_log == sent.error_log.substr(0, kLinkLogBytes - 1));
  CHECK(got.info_log == "before");
  CHECK(text_of(got.code) == "machine code");
  sent.end = LinkOutcome::End::unknown;
  REQUIRE(read_outcome(write_outcome(sent), got));
  CHECK(got.end == LinkOutcome::End::unknown);
  sent.status = CUDA_SUCCESS;
  CHECK_FALSE(read_outcome(write_outcome(sent), got));
  CHECK_FALSE(read_outcome(write_request(make_request()), got));
}

TEST_CASE("files of links that lie are refused, or lead nowhere but into themselves") {
  std::mt19937_64 random(20);
  LinkOutcome outcome;
  outcome.code = bytes_of(std::string(3000, 'c'));
  const std::vector<std::byte> request = content_of(write_request(make_request()));
  const std::vector<std::byte> result = content_of(write_outcome(outcome));
  int understood = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<std::byte> content = round % 2 == 0 ? request : result;
    for (std::uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
      const std::uint64_t word = random() % 3 == 0 ? random() : random() % 4096;
      std::memcpy(content.data() + random() % 64 * 8, &word, sizeof word);
    }
    if (random() % 8 == 0) content.resize(random() % content.size() + 1);
    const proto::FileDescriptor file = sealed(content);
    LinkRequest got_request;
    LinkOutcome got_outcome;
    std::size_t sum = 0;  // all bytes can be read
    if (read_request(file, got_request)) {
      ++understood;
      for (const LinkStep& step : got_request.steps) {
        for (const std::byte byte : step.bytes.bytes()) sum += static_cast<std::size_t>(byte);
      }
    }
    if (read_outcome(file, got_outcome)) {
      ++understood;
      for (const std::byte byte : got_outcome.code.bytes()) sum += static_cast<std::size_t>(byte);
    }
    CHECK(sum < 256u * 1'000'000);
  }
  CHECK(understood > 0);
}
