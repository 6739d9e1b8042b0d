// SPDX-License-Identifier: Apache-2.0
#include "broker/control/server/metrics_address.hpp"

#include <filesystem>
#include <fstream>

#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/catch.hpp"

using namespace mpsshim::broker::control;

TEST_CASE("metrics: addresses that are taken") {
  const struct {
    const char* text;
    std::uint16_t port;
    bool is_v6 = false;
  } cases[] = {{"9400", 9400}, {"localhost:1", 1}, {"127.0.0.1:65535", 65535}, {"127.8.9.10:80", 80}, {"[::1]:9400", 9400, true}};
  for (const auto& tried : cases) {
    INFO(tried.text);
    std::string why;
    const auto address = parse_metrics_address(tried.text, false, why);
    REQUIRE(address);
    CHECK(why.empty());
    CHECK(address->port == tried.port);
    CHECK(address->is_v6 == tried.is_v6);
    CHECK(address->path.empty());
    CHECK(address->is_loopback());
  }
  std::string why;
  const auto path = parse_metrics_address("/run/mpsshim/metrics.sock", false, why);
  REQUIRE(path);
  CHECK(path->path == "/run/mpsshim/metrics.sock");
  CHECK(path->is_loopback());
}

TEST_CASE("metrics: addresses that are refused, with the word and the remedy in one line") {
  const struct {
    std::string text;
    const char* told;
  } cases[] = {
      {"", "neither a port"},
      {"0", "neither a port"},
      {"65536", "neither a port"},
      {"-1", "neither a port"},
      {"9400x", "neither a port"},
      {":9400", "neither a port"},
      {"localhost:", "neither a port"},
      {"example.org:9400", "neither a port"},
      {"127.0.0.1", "neither a port"},
      {"127.1:9400", "neither a port"},
      {"::1:9400", "neither a port"},
      {"[::1]9400", "neither a port"},
      {"[127.0.0.1]:9400", "neither a port"},
      {"[::1%lo]:9400", "neither a port"},
      {"metrics.sock", "neither a port"},
      {"\x1b[31m", "\\x1b[31m"},
      {"./metrics.sock", "begins with a slash"},
      {"/" + std::string(108, 'a'), "at most 107 bytes"},
      {"0.0.0.0:9400", "--metrics-for-others"},
      {"192.168.1.1:9400", "--metrics-for-others"},
      {"[::]:9400", "--metrics-for-others"},
      {"[::ffff:127.0.0.1]:9400", "--metrics-for-others"},
  };
  for (const auto& tried : cases) {
    INFO(tried.text);
    std::string why;
    CHECK_FALSE(parse_metrics_address(tried.text, false, why));
    CHECK(why.starts_with("--metrics \""));
    CHECK(why.find(tried.told) != std::string::npos);
    CHECK(why.find('\n') == std::string::npos);
  }
  std::string why;
  const auto any = parse_metrics_address("0.0.0.0:9400", true, why);
  REQUIRE(any);
  CHECK_FALSE(any->is_loopback());
  CHECK_FALSE(parse_metrics_address("nonsense", true, why));
}

TEST_CASE("metrics: a Unix socket is its owner's, takes the place of one that was left behind, and of nothing else") {
  char folder[] = "/tmp/mpsshim-metrics-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/socket";
  std::string why;
  const auto address = parse_metrics_address(path, false, why);
  REQUIRE(address);
  {
    const auto first = listen_at(*address, why);
    REQUIRE(first.valid());
    struct stat facts {};
    REQUIRE(stat(path.c_str(), &facts) == 0);
    CHECK((facts.st_mode & 0777) == 0600);
    CHECK_FALSE(listen_at(*address, why).valid());
    CHECK(why.find("Address already in use") != std::string::npos);
  }
  CHECK(listen_at(*address, why).valid());
  std::filesystem::remove(path);
  std::ofstream(path) << "somebody's file";
  CHECK_FALSE(listen_at(*address, why).valid());
  CHECK(std::filesystem::file_size(path) == 15);
  std::filesystem::remove_all(folder);
}

TEST_CASE("metrics: a port that is taken is told") {
  std::string why;
  std::optional<MetricsAddress> address;
  mpsshim::proto::FileDescriptor first;
  for (unsigned port = 29'400; port < 29'500 && !first.valid(); ++port) {
    address = parse_metrics_address(std::to_string(port), false, why);
    REQUIRE(address);
    first = listen_at(*address, why);
  }
  REQUIRE(first.valid());
  CHECK_FALSE(listen_at(*address, why).valid());
  CHECK(why.find("Address already in use") != std::string::npos);
}
