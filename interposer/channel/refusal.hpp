// SPDX-License-Identifier: Apache-2.0
// What a user reads when a broker does not serve a process: one line on standard error with the broker, the reason as far as this side knows it,
// and the remedy. The CUDA runtime adds its own text for the same error (docs/what-users-see.md has both, for every case).
#pragma once

#include <string>

#include <sys/types.h>

#include "gen/cuda_api.hpp"

namespace mpsshim::interposer {

// Nobody listens at `path`, or this user may not ask there, by errno of connect(); a broker is required. `elsewhere`: where one answers that was not
// named, or "".
void tell_absence(const std::string& path, int error, const std::string& elsewhere);

// The same where none is required: only that there is one which is not used, for a directory that the program's user has named has none.
void tell_elsewhere(const std::string& path, const std::string& elsewhere);

// The broker at `path`, which runs as `owner`, has answered Hello with `status`.
void tell_refusal(const std::string& path, CUresult status, uid_t owner);

// The broker has answered Attach with `status`. The program may ask again; each status is told once.
void tell_no_session(CUresult status);

}  // namespace mpsshim::interposer
