// SPDX-License-Identifier: Apache-2.0
// The constant table behind cuGetProcAddress, made from gen/proc_address.inc. Apart from proc_address.cpp because it must not see cuda.h: it
// needs the addresses of all exported functions and none of their types. Any thread, at any time, no lock.
#pragma once

namespace mpsshim::interposer {

using AnyFunction = void (*)();

struct ProcAddress {
  AnyFunction function;  // null: not found
  bool is_known;         // the name exists, if only in newer versions than the one asked for
};

[[nodiscard]] ProcAddress find_proc_address(const char* name, int cuda_version, bool per_thread);

}  // namespace mpsshim::interposer
