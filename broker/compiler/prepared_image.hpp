// SPDX-License-Identifier: Apache-2.0
// What a module load takes, as the compiler process makes it of an image: the bytes for the driver, or what its linker is to make them of, and
// all that the executor wants to know about them.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>

#include "broker/compiler/image_bytes.hpp"
#include "proto/image/assertions.hpp"
#include "proto/image/cubin.hpp"
#include "proto/image/managed.hpp"
#include "proto/image/variable_uses.hpp"

namespace mpsshim::broker {

struct LinkInput {
  CUjitInputType type{};
  ImageBytes bytes;  // a text ends with a NUL
};

struct PreparedImage {
  // A cubin, a container of nothing but variants of one (the CPU driver: the container as it came), or zero-terminated PTX; empty: only what is
  // linked of `inputs`.
  ImageBytes content;
  // These are to be linked, which compiles them, and what comes of it is loaded in place of `content`; where it is machine code it is an image to
  // be prepared itself, `prefix` in front of it. A driver without a linker loads `content`.
  std::vector<LinkInput> inputs;
  std::vector<std::byte> prefix;
  bool is_compiled_by_loading = false;  // `content` is a text that no linker takes, or holds one: the driver compiles it as it loads it

  // Places of `content` that a load fills in, so that failed assertions are the executor's affair (proto/image/assertions.hpp). Empty where
  // nothing asserts, and where `why_assertions_fault` says why they cannot be filled in.
  std::vector<image::AssertionSite> assertion_sites;
  std::string why_assertions_fault;

  bool has_writable_globals = false;
  bool uses_device_heap = false;      // image::CubinInfo
  bool all_may_use_device_heap = false;
  std::set<std::string, std::less<>> heap_kernels;  // else these
  bool takes_code_addresses = false;  // the same
  bool code_takes_addresses = false;  // the same
  bool adds_for_system = false;       // the same
  bool has_references = false;        // the same
  bool all_may_print = false;         // it is not known which
  std::set<std::string, std::less<>> printing_kernels;
  // Those variables, if all their names could be read.
  std::optional<std::vector<image::Variable>> variables;
  // Which kernels may write to them. Read where there are any.
  image::VariableUses variable_uses;
  // __managed__ variables without a place.
  std::vector<image::ManagedVariable> managed;
  // Those of a placed image (proto/managed_variables.hpp). They count as no variables: what the image still has of them nothing uses, and it
  // holds their initial values.
  std::vector<image::Variable> placed;
};

}  // namespace mpsshim::broker
