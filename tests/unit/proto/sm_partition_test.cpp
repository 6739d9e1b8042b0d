// SPDX-License-Identifier: Apache-2.0
#include "proto/sm_partition.hpp"

#include <cstdint>
#include <memory>
#include <string>

#include "tests/support/catch.hpp"

using namespace mpsshim::proto;

TEST_CASE("numbers of partitions are read as they are written, and nothing else is one") {
  CHECK(partition_text(1) == "P0000001");
  CHECK(partition_text(12'345'678) == "P12345678");
  for (const std::uint32_t number : {1u, 9'999'999u, 10'000'000u, 999'999'999u}) CHECK(parse_partition(partition_text(number)) == number);
  for (const char* wrong :
       {"", "P", "P1", "P000001", "P0000000", "p0000001", "P000000x", "P 000001", "P+000001", "P-000001", "P9999999999", "0000001"}) {
    INFO(wrong);
    CHECK_FALSE(parse_partition(wrong));
  }
}

TEST_CASE("a list of partitions has one of a device, which is there") {
  const auto facts = std::make_unique<DriverFacts>();
  facts->device_count = 2;
  for (std::uint8_t i = 0; i < 2; ++i) facts->device[i].uuid[0] = static_cast<std::uint8_t>(0x10 + i);
  const PartitionsText both = parse_partitions(*facts, "GPU-11/P0000007,0/P0000003");
  CHECK(both.partition[0] == 3);
  CHECK(both.partition[1] == 7);
  CHECK(both.wrong.empty());
  const PartitionsText mixed = parse_partitions(*facts, "0/P0000003,GPU-12/P0000004,1/x");
  CHECK(mixed.partition[0] == 3);
  CHECK(mixed.partition[1] == 0);
  CHECK(mixed.wrong == "GPU-12/P0000004");
  CHECK(parse_partitions(*facts, "0/P0000003,0/P0000004").wrong == "0/P0000004");  // the first one holds
  CHECK(parse_partitions(*facts, "GPU-1/P0000001").wrong == "GPU-1/P0000001");     // of either
  for (const char* wrong : {"P0000001", "0", "0/", "/P0000001", "2/P0000001", "0/P0000001/", "25"}) {
    INFO(wrong);
    CHECK(parse_partitions(*facts, wrong).wrong == wrong);
    CHECK(parse_partitions(*facts, wrong).partition[0] == 0);
  }
  CHECK(parse_partitions(*facts, "0/P0000001,").wrong == "(an empty entry)");
}

TEST_CASE("a list of partitions is told from others without the devices") {
  CHECK(are_partitions("GPU-cb1213a3/P0000001"));
  CHECK(are_partitions("0/P0000001,1/P0000002"));
  for (const char* wrong : {"", "P0000001", "0", "0/P1", "0/P0000001,", ",", "/P0000001", "25"}) CHECK_FALSE(are_partitions(wrong));
}
