// SPDX-License-Identifier: Apache-2.0
// The directories of groups that operators have made: who comes in by one is of its group, and of no other.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/process/share.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> by(const BrokerFixture& broker, const std::string& group) {
  return {{"CUDA_MPS_PIPE_DIRECTORY", (broker.pipe_dir() / group).string()}};
}

std::string group_of(const BrokerFixture& broker, Client& client) {
  return broker.ctl({"client", "get", std::to_string(client.program().pid()), "maws-ns"}).output;
}

fs::path socket_of(const BrokerFixture& broker, const std::string& group) { return broker.pipe_dir() / group / "mpsshim.sock"; }

Outcome ask_in(const fs::path& directory, const std::vector<std::string>& words) {
  ProgramOptions options;
  options.arguments = {"--pipe-dir", directory.string()};
  options.arguments.insert(options.arguments.end(), words.begin(), words.end());
  return run_program(built_program("mpsctl"), options);
}

unsigned mode_of(const fs::path& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? status.st_mode & 0777 : 0;
}

}  // namespace

TEST_CASE("who comes in by a group's directory is of that group, whatever it says, over a restart, until the group is deleted") {
  const BrokerFixture broker;
  REQUIRE(broker.ctl({"namespace", "create", "batch"}).ok());
  REQUIRE(broker.ctl({"namespace", "set", "batch", "--pinned-memory-limit", "64M"}).ok());
  CHECK(mode_of(socket_of(broker, "batch").parent_path()) == 0700);
  std::map<std::string, std::string> environment = by(broker, "batch");
  environment["MPSSHIM_GROUP"] = "other";
  {
    Client inside = start_with(broker, "memory_client", environment);
    Client outside = start_with(broker, "memory_client");
    CHECK(group_of(broker, inside) == "batch\n");
    CHECK(group_of(broker, outside) == "default\n");
    CHECK(inside.ask("total") == "ok 64");
    CHECK(broker.ctl({"namespace", "list"}).output.find("other") == std::string::npos);
    const Outcome asked = ask_in(broker.pipe_dir() / "batch", {"ps"});
    CHECK(asked.exit_code == 2);
    CHECK(asked.errors.find("and no commands: it is group batch's, so name the broker's own, " + broker.pipe_dir().string() + ", with --pipe-dir") !=
          std::string::npos);
    REQUIRE(broker.ctl({"restart"}).ok());
    CHECK(inside.ask("take 80") == "2 CUDA_ERROR_OUT_OF_MEMORY");
    Client late = start_with(broker, "memory_client", by(broker, "batch"));
    CHECK(group_of(broker, inside) == "batch\n");
    CHECK(group_of(broker, late) == "batch\n");
    CHECK(late.ask("total") == "ok 64");
    CHECK_FALSE(broker.ctl({"namespace", "delete", "batch"}).ok());
    CHECK(fs::exists(socket_of(broker, "batch")));
  }
  REQUIRE(eventually(std::chrono::seconds(10), [&] { return broker.ctl({"namespace", "delete", "batch"}).ok(); }));
  CHECK_FALSE(fs::exists(broker.pipe_dir() / "batch"));
}

TEST_CASE("a group of a client's alone has no directory, one whose place is taken is told of, and the broker's end leaves none") {
  BrokerFixture broker;
  Client client = start_with(broker, "memory_client", {{"MPSSHIM_GROUP", "own"}});
  CHECK(group_of(broker, client) == "own\n");
  CHECK_FALSE(fs::exists(broker.pipe_dir() / "own"));
  std::ofstream(broker.pipe_dir() / "taken") << "something else\n";
  REQUIRE(broker.ctl({"namespace", "create", "taken"}).ok());
  CHECK(broker.log().find("Namespace taken has no directory of its own") != std::string::npos);
  Client other = start_with(broker, "memory_client", {{"MPSSHIM_GROUP", "taken"}});
  CHECK(group_of(broker, other) == "taken\n");
  REQUIRE(broker.ctl({"namespace", "create", "batch"}).ok());
  CHECK(fs::exists(socket_of(broker, "batch")));
  REQUIRE(broker.ctl({"namespace", "create", "odd_"}).ok());
  const Outcome device = ask_in(broker.pipe_dir() / "odd_", {"cdi", "--output", "-"});
  CHECK(device.exit_code == 1);
  CHECK(device.output.empty());
  CHECK(device.errors ==
        "mpsctl: a container's device cannot be called odd_, as the group is: its name has to begin and end with a letter or a digit\n");
  REQUIRE(broker.ctl({"quit", "--now"}).ok());
  CHECK_FALSE(fs::exists(broker.pipe_dir() / "batch"));
  CHECK(fs::is_regular_file(broker.pipe_dir() / "taken"));
}

TEST_CASE("groups of a file of settings have directories, open to those whom the broker serves") {
  BrokerOptions options;
  options.arguments = {"--multiuser-server"};
  const fs::path file = fs::temp_directory_path() / ("mpsshim-groups." + std::to_string(getpid()) + ".toml");
  std::ofstream(file) << "[servers.a.namespaces.batch]\npinned_memory_limit = \"64M\"\n";
  options.arguments.insert(options.arguments.end(), {"-a", file.string()});
  const BrokerFixture broker(options);
  fs::remove(file);
  if (broker.log().find("toml++") != std::string::npos) MPSSHIM_SKIP("built without toml++");
  REQUIRE(eventually(std::chrono::seconds(10), [&] { return fs::exists(socket_of(broker, "batch")); }));
  CHECK(mode_of(socket_of(broker, "batch").parent_path()) == 0755);
  CHECK(mode_of(socket_of(broker, "batch")) == 0666);
  Client client = start_with(broker, "memory_client", by(broker, "batch"));
  CHECK(group_of(broker, client) == "batch\n");
  CHECK(client.ask("total") == "ok 64");
}
