// SPDX-License-Identifier: Apache-2.0
// Damaged images, and device pointers that are not the client's own: an error for that call, and nothing else for anybody.
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

// Of "CALL=RESULT CALL=RESULT ...", those that are not as wanted.
std::string other_than(const std::string& wanted, const std::string& answer) {
  std::istringstream words(answer);
  std::string others;
  for (std::string word; words >> word;) {
    if (word.substr(word.find('=') + 1) != wanted) others += word + " ";
  }
  return others;
}

std::string address_of(Client& client) {
  const std::string answer = client.ask("address");
  REQUIRE(answer.rfind("ok ", 0) == 0);
  return answer.substr(3);
}

std::string plus(const std::string& address, unsigned long long bytes) {
  std::ostringstream text;
  text << std::hex << std::stoull(address, nullptr, 16) + bytes;
  return text.str();
}

}  // namespace

TEST_CASE("damaged images give an error that says what they are") {
  // The CPU driver runs no machine code, damaged or not.
  const std::string damaged_cubin = on_gpu() ? "200 CUDA_ERROR_INVALID_IMAGE" : "209 CUDA_ERROR_NO_BINARY_FOR_GPU";
  const std::vector<std::pair<std::string, std::string>> images = {
      {"empty", "200 CUDA_ERROR_INVALID_IMAGE"},
      {"garbage", "200 CUDA_ERROR_INVALID_IMAGE"},
      {"words", "200 CUDA_ERROR_INVALID_IMAGE"},
      {"ptx_cut", "218 CUDA_ERROR_INVALID_PTX"},
      {"ptx_syntax", "218 CUDA_ERROR_INVALID_PTX"},
      {"ptx_opcode", "218 CUDA_ERROR_INVALID_PTX"},
      {"ptx_register", "218 CUDA_ERROR_INVALID_PTX"},
      {"ptx_version", "222 CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
      {"fatbin_header_alone", "200 CUDA_ERROR_INVALID_IMAGE"},
      {"fatbin_cut", "218 CUDA_ERROR_INVALID_PTX"},  // the container is whole, the text in it ends early
      {"fatbin_entry_too_long", "200 CUDA_ERROR_INVALID_IMAGE"},
      {"fatbin_lz4_without", "200 CUDA_ERROR_INVALID_IMAGE"},
      {"cubin_header_alone", "209 CUDA_ERROR_NO_BINARY_FOR_GPU"},  // no section names an architecture
      {"cubin_other_machine", damaged_cubin},
  };
  const BrokerFixture broker;
  Client other(broker), client(broker);
  REQUIRE(other.ask("hold") == "ok");
  const pid_t executor = broker.servers().at(0);
  std::string differences;
  for (const auto& [name, error] : images) {
    const std::string answer = client.ask("image " + name);
    if (answer.rfind(error, 0) != 0) differences += name + ": " + answer + "\n";
    // The client goes on, with the same image whole.
    REQUIRE(client.ask("image good_ptx") == "ok");
  }
  INFO(broker.log());
  CHECK(differences == "");
  REQUIRE(client.ask("image good_fatbin") == "ok");
  REQUIRE(client.ask("hold") == "ok");
  REQUIRE(other.ask("use") == "ok");
  REQUIRE(broker.servers() == std::vector<pid_t>{executor});  // nobody noticed
}

TEST_CASE("copies and memsets outside a client's own memory are refused") {
  const BrokerFixture broker;
  Client owner(broker), client(broker);
  REQUIRE(owner.ask("hold") == "ok");
  const std::string foreign = address_of(owner);
  const std::string own = address_of(client);
  const pid_t executor = broker.servers().at(0);
  const std::vector<std::pair<std::string, std::string>> addresses = {
      {"another client's", foreign},
      {"NULL", "0"},
      {"a wild one", "700000000000"},
      {"one without any meaning", "ffffffffffff0000"},
      {"across the end of its own", plus(own, (4u << 20) - 4)},
      {"behind the end of its own", plus(own, 4u << 20)},
      {"far behind its own, in its lease", plus(own, 1ull << 32)},
  };
  for (const auto& [name, address] : addresses) {
    const std::string answer = client.ask("foreign " + address);
    INFO(name << " (" << address << "): " << answer << "\n" << client.program().errors() << broker.log());
    REQUIRE(answer.find('=') != std::string::npos);
    REQUIRE(other_than("1", answer) == "");
  }
  REQUIRE(client.ask("own") == "ok");
  REQUIRE(client.ask("storm 50").rfind("ok ", 0) == 0);
  REQUIRE(owner.ask("own") == "ok");
  REQUIRE(owner.ask("check") == "ok");
  REQUIRE(owner.ask("use") == "ok");
  REQUIRE(broker.servers() == std::vector<pid_t>{executor});
}
