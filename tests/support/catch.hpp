// SPDX-License-Identifier: Apache-2.0
// Catch2 in whichever version the distribution has (2 on Debian 12, 3 on Ubuntu 24.04), and how a case is skipped.
// Tests include this header and nothing of Catch2 itself.
#pragma once

#include <iostream>

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_range.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
using Catch::Detail::Approx;
#endif

// Leaves the test case as "not run". Version 2 has no SKIP, so CTest recognises this line instead
// (SKIP_REGULAR_EXPRESSION in cmake/Testing.cmake), counts the case as skipped and names it.
#define MPSSHIM_SKIP(reason)                                       \
  do {                                                             \
    std::cout << "mpsshim-skip: " << reason << '\n' << std::flush; \
    return;                                                        \
  } while (false)
