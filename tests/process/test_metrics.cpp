// SPDX-License-Identifier: Apache-2.0
// Figures for Prometheus of a real broker, read by an HTTP client and a parser that are not ours (check_metrics.py).
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>

#include "tests/process/client.hpp"
#include "tests/process/refused_start.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

// One that nobody had a moment ago. The socket that has found it stays bound where `holds` is given.
std::string free_port(int* holds = nullptr) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof name;
  if (bind(fd, reinterpret_cast<sockaddr*>(&name), length) != 0 || getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0) {
    throw std::runtime_error("no port is free");
  }
  if (holds == nullptr) {
    close(fd);
  } else {
    *holds = fd;
    if (listen(fd, 1) != 0) throw std::runtime_error("nothing listens");
  }
  return std::to_string(ntohs(name.sin_port));
}

Outcome check(const std::string& address, const std::string& name) {
  ProgramOptions options;
  options.arguments = {"-B", MPSSHIM_SOURCE_DIR "/tests/process/check_metrics.py", address, MPSSHIM_SOURCE_DIR "/docs/seeing.md", name};
  return run_program(MPSSHIM_PYTHON, options);
}

void require_works(Client& client, const BrokerFixture& broker) {
  const std::string answer = client.ask("storm 300");
  INFO(answer << broker.log());
  REQUIRE(answer.rfind("ok", 0) == 0);
}

}  // namespace

TEST_CASE("metrics: figures at a port, with a client whose name means harm") {
  const std::string address = "127.0.0.1:" + free_port();
  BrokerOptions options;
  options.arguments = {"--metrics", address};
  const BrokerFixture broker(options);
  const TemporaryFolder folder;
  const std::filesystem::path program = folder.path() / "a\",b'\\\n{}\x1b[31m\xff\xe2\x80\xae,c=\"1\"} 5";
  std::filesystem::copy_file(built_program("test_client"), program);
  Client client(broker, program);
  require_works(client, broker);
  const Outcome outcome = check(address, R"(a",b'\\x0a{}\x1b[31m\xff\xe2\x80\xae,c="1"} 5)");
  INFO(outcome.explain() << broker.log());
  CHECK(outcome.ok());
}

TEST_CASE("metrics: figures at a Unix socket, there still after a restart of the program, and gone with the broker") {
  const TemporaryFolder folder;
  const std::string address = folder.path() / "metrics.sock";
  {
    BrokerOptions options;
    options.arguments = {"--metrics", address};
    const BrokerFixture broker(options);
    Client client(broker);
    require_works(client, broker);
    for (int turn = 0; turn < 2; ++turn) {
      const Outcome outcome = check(address, "test_client");
      INFO(outcome.explain() << broker.log());
      REQUIRE(outcome.ok());
      REQUIRE(broker.ctl({"restart"}).ok());
    }
    REQUIRE(check(address, "test_client").ok());
    REQUIRE(broker.ctl({"quit", "--now"}).ok());
  }
  CHECK_FALSE(std::filesystem::exists(address));
}

TEST_CASE("metrics: a broker that cannot give them where it is told does not serve, and says why in one line") {
  int held = -1;
  const std::string taken = free_port(&held);
  const struct {
    std::string address;
    int status;
    const char* told;
  } cases[] = {{"0.0.0.0:9400", 2, "--metrics-for-others"}, {"nonsense", 2, "neither a port"}, {taken, 1, "Address already in use"}};
  for (const auto& tried : cases) {
    const Outcome outcome = try_to_begin({"--metrics", tried.address});
    INFO(tried.address << ": " << outcome.explain());
    CHECK(outcome.exit_code == tried.status);
    CHECK(outcome.errors.find(tried.told) != std::string::npos);
    CHECK(outcome.errors.find("mpsbroker: --metrics \"" + tried.address + "\"") != std::string::npos);
  }
  close(held);
}
