// SPDX-License-Identifier: Apache-2.0
#include "proto/provision.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"

using namespace mpsshim::proto;

TEST_CASE("names of groups") {
  CHECK(parse_group("training_2") == "training_2");
  CHECK(parse_group(std::string(64, 'x')) == std::string(64, 'x'));
  for (const char* wrong : {"", "Training", "a b", "a-b", "a.b", "\xc3\xa4"}) CHECK_FALSE(parse_group(wrong));
  CHECK_FALSE(parse_group(std::string(65, 'x')));
}

TEST_CASE("a list of percentages has commas between those below 100, and nothing else") {
  using Percentages = std::vector<std::uint32_t>;
  CHECK(parse_percentages("") == Percentages{});
  CHECK(parse_percentages("25") == Percentages{2'500});
  CHECK(parse_percentages("25,50,12.5") == Percentages{2'500, 5'000, 1'250});
  for (const char* wrong : {",", "25,", ",25", "25,,50", "25, 50", "100", "25,100", "0", "25;50", "all"}) CHECK_FALSE(parse_percentages(wrong));
}

TEST_CASE("percentages are read in hundredths, and nothing else is one") {
  CHECK(parse_percentage("25") == 2'500u);
  CHECK(parse_percentage("25.0") == 2'500u);
  CHECK(parse_percentage("33.3") == 3'330u);
  CHECK(parse_percentage("12.25") == 1'225u);
  CHECK(parse_percentage("0.01") == 1u);
  CHECK(parse_percentage("100") == kWholePercentage);
  CHECK(parse_percentage("100.00") == kWholePercentage);
  CHECK(parse_percentage("007") == 700u);
  for (const char* text : {"",
                           "0",
                           "0.0",
                           "0.00",
                           "100.01",
                           "101",
                           "1000",
                           "-1",
                           "+1",
                           "25%",
                           " 25",
                           "25 ",
                           "2 5",
                           ".5",
                           "25.",
                           "1.234",
                           "1e1",
                           "x",
                           "99999999999999999999",
                           "0x10",
                           "25,5",
                           "nan"}) {
    INFO(text);
    CHECK(parse_percentage(text) == std::nullopt);
  }
}

TEST_CASE("a percentage is written so that it is read as the same") {
  CHECK(percentage_text(kWholePercentage) == "100.0");
  CHECK(percentage_text(2'500) == "25.0");
  CHECK(percentage_text(1'225) == "12.25");
  CHECK(percentage_text(1) == "0.01");
  for (std::uint32_t value = 1; value <= kWholePercentage; ++value) REQUIRE(parse_percentage(percentage_text(value)) == value);
}

TEST_CASE("a client's priority is 0 to 3") {
  CHECK(parse_client_priority("0") == 0u);
  CHECK(parse_client_priority("1") == 1u);
  CHECK(parse_client_priority("3") == 3u);
  for (const char* text : {"", "4", "-1", "00", "1 ", "normal", "+1"}) {
    INFO(text);
    CHECK(parse_client_priority(text) == std::nullopt);
  }
}

TEST_CASE("the lower percentage holds, and 0 is none") {
  CHECK(lower_percentage(0, 0) == 0);
  CHECK(lower_percentage(0, 5'000) == 5'000);
  CHECK(lower_percentage(5'000, 0) == 5'000);
  CHECK(lower_percentage(2'500, 5'000) == 2'500);
  CHECK(lower_percentage(kWholePercentage, 5'000) == 5'000);
}

TEST_CASE("multiprocessors are rounded down to what a green context can have, and never to none") {
  CHECK(provisioned_multiprocessors(16, 7, 2'500) == 4);
  CHECK(provisioned_multiprocessors(16, 7, 4'999) == 6);
  CHECK(provisioned_multiprocessors(16, 7, 5'000) == 8);
  CHECK(provisioned_multiprocessors(16, 7, 9'999) == 14);
  CHECK(provisioned_multiprocessors(16, 7, 1) == 2);
  CHECK(provisioned_multiprocessors(132, 9, 5'000) == 64);
  CHECK(provisioned_multiprocessors(132, 9, 9'999) == 128);
  CHECK(provisioned_multiprocessors(132, 10, 3'000) == 32);
  CHECK(provisioned_multiprocessors(132, 9, kWholePercentage) == 132);
  CHECK(provisioned_multiprocessors(132, 9, 0) == 132);
  CHECK(provisioned_multiprocessors(2, 7, 1) == 2);  // it cannot be parted
  CHECK(partition_units(132, 9, 2'500) == 4);
  CHECK(partition_units(8, 9, 5'000) == 0);
}
