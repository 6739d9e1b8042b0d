// SPDX-License-Identifier: Apache-2.0
// MPSSHIM_TRACE: a timeline of client and executor that is JSON and holds what happened; nothing at all without it.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;
namespace fs = std::filesystem;

namespace {

std::string text_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}

// A JSON value of the few kinds that occur, read strictly; the array may lack its end, as the format allows.
class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  // Events in the array; -1: this is not JSON.
  int events() {
    if (!take('[')) return -1;
    int count = 0;
    for (skip(); at_ < text_.size(); skip()) {
      if (!object()) return -1;
      ++count;
      skip();
      if (at_ < text_.size() && !take(',')) return -1;
    }
    return count;
  }

 private:
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool take(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool string() {
    if (!take('"')) return false;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\\' || static_cast<unsigned char>(text_[at_]) < 0x20) return false;
      ++at_;
    }
    return take('"');
  }
  bool number() {
    skip();
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isdigit(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '.')) ++at_;
    return at_ > begin;
  }
  bool value() {
    skip();
    if (at_ >= text_.size()) return false;
    return text_[at_] == '{' ? object() : text_[at_] == '"' ? string() : number();
  }
  bool object() {
    if (!take('{')) return false;
    if (take('}')) return true;
    do {
      if (!string() || !take(':') || !value()) return false;
    } while (take(','));
    return take('}');
  }

  const std::string& text_;
  std::size_t at_ = 0;
};

}  // namespace

TEST_CASE("a traced client and executor write what they did, as JSON") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "trace";
  ::setenv("MPSSHIM_TRACE", file.c_str(), 1);  // the broker is started with this process's environment
  std::string client_pid;
  {
    BrokerFixture broker;
    ProgramOptions options;
    options.arguments = {"--operations", "500"};
    const Outcome outcome = broker.run("random_order", options);
    INFO(outcome.explain() << broker.log());
    REQUIRE(outcome.ok());
    REQUIRE(broker.wait_for_clients(0));
    REQUIRE(broker.ctl({"quit"}).ok());
    REQUIRE(broker.process().wait().ok());
  }
  ::unsetenv("MPSSHIM_TRACE");
  std::string client, executor;
  for (const fs::path& each : files_in(folder.path())) {
    const std::string text = text_of(each);
    INFO(each << " " << text.size() << " bytes, begins " << text.substr(0, 200));
    const bool is_executor = each.filename().string().find(".executor.") != std::string::npos;
    if (is_executor && text.find("\"records\"") == std::string::npos) {  // a standby, which has served nobody
      CHECK(Reader(text).events() >= 0);
      continue;
    }
    CHECK(Reader(text).events() > 50);
    (is_executor ? executor : client) = text;
  }
  for (const char* name : {"\"cuLaunchKernel\"", "\"cuMemcpyHtoDAsync_v2\"", "\"cuStreamSynchronize\"", "\"cat\":\"wait\"", "\"error\":0",
                           "\"process_name\"", "\"attached\""}) {
    INFO("client: " << name);
    CHECK(client.find(name) != std::string::npos);
  }
  for (const char* name :
       {"\"records\"", "\"cuGraphLaunch\"", "\"launches\":", "\"cuMemcpyAsync\"", "\"bytes\":", "\"quiet window\"", "\"worker-0\""}) {
    INFO("executor: " << name);
    CHECK(executor.find(name) != std::string::npos);
  }
}

TEST_CASE("a client that is killed leaves a readable timeline") {
  const TemporaryFolder folder;
  const BrokerFixture broker;
  ProgramOptions options;
  options.environment["MPSSHIM_TRACE"] = folder.path() / "trace";
  options.arguments = {"--seconds", "60"};
  Program client = broker.start("random_order", options);
  REQUIRE(
      eventually(std::chrono::seconds(30), [&] { return !files_in(folder.path()).empty() && fs::file_size(files_in(folder.path())[0]) > 200'000; }));
  client.send(9);
  client.wait();
  std::string text = text_of(files_in(folder.path())[0]);
  text.resize(text.rfind('\n') + 1);  // the kernel cuts the last write short where the signal comes in its middle
  CHECK(Reader(text).events() > 1000);
}

TEST_CASE("without MPSSHIM_TRACE there is no timeline") {
  const TemporaryFolder folder;
  const BrokerFixture broker;
  ProgramOptions options;
  options.environment["TMPDIR"] = folder.path();
  options.arguments = {"--operations", "100"};
  REQUIRE(broker.run("random_order", options).ok());
  CHECK(files_in(folder.path()).empty());
}
