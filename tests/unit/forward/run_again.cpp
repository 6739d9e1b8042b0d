// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/run_again.hpp"

#include <atomic>
#include <cstring>
#include <span>
#include <vector>

#include "gen/records.hpp"
#include "interposer/channel/channel.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/forward/fake_broker.hpp"

using namespace mpsshim;
using namespace mpsshim::interposer;
using namespace mpsshim::test;

namespace {

constexpr proto::StreamId kOther = proto::StreamId::make(3, 1);

class NoSession final : public Channel::Guardian {
  CUresult recover(std::uint64_t) override { return CUDA_ERROR_UNKNOWN; }
  CUresult fail(CUresult error) override { return error; }
  CUresult look_for_kernel_error() override { return CUDA_SUCCESS; }
};

// The ring and the fences of a session whose executor has died; its grids are numbered from 1.
struct Old {
  Old() {
    channel.set_link(ends.link);
    REQUIRE(fences.map(file));
    REQUIRE(ends.link->producer().oldest_record() == 0);
  }
  void launch(proto::StreamId stream, std::size_t parameter_bytes = 16) {
    proto::LaunchRecord record{};
    record.grid_x = ++launches;
    record.parameter_bytes = static_cast<std::uint32_t>(parameter_bytes);
    REQUIRE(channel.post(stream, record, std::vector<std::byte>(parameter_bytes, std::byte{7})) == CUDA_SUCCESS);
  }
  void fence(proto::StreamId stream, std::uint32_t value, bool is_reached) {
    proto::FenceRecord record{};
    record.fence_value = value;
    REQUIRE(channel.post(stream, record) == CUDA_SUCCESS);
    if (is_reached) words()[stream.index()].value.store(value);
  }
  void read_all() { ends.link->header().head.store(ends.link->producer().position()); }
  [[nodiscard]] proto::FenceWord* words() { return reinterpret_cast<proto::FenceWord*>(memory.data()); }
  // The numbers of those that were in flight.
  [[nodiscard]] std::vector<std::uint32_t> in_flight() {
    std::vector<std::uint32_t> numbers;
    for (const std::uint64_t position : find_launches_in_flight(*ends.link, ends.link->header().head.load(), fences)) {
      proto::LaunchRecord record;
      std::memcpy(&record, ends.link->ring_memory() + position % proto::kRingBytes + sizeof(proto::RecordHeader), proto::LaunchRecord::kBodyBytes);
      numbers.push_back(record.grid_x);
    }
    return numbers;
  }

  ChannelEnds ends = make_channel(1);
  NoSession session;
  Channel channel{session, {}};
  proto::FileDescriptor file = proto::create_memory_file("test fences", proto::kFenceSegmentBytes);
  proto::Mapping memory = proto::Mapping::map(file, 0, proto::kFenceSegmentBytes, proto::Access::read_write);
  FenceMemory fences;
  std::uint32_t launches = 0;
};

}  // namespace

TEST_CASE("in flight are the launches behind the last fence that was reached, of each stream") {
  Old old;
  old.launch(proto::kNullStream);
  old.launch(kOther);
  old.fence(proto::kNullStream, 1, true);
  old.launch(proto::kNullStream);
  old.launch(kOther);
  old.fence(kOther, 1, false);
  old.launch(proto::kNullStream);
  old.read_all();
  old.launch(proto::kNullStream);  // which the executor has not read
  CHECK(old.in_flight() == std::vector<std::uint32_t>{2, 3, 4, 5});
  old.words()[kOther.index()].value.store(1);
  CHECK(old.in_flight() == std::vector<std::uint32_t>{3, 5});
}

TEST_CASE("of more launches than the ring holds the last are found") {
  Old old;
  for (int i = 0; i < 5'000; ++i) {
    old.launch(kOther, 1'000);
    old.read_all();
  }
  const std::vector<std::uint32_t> found = old.in_flight();
  REQUIRE(found.size() > 800);
  for (std::size_t i = 0; i < found.size(); ++i) REQUIRE(found[i] == 5'000 - found.size() + 1 + i);
}

TEST_CASE("what was in flight is posted again as it was, in one stream, with a fence behind it") {
  Old old;
  old.launch(kOther, 40);
  old.launch(proto::kNullStream, 8);
  old.read_all();
  ChannelEnds next = make_channel(2);
  const proto::FileDescriptor file = proto::create_memory_file("test fences", proto::kFenceSegmentBytes);
  const proto::Mapping memory = proto::Mapping::map(file, 0, proto::kFenceSegmentBytes, proto::Access::read_write);
  FenceMemory fences;
  REQUIRE(fences.map(file));
  std::vector<std::uint32_t> sizes;
  std::atomic<bool> in_one_stream{true};
  FakeExecutor executor(next, [&](const proto::RecordHeader& header, const std::byte* body) {
    in_one_stream = in_one_stream && header.stream == proto::kNullStream && header.reply_slot == proto::kNoReplySlot;
    if (header.id == static_cast<std::uint16_t>(proto::RecordId::Launch)) {
      sizes.push_back(header.trailing_bytes);
      for (std::uint32_t i = 0; i < header.trailing_bytes; ++i) REQUIRE(body[proto::LaunchRecord::kBodyBytes + i] == std::byte{7});
      return;
    }
    proto::FenceRecord fence;
    std::memcpy(&fence, body, proto::FenceRecord::kBodyBytes);
    reinterpret_cast<proto::FenceWord*>(memory.data())[0].value.store(fence.fence_value);
  });
  const RunAgain run =
      run_again(find_launches_in_flight(*old.ends.link, old.ends.link->header().head.load(), old.fences), *old.ends.link, *next.link, fences, {});
  executor.stop();
  CHECK(executor.fault() == proto::RingFault::none);
  CHECK(run.end == WaitEnd::ready);
  CHECK(run.has_ended);
  CHECK(run.launches == 2);
  CHECK(sizes == std::vector<std::uint32_t>{40, 8});
  CHECK(in_one_stream);
}

TEST_CASE("launches that do not end again are waited for no longer than a second, and an executor's end at once") {
  Old old;
  old.launch(kOther);
  old.read_all();
  ChannelEnds next = make_channel(2);
  const proto::FileDescriptor file = proto::create_memory_file("test fences", proto::kFenceSegmentBytes);
  FenceMemory fences;
  REQUIRE(fences.map(file));
  const std::vector<std::uint64_t> launches = find_launches_in_flight(*old.ends.link, old.ends.link->header().head.load(), old.fences);
  SECTION("they run on") {
    const RunAgain run = run_again(launches, *old.ends.link, *next.link, fences, {});
    CHECK(run.end == WaitEnd::ready);
    CHECK_FALSE(run.has_ended);
  }
  SECTION("it has failed the session") {
    next.link->header().session_state.store(static_cast<std::uint32_t>(proto::SessionState::failed));
    CHECK(run_again(launches, *old.ends.link, *next.link, fences, {}).end == WaitEnd::failed);
  }
}

namespace {

template <typename Record>
Recipe recipe_with(const Record& record) {
  Recipe recipe;
  recipe.id = Record::kId;
  const auto body = std::as_bytes(std::span(&record, 1)).first(Record::kBodyBytes);
  recipe.body.assign(body.begin(), body.end());
  return recipe;
}

// Two modules with a function each.
struct Book {
  Book() {
    for (std::uint32_t i = 0; i < 2; ++i) {
      proto::ModuleLoadRecord load{};
      load.module = modules[i];
      proto::FunctionBindRecord bind{};
      bind.module = modules[i];
      bind.function = functions[i];
      proto::FunctionSetAttributeRecord attribute{};
      attribute.function = functions[i];
      recipes.emplace(10 * i + 1, recipe_with(load));
      recipes.emplace(10 * i + 2, recipe_with(bind));
      recipes.emplace(10 * i + 3, recipe_with(attribute));
    }
    recipes.emplace(30, recipe_with(proto::MappingCreateRecord{}));
    recipes.emplace(31, recipe_with(proto::EventCreateRecord{}));
    recipes.emplace(32, recipe_with(proto::GraphInstantiateRecord{}));
  }
  // The keys of what is needed for what the old ring has in flight.
  [[nodiscard]] std::vector<RecipeBook::Key> needed(Old& old) const {
    const auto launches = find_launches_in_flight(*old.ends.link, old.ends.link->header().head.load(), old.fences);
    const NeededRecipes needs(launches, *old.ends.link, recipes);
    std::vector<RecipeBook::Key> keys;
    for (const auto& [key, recipe] : recipes) {
      if (needs.contains(recipe)) keys.push_back(key);
    }
    return keys;
  }

  const proto::ModuleId modules[2] = {proto::ModuleId::make(1, 1), proto::ModuleId::make(2, 1)};
  const proto::FunctionId functions[2] = {proto::FunctionId::make(5, 1), proto::FunctionId::make(6, 1)};
  RecipeBook::Entries recipes;
};

}  // namespace

TEST_CASE("for launches their functions and modules are made again, with what kernels may reach, and no others") {
  const Book book;
  Old old;
  proto::LaunchRecord record{};
  record.function = book.functions[1];
  REQUIRE(old.channel.post(kOther, record) == CUDA_SUCCESS);
  old.read_all();
  CHECK(book.needed(old) == std::vector<RecipeBook::Key>{11, 12, 13, 30});
}

TEST_CASE("for a graph's launch all is made again") {
  const Book book;
  Old old;
  REQUIRE(old.channel.post(kOther, proto::GraphLaunchRecord{}) == CUDA_SUCCESS);
  old.read_all();
  CHECK(book.needed(old).size() == book.recipes.size());
}
