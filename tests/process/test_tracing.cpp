// SPDX-License-Identifier: Apache-2.0
// MPSSHIM_TRACE: a timeline of client and executor that is JSON and holds what happened; nothing at all without it. What mpsctl trace makes of the
// files of several processes is read by a parser that is not ours (check_trace.py).
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
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

Outcome put_together(const BrokerFixture& broker, const std::string& file, const fs::path& document) {
  return broker.ctl({"trace", file, "--output", document});
}

Outcome check_document(const fs::path& document, std::vector<std::string> options = {}) {
  ProgramOptions checker;
  checker.arguments = {"-B", MPSSHIM_SOURCE_DIR "/tests/process/check_trace.py", document};
  checker.arguments.insert(checker.arguments.end(), options.begin(), options.end());
  return run_program(MPSSHIM_PYTHON, checker, std::chrono::seconds(60));
}

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
    const fs::path document = folder.path() / "all.json";
    const Outcome written = put_together(broker, file, document);
    INFO(written.explain());
    REQUIRE(written.ok());
    CHECK(written.errors == "");
    const Outcome checked = check_document(document, {"--whole"});
    INFO(checked.explain());
    CHECK(checked.ok());
    REQUIRE(fs::remove(document));
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

TEST_CASE("of processes that are killed mpsctl trace makes a document for strict parsers, without the lines that are not whole") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "trace";
  ::setenv("MPSSHIM_TRACE", file.c_str(), 1);
  BrokerFixture broker;
  ::unsetenv("MPSSHIM_TRACE");
  ProgramOptions options;
  options.environment["MPSSHIM_TRACE"] = file;
  options.arguments = {"--seconds", "60"};
  Program client = broker.start("random_order", options);
  const auto is_long = [&](const fs::path& each) { return fs::file_size(each) > 200'000; };
  REQUIRE(eventually(std::chrono::seconds(30), [&] {
    const std::vector<fs::path> files = files_in(folder.path());
    return std::ranges::count_if(files, is_long) == 2;
  }));
  client.send(9);
  broker.process().send(9);  // its executors end with it
  client.wait();
  broker.process().wait();
  for (const fs::path& each : files_in(folder.path())) {
    if (!is_long(each)) continue;
    fs::resize_file(each, text_of(each).rfind('\n') - 5);  // as a kill in the middle of a write leaves it
    std::ofstream(each, std::ios::app | std::ios::binary) << "\n{\"name\":\"a hole{\"name\":\"b\",\"ph\":\"i\"},\n";
  }
  const fs::path document = folder.path() / "all.json";
  const Outcome written = put_together(broker, file, document);
  INFO(written.explain());
  REQUIRE(written.ok());
  CHECK(written.errors.find("mpsctl: 4 lines were no events") == 0);
  const Outcome checked = check_document(document);
  INFO(checked.explain());
  CHECK(checked.ok());
  CHECK(check_document(document, {"--whole"}).exit_code != 0);  // arrows whose heads nobody has written
}

TEST_CASE("arrows of records that an executor has not read lead on to the next one") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "trace";
  ::setenv("MPSSHIM_TRACE", file.c_str(), 1);
  BrokerFixture broker;
  ::unsetenv("MPSSHIM_TRACE");
  ProgramOptions options;
  options.environment["MPSSHIM_TRACE"] = file;
  options.arguments = {"--seconds", "3", "--threads", "4"};
  Program client = broker.start("random_order", options);
  for (int round = 0; round < 4; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    const Outcome restarted = broker.ctl({"restart", "executors"});
    INFO(restarted.explain());
    REQUIRE(restarted.ok());
  }
  const Outcome outcome = client.wait();
  INFO(outcome.explain() << broker.log());
  REQUIRE(outcome.ok());
  REQUIRE(broker.wait_for_clients(0));
  REQUIRE(broker.ctl({"quit"}).ok());
  REQUIRE(broker.process().wait().ok());
  const fs::path document = folder.path() / "all.json";
  REQUIRE(put_together(broker, file, document).ok());
  const Outcome checked = check_document(document, {"--moved"});
  INFO(checked.explain());
  CHECK(checked.ok());
}

TEST_CASE("mpsctl trace without a timeline says what it looked for") {
  const TemporaryFolder folder;
  const BrokerFixture broker;
  std::ofstream(folder.path() / "trace.12x") << "[\n";  // no pid
  const std::string file = folder.path() / "trace";
  const Outcome outcome = broker.ctl({"trace", file});
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.output == "");
  CHECK(outcome.errors == "mpsctl: there is no timeline " + file + ".PID: name what MPSSHIM_TRACE named\n");
  std::ofstream(file + ".12") << "[\n{\"name\":\"x\",\"ph\":\"M\"},\n";
  const Outcome shown = broker.ctl({"trace", file});
  INFO(shown.explain());
  CHECK(shown.output ==
        "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{\"name\":\"x\",\"ph\":\"M\"}\n],\"otherData\":{\"timelines\":1,\"lines_left_out\":0}}\n");
  const Outcome nowhere = broker.ctl({"trace", file, "--output", folder.path() / "no/folder"});
  CHECK(nowhere.exit_code == 1);
  CHECK(nowhere.errors.find("no/folder cannot be made: No such file or directory") != std::string::npos);
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
