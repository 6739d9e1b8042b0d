// SPDX-License-Identifier: Apache-2.0
// What an executor tells of a session's module with variables (broker/kept_variables.hpp).
#pragma once

#include <cstring>
#include <string>

#include <unistd.h>

#include "broker/kept_variables.hpp"
#include "tests/unit/control/support/control_fixture.hpp"

namespace mpsshim::broker::control::testing {

// The client's content as an image that `executor` has loaded, as the copy of that number.
inline std::uint64_t load_copy(TestClient& client, ExecutorPeer& executor, const std::string& content, std::uint64_t copy) {
  proto::ImageOpen open;
  open.size_bytes = content.size();
  const auto opened = client.ask<proto::ImageOpened>(open);
  REQUIRE(pwrite(client.fds.fds[0].get(), content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
  proto::ImageSeal seal;
  seal.image = opened.image;
  const std::uint64_t image = client.ask<proto::Done>(seal).image;
  executor.send(message::ModuleNote{.object = image, .copy = copy, .kind = LogKind::load, .flags = kLoadHasVariables});
  return image;
}

// One variable of that copy is the session's.
inline void keep_variables(EventLoop& loop, ExecutorPeer& executor, const ClientSession& session, std::uint64_t image, std::uint64_t copy) {
  const proto::FileDescriptor file = proto::create_memory_file("test-variables", sizeof(KeptVariablesFile));
  REQUIRE(proto::seal(file, proto::Seal::size));
  const auto mapping = proto::Mapping::map(file, 0, sizeof(KeptVariablesFile), proto::Access::read_write);
  auto& kept = *reinterpret_cast<KeptVariablesFile*>(mapping.data());
  kept.layout = kKeptLayout;
  kept.variable[0] = {1, image, copy, 0x1000, 4, 0};
  kept.count = 1;
  executor.send({message::VariablesFile{.session = session.id}, {.variables = file.get()}});
  REQUIRE(turn_until(loop, [&] { return session.variables.valid(); }));
}

}  // namespace mpsshim::broker::control::testing
