// SPDX-License-Identifier: Apache-2.0
// A client's linker (cuLink*): the driver's state, the logs it writes, the input that is on its way, the result. Inputs are the client's
// bytes as they came; the driver's linker is what checks them, as it does for images. It waits for no kernel, so helpers may run it.
//
// The table belongs to the session's worker. A state is used by helpers, one at a time under its mutex, and ends with its last holder.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "broker/driver/driver.hpp"
#include "proto/handle_table.hpp"
#include "proto/ids.hpp"

namespace mpsshim::broker {

inline constexpr std::size_t kMaxLinkBytes = 256u << 20;  // of inputs on their way in a session, and of a result
inline constexpr std::size_t kMaxLinks = 64;              // of a session
inline constexpr std::size_t kLinkLogBytes = 7 * 1024;    // both logs fit into a reply

struct JitOption {
  CUjit_option option{};
  std::uint32_t value = 0;
};

// Those that are a number; the others are addresses of the client's.
[[nodiscard]] bool is_plain_option(std::uint32_t option);

class LinkState {
 public:
  explicit LinkState(const Driver& driver) : driver_(driver) {}
  LinkState(const LinkState&) = delete;
  ~LinkState();

  [[nodiscard]] CUresult create(const std::vector<JitOption>& options);
  [[nodiscard]] CUresult add(CUjitInputType type, std::vector<std::byte> data, const std::string& name, const std::vector<JitOption>& options);
  [[nodiscard]] CUresult complete(std::vector<std::byte>& linked);

  struct Logs {
    std::string error;
    std::string info;
  };
  [[nodiscard]] Logs logs();

 private:
  const Driver& driver_;
  std::mutex mutex_;
  CUlinkState state_ = nullptr;
  std::array<char, kLinkLogBytes> error_log_{};
  std::array<char, kLinkLogBytes> info_log_{};
  std::vector<CUjit_option> options_;  // the driver writes the logs' sizes here until the state ends
  std::vector<void*> values_;
};

struct SessionLink {
  std::shared_ptr<LinkState> state;
  std::vector<std::byte> input;  // so far
  bool is_too_long = false;
  std::vector<std::byte> result;
};

using LinkTable = proto::HandleTable<proto::HandleKind::link_state, SessionLink>;

}  // namespace mpsshim::broker
