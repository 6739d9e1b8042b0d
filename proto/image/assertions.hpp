// SPDX-License-Identifier: Apache-2.0
//
// Where an image's kernels go when an assertion fails: code calls __assertfail(message, file, line, function, character size), which every driver
// has, and whose end is that of the whole context. An image that is opened here calls a function of the executor's instead, by an address that is
// filled in at each load (docs/modules.md, "Assertions").
// Not trusted: what is of no form known here is left as it was, with a sentence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mpsshim::image {

// One place of an opened image, as zeroes. In machine code it takes the function's address; in a text sixteen hexadecimal digits of a number that
// the function written into it goes by.
struct AssertionSite {
  enum class Form : std::uint32_t { address, low_half, upper_half, call_47, call_55, digits };
  Form form = Form::address;
  std::uint64_t offset = 0;  // in the image's bytes
};
inline constexpr std::size_t kAssertionSiteBytes = 16;  // none needs more from its offset on
inline constexpr std::size_t kMaxAssertionSites = 1u << 16;

// What this is about; the rest of an image needs nothing.
[[nodiscard]] bool cubin_may_assert(std::span<const std::byte> cubin);
[[nodiscard]] bool ptx_may_assert(std::string_view text);

// Takes the function's relocations out of the cubin. False: `why` says what cannot be done; the bytes are of no use any more.
[[nodiscard]] bool open_assertions(std::span<std::byte> cubin, std::vector<AssertionSite>& sites, std::string& why);
// `text` with a function of that name, which records (assertion_record.hpp) and ends its thread. Empty: `why`.
[[nodiscard]] std::string open_assertions(std::string_view text, std::vector<AssertionSite>& sites, std::string& why);

// False: a site does not lie within the bytes, or is not as it was opened.
[[nodiscard]] bool fill_assertions(std::span<std::byte> content, std::span<const AssertionSite> sites, std::uint64_t address);

}  // namespace mpsshim::image
