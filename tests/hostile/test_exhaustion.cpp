// SPDX-License-Identifier: Apache-2.0
// Descriptors, memory, ids and threads: one client gets so much, the others go on, and all of it comes back.
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/hostile/scene.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

std::string exhaust(const std::string& command, const std::vector<std::string>& arguments = {}, const Scene::Kept& kept = {},
                    const std::string& rehearsal = "") {
  Scene scene(arguments, rehearsal);
  Client hostile = scene.hostile();
  std::string answer = scene.attack(hostile, command);
  INFO(command << ": " << answer);
  // While it still holds what it got: newcomers are served, and what the bystander asks for now.
  scene.require_newcomer_served();
  const std::string pinned = scene.bystander().ask("pin");
  INFO(pinned << "\n" << scene.broker().log());
  CHECK(pinned == "ok");
  scene.end(hostile);
  scene.require_all_back(command, kept);
  return answer;
}

}  // namespace

TEST_CASE("segments without end") {
  const std::string answer = exhaust("segments 4096");
  CHECK(answer != "ok 0");
}

TEST_CASE("segments that promise more memory than there is") { CHECK(exhaust("segments 1073741824", {"--client-host-mib", "4096"}) == "ok 4"); }

TEST_CASE("images without end") {
  const std::string answer = exhaust("images 1048576", {"--client-host-mib", "64"});
  CHECK(answer == "ok 64");
}

// An unloaded module is kept for whoever loads it next, up to --module-cache (a small module counts 64 KiB), and its image stays in the load
// log for a while (kMaxUndoneImages).
// A GPU's driver compiles: beside each image lies what was made of it.
const int kModulesKept = (on_gpu() ? 2 : 1) * (256 + 16) + 8;
TEST_CASE("modules loaded and unloaded without end") { exhaust("modules 700", {"--module-cache", "1"}, {kModulesKept, 4 << 20}); }

// A GPU's driver keeps what it needed for the most objects that there ever were at once: the second time must cost no more.
TEST_CASE("streams and events without end") { exhaust("objects", {}, {}, on_gpu() ? "objects" : ""); }

TEST_CASE("all streams that there are: newcomers get theirs") { exhaust("streams 4", {}, {}, on_gpu() ? "streams 4" : ""); }

TEST_CASE("ranges of addresses without end") {
  if (on_gpu()) MPSSHIM_SKIP("it depends on the device's memory how many ranges there are");
  setenv("MPSSHIM_CPU_MEMORY_MIB", "12288", 1);  // larger than a first range in this window, so that there are others
  const std::string answer = exhaust("leases", {"--window", "0x200000000000-0x230000000000"});
  unsetenv("MPSSHIM_CPU_MEMORY_MIB");
  CHECK(answer == "ok 32");
}

TEST_CASE("calls that wait for what never comes hold up their own client") { exhaust("waits 600"); }

TEST_CASE("look-ups that each need a moment of quiet") { exhaust("lookups 2000", {}, {2, 0}); }

TEST_CASE("all of the device's memory: what others have stays theirs") {
  if (on_gpu()) MPSSHIM_SKIP("a GPU cannot be filled beside other tests");
  setenv("MPSSHIM_CPU_MEMORY_MIB", "1024", 1);
  Scene scene;
  unsetenv("MPSSHIM_CPU_MEMORY_MIB");
  Client hostile = scene.hostile();
  const std::string answer = scene.attack(hostile, "chunks 2097152");
  INFO(answer);
  CHECK(answer != "ok 0");
  scene.end(hostile);
  REQUIRE(scene.broker().wait_for_clients(1));
  scene.require_newcomer_served();
  scene.require_all_back("chunks");
}
