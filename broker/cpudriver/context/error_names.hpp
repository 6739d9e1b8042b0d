// SPDX-License-Identifier: Apache-2.0
//
// Names and texts of CUresult, by number, so that errors newer than the toolkit this is built with are known, too.
#pragma once

namespace mpsshim::cpudriver {

// Null: no such error.
const char* error_name(int error);
const char* error_text(int error);

}  // namespace mpsshim::cpudriver
