// SPDX-License-Identifier: Apache-2.0
// Requests to linker processes and their outcomes as memory files of sealed content (part_file.hpp). The readers trust nothing: requests are made of
// what clients say, and whoever writes an outcome has compiled a stranger's text, and may be his by now.
#pragma once

#include "broker/compiler/part_file.hpp"
#include "broker/linker/link_job.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

inline constexpr std::uint64_t kRequestMagic = 0x314b4e494c514552;
inline constexpr std::uint64_t kOutcomeMagic = 0x314b4e494c54554f;

// Invalid: there is no memory for it (errno).
[[nodiscard]] proto::FileDescriptor write_request(const LinkRequest& request);
[[nodiscard]] proto::FileDescriptor write_outcome(const LinkOutcome& outcome);

// False: it is not such a file. Its parts stay in the file's mapping.
[[nodiscard]] bool read_request(const ImageBytes& file, LinkRequest& request);
[[nodiscard]] inline bool read_request(const proto::FileDescriptor& file, LinkRequest& request) { return read_request(map_sealed(file), request); }
// Logs are texts without an end in them, of less than kLinkLogBytes; code is none, or at most kMaxLinkBytes.
[[nodiscard]] bool read_outcome(const ImageBytes& file, LinkOutcome& outcome);
[[nodiscard]] inline bool read_outcome(const proto::FileDescriptor& file, LinkOutcome& outcome) { return read_outcome(map_sealed(file), outcome); }

}  // namespace mpsshim::broker
