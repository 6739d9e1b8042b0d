// SPDX-License-Identifier: Apache-2.0
// What `mpsctl top` shows of its rows: lines of text, however wide and high the place is. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "broker/commands/table.hpp"
#include "broker/ctl/client_rows.hpp"

namespace mpsshim::broker::ctl {

struct TopView {
  std::string title;  // of the broker and the time
  std::string headings;
  std::vector<std::string> clients;  // in the order of `key`
};
[[nodiscard]] TopView view_of(const ClientRows& rows, std::string_view directory, std::string_view time_of_day, std::string_view key);

// The same for programs: a row for each client, in that order; rates are nothing where they are not known.
[[nodiscard]] Table table_of(const ClientRows& rows, std::string_view key);

// At most so many characters of UTF-8, which may have any bytes.
[[nodiscard]] std::string_view cut_to(std::string_view text, std::size_t characters);

}  // namespace mpsshim::broker::ctl
