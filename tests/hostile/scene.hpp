// SPDX-License-Identifier: Apache-2.0
// A broker, a client that behaves and holds something of every kind, and room for one that does not.
//
//   Scene scene;
//   Client hostile = scene.hostile();
//   scene.attack(hostile, "flood 1000");   // meanwhile the bystander works, and is right in bounded time
//   scene.end(hostile);                    // killed
//   scene.require_all_back();              // the same executor, and the broker holds what it held before
//
// Used from one thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/process/client.hpp"

namespace mpsshim::test {

// Bytes that the broker's processes hold.
struct HeldMemory {
  long long anonymous = 0;  // private memory
  long long files = 0;      // memory files open or mapped there, each once
};
[[nodiscard]] HeldMemory memory_of(const std::vector<pid_t>& processes);

class Scene {
 public:
  using Environment = std::map<std::string, std::string>;
  // `rehearsal`: an attack that comes once before anything is counted. `environment`: of the broker.
  explicit Scene(const std::vector<std::string>& arguments = {}, const std::string& rehearsal = "", const Environment& environment = {});

  // A client that speaks the protocol by itself, not attached yet.
  [[nodiscard]] Client hostile() const;
  // Has it attack, and looks after the bystander again and again until its answer is there.
  std::string attack(Client& hostile, const std::string& command);
  // The bystander's data, its old objects and new work are right, within a limit.
  void require_unhurt(const std::string& during);
  // A client that comes now is served.
  void require_newcomer_served();
  void end(Client& client) const;
  // The executor is the one of the beginning; the bystander is right once more, then it is ended, and within moments nothing is left. The last
  // thing a test does. `kept`: descriptors and bytes of memory files that caches may have more.
  struct Kept {
    int descriptors = 0;
    long long bytes = 0;
  };
  void require_all_back(const std::string& after, const Kept& kept = {0, 0});

  [[nodiscard]] BrokerFixture& broker() { return broker_; }
  [[nodiscard]] Client& bystander() { return *bystander_; }

 private:
  [[nodiscard]] std::vector<pid_t> processes();

  BrokerFixture broker_;
  std::optional<Client> bystander_;
  std::vector<pid_t> servers_;
  Resources resources_;
  HeldMemory memory_;
};

}  // namespace mpsshim::test
