// SPDX-License-Identifier: Apache-2.0
// Who hands addresses to the driver. Its functions that take some (proto/spec/addresses.toml) can be called with a key alone, and the classes
// below are all that have one. So no handler can write a driver call with an address, a pitch, an offset or a size as a record brought it: what
// records name goes through CheckedMemory, which makes the types that CheckedCalls takes. Everybody else in the list has addresses that no
// record brings.
#pragma once

#include "gen/cuda_api.hpp"

namespace mpsshim::broker {

class AddressKey {
  // User-provided, so that `{}` makes none either.
  AddressKey() {}  // A handler calls a member of CheckedCalls instead. NOLINT(modernize-use-equals-default)

  friend class CheckedCalls;       // what records name, as CheckedMemory has made it
  friend class OwnWord;            // progress and fence words
  friend class MemoryMap;          // leases and chunks
  friend class ApplicationMemory;  // mappings in ranges that MemoryMap has given to the client
  friend class ExternalMemory;     // descriptors that the control process has looked at; the ends of what the driver has mapped of them
  friend class OwnMemory;          // host memory that the executor has mapped
  friend class ModuleVariables;    // images, and variables where the driver found them
  friend class VariableKeeper;     // the same, into its own buffer
  friend class OwnKernels;         // the executor's own image
  friend class AssertionCalls;     // the same, and texts wherever kernels say that they are
  friend class DriverLink;         // images, as inputs of the linker
};

template <typename Function>
class AddressCall;

template <typename... Parameters>
class AddressCall<CUresult(CUDAAPI*)(Parameters...)> {
 public:
  CUresult operator()(AddressKey, Parameters... parameters) const { return function_(parameters...); }

 private:
  CUresult(CUDAAPI* function_)(Parameters...) = nullptr;
};

// A function with addresses that the executor has no use for.
class WithheldCall {
 public:
  template <typename... Arguments>
  CUresult operator()(Arguments...) const = delete;  // say what must hold of its addresses: proto/spec/addresses.toml

 private:
  [[maybe_unused]] void* function_ = nullptr;
};

}  // namespace mpsshim::broker
