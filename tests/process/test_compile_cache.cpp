// SPDX-License-Identifier: Apache-2.0
// nvrtc as a client's program uses it: what one process has compiled the next one finds, and nobody finds anything else than it would compile.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <unistd.h>

#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

using Words = std::vector<std::string>;

// A broker, and a folder for its clients' compile cache.
class Compiler {
 public:
  [[nodiscard]] ProgramOptions options(const std::string& name, const Words& compiler_options) const {
    ProgramOptions options;
    options.arguments = {name};
    options.arguments.insert(options.arguments.end(), compiler_options.begin(), compiler_options.end());
    options.environment = {{"CUDA_CACHE_PATH", folder_.path() / "cache"}, {"MPSSHIM_DEBUG", "cache"}};
    options.without = {"CUDA_CACHE_DISABLE", "CUDA_CACHE_MAXSIZE"};
    return options;
  }
  [[nodiscard]] Outcome compile(const std::string& name, const Words& compiler_options) const { return run(options(name, compiler_options)); }
  [[nodiscard]] Outcome run(const ProgramOptions& options) const { return broker_.run("nvrtc_client", options); }
  [[nodiscard]] Program start(const std::string& name, const Words& compiler_options) const {
    return broker_.start("nvrtc_client", options(name, compiler_options));
  }

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_.path(); }
  [[nodiscard]] std::vector<std::filesystem::path> entries() const {
    std::vector<std::filesystem::path> found;
    if (!std::filesystem::exists(folder())) return found;
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder())) {
      if (file.path().filename().string().size() == 64) found.push_back(file.path());
    }
    return found;
  }

 private:
  TemporaryFolder folder_;
  BrokerFixture broker_;
};

std::size_t count(const Outcome& outcome, const std::string& words) {
  std::size_t times = 0;
  for (std::size_t at = outcome.errors.find(words); at != std::string::npos; at = outcome.errors.find(words, at + 1)) ++times;
  return times;
}
std::size_t hits(const Outcome& outcome) { return count(outcome, " gives entry "); }
std::size_t taken(const Outcome& outcome) { return count(outcome, " takes entry "); }

const Words kMachineCode = {"-arch=sm_90"};
const Words kPtx = {"-arch=compute_80"};

}  // namespace

TEST_CASE("what one process has compiled, the next one finds") {
  const Compiler compiler;
  const Outcome first = compiler.compile("kernel", kMachineCode);
  INFO(first.explain());
  REQUIRE(first.ok());
  CHECK(hits(first) == 0);
  CHECK(taken(first) == 2);
  CHECK(first.output.find("machine code of") != std::string::npos);
  for (int i = 0; i < 2; ++i) {
    const Outcome again = compiler.compile("kernel", kMachineCode);
    INFO(again.explain());
    REQUIRE(again.ok());
    CHECK(hits(again) == 2);
    CHECK(taken(again) == 0);
    CHECK(again.output == first.output);
  }
  const Outcome other = compiler.compile("other", kMachineCode);
  CHECK(hits(other) == 0);
  CHECK(other.output != first.output);
}

TEST_CASE("PTX from the cache runs as the compiler's own") {
  const Compiler compiler;
  for (const std::size_t wanted_hits : {0u, 1u}) {
    const Outcome outcome = compiler.compile("kernel", kPtx);
    INFO(outcome.explain());
    REQUIRE(outcome.ok());
    CHECK(outcome.output.find("result right") != std::string::npos);
    CHECK(hits(outcome) == wanted_hits);
  }
}

TEST_CASE("each set of options has its own machine code, with the cache as without") {
  const Compiler compiler;
  const std::vector<Words> sets = {{},     {"-ftz=true"}, {"-prec-div=false"}, {"-prec-sqrt=false"},    {"-fmad=false"}, {"--use_fast_math"},
                                   {"-G"}, {"-lineinfo"}, {"-rdc=true"},       {"--ptxas-options=-O1"}, {"-DUNUSED"},    {"-maxrregcount=32"}};
  std::vector<std::string> wanted;
  for (const Words& set : sets) {
    Words options = kMachineCode;
    options.insert(options.end(), set.begin(), set.end());
    options.push_back("--no-cache");
    const Outcome compiled = compiler.compile("kernel", options);
    INFO(compiled.explain());
    REQUIRE(compiled.ok());
    CHECK(hits(compiled) + taken(compiled) == 0);
    wanted.push_back(compiled.output);
  }
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < sets.size(); ++i) {
      Words options = kMachineCode;
      options.insert(options.end(), sets[i].begin(), sets[i].end());
      const Outcome cached = compiler.compile("kernel", options);
      INFO((sets[i].empty() ? "no option" : sets[i].front()) << ", round " << round << '\n'
                                                             << cached.explain() << "without the cache:\n"
                                                             << wanted[i]);
      CHECK(cached.output == wanted[i]);
      if (round == 1) CHECK(hits(cached) == 2);
    }
  }
}

TEST_CASE("a source that does not compile is refused every time") {
  const Compiler compiler;
  for (int i = 0; i < 2; ++i) {
    const Outcome outcome = compiler.compile("mistaken", kMachineCode);
    INFO(outcome.explain());
    REQUIRE(outcome.ok());
    CHECK(outcome.output == "refused\n");
  }
  CHECK(compiler.entries().empty());
}

TEST_CASE("damaged entries are compiled anew") {
  const Compiler compiler;
  const Outcome first = compiler.compile("kernel", kMachineCode);
  REQUIRE(first.ok());
  const auto entries = compiler.entries();
  REQUIRE(entries.size() == 2);
  for (const auto& entry : entries) std::filesystem::resize_file(entry, std::filesystem::file_size(entry) / 2);
  const Outcome second = compiler.compile("kernel", kMachineCode);
  INFO(second.explain());
  CHECK(second.output == first.output);
  CHECK(hits(second) == 0);
  CHECK(taken(second) == 2);
  for (const auto& entry : entries) std::filesystem::resize_file(entry, 0);
  CHECK(compiler.compile("kernel", kMachineCode).output == first.output);
  CHECK(hits(compiler.compile("kernel", kMachineCode)) == 2);
}

TEST_CASE("without a place for the cache a program compiles as before") {
  const Compiler compiler;
  const Outcome cached = compiler.compile("kernel", kMachineCode);
  ProgramOptions options = compiler.options("kernel", kMachineCode);
  SECTION("CUDA_CACHE_DISABLE") { options.environment["CUDA_CACHE_DISABLE"] = "1"; }
  SECTION("a folder that cannot be made") { options.environment["CUDA_CACHE_PATH"] = "/proc/nothing"; }
  SECTION("no size") {
    options.environment["CUDA_CACHE_MAXSIZE"] = "0";
    options.environment["CUDA_CACHE_PATH"] = compiler.folder() / "empty";
  }
  const Outcome outcome = compiler.run(options);
  INFO(outcome.explain());
  REQUIRE(outcome.ok());
  CHECK(outcome.output == cached.output);
  CHECK(hits(outcome) + taken(outcome) == 0);
}

TEST_CASE("by default the cache lies in ~/.nv, in a folder of its own") {
  const Compiler compiler;
  ProgramOptions options = compiler.options("kernel", kMachineCode);
  options.environment.erase("CUDA_CACHE_PATH");
  options.without.push_back("CUDA_CACHE_PATH");
  options.environment["HOME"] = compiler.folder();
  REQUIRE(compiler.run(options).ok());
  const Outcome again = compiler.run(options);
  INFO(again.explain());
  CHECK(hits(again) == 2);
  for (const auto& entry : compiler.entries()) {
    CHECK(entry.parent_path() == compiler.folder() / ".nv" / ("mpsshim-" + std::to_string(geteuid())));
  }
  CHECK(compiler.entries().size() == 2);
}

TEST_CASE("processes that compile the same at once get the same") {
  const Compiler compiler;
  std::vector<Program> programs;
  for (int i = 0; i < 6; ++i) programs.push_back(compiler.start("kernel", kMachineCode));
  const std::string wanted = programs.front().wait().output;
  CHECK(wanted.find("machine code of") != std::string::npos);
  for (Program& program : programs) {
    const Outcome& outcome = program.wait();
    INFO(outcome.explain());
    CHECK(outcome.ok());
    CHECK(outcome.output == wanted);
  }
  CHECK(compiler.entries().size() == 2);
}
