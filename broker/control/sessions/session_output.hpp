// SPDX-License-Identifier: Apache-2.0
// Text of kernels, on its way from the executor that has it to the client that it is for. It waits in the session's OutputBox.
// The control process's thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "broker/control/sessions/session_table.hpp"
#include "broker/control_messages.hpp"
#include "proto/client_requests.hpp"

namespace mpsshim::broker::control {

// An executor says where it has such text.
void note_output(SessionTable& sessions, const ManagedExecutor& executor, const message::Printed& part);
// The words of failed assertions. The file is sealed, or nothing of it is read.
[[nodiscard]] std::string read_words(const proto::FileDescriptor& file, std::uint64_t size_bytes);
void add_output(ClientSession& session, std::uint32_t stream, std::string_view text);
void take_output(ClientSession& session, proto::OutputTaken& message);  // by the client

}  // namespace mpsshim::broker::control
