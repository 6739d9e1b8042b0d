// SPDX-License-Identifier: Apache-2.0
// A session's variables with the control process's end of the executor's socket. Device memory is the test's.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "broker/executor/link/control_link.hpp"
#include "broker/executor/modules/session_variables.hpp"
#include "proto/socket.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/executor_messages.hpp"

namespace mpsshim::broker::variables_scene {

inline const auto kModule = proto::ModuleId::make(1, 1);
inline const auto kOther = proto::ModuleId::make(2, 1);

inline constexpr std::size_t kBatch = std::size_t{1} << 20;

struct Broker {
  proto::Socket control_end;
  std::unique_ptr<ControlLink> link;

  Broker() {
    auto [ours, its] = proto::Socket::pair();
    control_end = std::move(ours);
    link = std::make_unique<ControlLink>(std::move(its));
  }
  // The file that the control process got.
  proto::FileDescriptor file() {
    auto received = test::receive_message(control_end, proto::MessageDirection::from_executor);
    REQUIRE(received);
    REQUIRE(received->is<message::VariablesFile>());
    return std::move(received->take<message::VariablesFile>().fds.variables);
  }
};

inline ImageRef image_of(std::vector<LoadedImage::Variable> variables, std::uint64_t copy = 1) {
  auto image = std::make_shared<LoadedImage>();
  image->image = 7;
  image->copy = copy;
  image->has_writable_globals = true;
  image->variables = std::move(variables);
  image->changes = std::make_unique<VariableChanges>(image->variables.size());
  image->uses.are_known = true;
  return image;
}

// A kernel that may write to these of the image's variables.
struct Kernel : LoadedFunction {
  Kernel(const ImageRef& image, std::vector<std::uint32_t> written, bool leaves_addresses = false) {
    if (!written.empty()) variables.reset(new VariableChanges::Use{image->changes.get(), std::move(written), false, leaves_addresses});
  }
  explicit Kernel(const ImageRef& image) { variables.reset(new VariableChanges::Use{image->changes.get(), {}, true, false}); }
};

inline std::vector<std::byte> bytes(std::initializer_list<int> values) {
  std::vector<std::byte> result;
  for (const int value : values) result.push_back(static_cast<std::byte>(value));
  return result;
}

// What VariableKeeper does, the device's memory holding `content` at the first variable.
inline bool copy(SessionVariables& variables, const SessionVariables::Copies& copies, const std::vector<std::byte>& content) {
  std::vector<std::byte> buffer(kBatch);
  std::copy(content.begin(), content.end(), buffer.begin() + static_cast<std::ptrdiff_t>(copies.pieces.at(0).at));
  return variables.keep(copies, buffer);
}

inline std::optional<SessionVariables::Kept> next_life(const proto::FileDescriptor& file, proto::ModuleId module = kModule, std::uint64_t image = 7) {
  Broker broker;
  SessionVariables next(1, *broker.link);
  REQUIRE(next.adopt(file));
  return next.kept(module, image);
}

}  // namespace mpsshim::broker::variables_scene
