// SPDX-License-Identifier: Apache-2.0
#include "proto/memory_limit.hpp"

#include <memory>
#include <string>

#include "proto/mps_variables.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::proto;

TEST_CASE("sizes of memory, in all spellings") {
  for (const char* text : {"1G", "1g", "1GB", "1GiB", "1gib", "1024M", "1024MB", "1048576K"}) {
    INFO(text);
    CHECK(parse_memory_size(text) == std::uint64_t{1} << 30);
  }
  CHECK(parse_memory_size("2T") == std::uint64_t{2} << 40);
  for (const char* text :
       {"", "G", "1", "0G", "-1G", "+1G", " 1G", "1 G", "1.5G", "1GG", "1Gb8", "1X", "99999999999999999999G", "18446744073709551615K"}) {
    INFO(text);
    CHECK_FALSE(parse_memory_size(text));
  }
}

TEST_CASE("limits by device") {
  const auto facts = std::make_unique<DriverFacts>();
  facts->device_count = 3;
  for (std::uint8_t device = 0; device < 3; ++device) {
    for (std::uint8_t& byte : facts->device[device].uuid) byte = 0xab;
    facts->device[device].uuid[5] = device;  // GPU-abababab-abDD-…
  }
  CHECK(device_named(*facts, "2") == 2u);
  CHECK(device_named(*facts, "GPU-abababab-ab01") == 1u);
  CHECK(device_named(*facts, "GPU-ABABABAB-AB02-abab-abab-abababababab") == 2u);
  for (const char* text :
       {"3", "", "-1", "x", "GPU-", "GPU-ab", "GPU-ababababab01", "GPU-abababab-ab03", "GPU-ABABABAB-AB02-abab-abab-abababababab0"}) {
    INFO(text);
    CHECK_FALSE(device_named(*facts, text));
  }
  const MemoryLimitText both = parse_memory_limits(*facts, "0=1G,GPU-abababab-ab02=512MB");
  CHECK(both.wrong.empty());
  CHECK(both.limit_bytes[0] == 1ull << 30);
  CHECK(both.limit_bytes[1] == 0);
  CHECK(both.limit_bytes[2] == 512ull << 20);
  const MemoryLimitText partly = parse_memory_limits(*facts, "0=1G,7=1G,0=2G,1");
  CHECK(partly.wrong == "7=1G");
  CHECK(partly.limit_bytes[0] == 1ull << 30);
  CHECK(parse_memory_limits(*facts, ",").wrong == "(an empty entry)");
  CHECK(parse_memory_limits(*facts, "").wrong.empty());
  const MemoryLimitText all = parse_memory_limits(*facts, "1=512M,all=1G");
  CHECK(all.limit_bytes[0] == 1ull << 30);
  CHECK(all.limit_bytes[1] == 512ull << 20);
  CHECK(all.wrong.empty());
  CHECK(parse_memory_limits(*facts, "all=").wrong == "all=");
  CHECK(parse_memory_limits(*facts, "all").wrong == "all");
  CHECK(lower_limit(0, 5) == 5);
  CHECK(lower_limit(5, 0) == 5);
  CHECK(lower_limit(5, 3) == 3);
}

TEST_CASE("variables that nothing enforces") {
  CHECK(is_enforced("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"));
  CHECK(is_enforced("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"));
  CHECK(is_enforced("CUDA_MPS_SM_PARTITION", "GPU-0/P0000001"));
  CHECK(is_enforced("CUDA_MPS_PROTOCOL_VERSION", "3"));
  CHECK(is_enforced("CUDA_MPS_CLIENT_PRIORITY", "1"));
  CHECK(is_enforced("CUDA_MPS_CLIENT_PRIORITY", "0"));
  CHECK(is_enforced("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G"));
  CHECK_FALSE(is_enforced("CUDA_MPS_OF_A_LATER_RELEASE", "x"));
}
