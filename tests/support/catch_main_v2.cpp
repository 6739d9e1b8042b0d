// SPDX-License-Identifier: Apache-2.0
// main() of every test where Catch2 is version 2, compiled once.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
