// SPDX-License-Identifier: Apache-2.0
// Texture and surface references: what a launch reads through, and what a client may bind.
#include "proto/graph_nodes.hpp"
#include "proto/references.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

using proto::ReferenceSource;

constexpr auto kTexture = proto::ReferenceId::make(1, 1);
constexpr auto kSurface = proto::ReferenceId::make(2, 1);
constexpr auto kArray = proto::ArrayId::make(1, 1);

// A module with a texture and a surface reference, and a kernel of it.
struct Fixture {
  WireExecutor executor;
  WireClient client{executor};
  FakeFunction function{"f", {8}};
  proto::FunctionId kernel = client.add_function(function);
  std::shared_ptr<broker::ModuleReferences> references = std::make_shared<broker::ModuleReferences>();
  std::uint64_t memory = client.add_chunk(1 << 20);
  CUtexref texture = reinterpret_cast<CUtexref>(0x7000);
  CUsurfref surface = reinterpret_cast<CUsurfref>(0x8000);
  CUarray array = reinterpret_cast<CUarray>(0x9000);

  Fixture() {
    client.session().functions().find(kernel)->references = references;
    add(kTexture, {texture, nullptr}, false);
    add(kSurface, {nullptr, surface}, true);
    broker::SessionArray known;
    known.array = array;
    known.is_part = true;  // nothing to destroy in the end
    if (!client.session().arrays().add(kArray, known)) throw std::bad_alloc();
    executor.fake.forget_calls();
  }
  void add(proto::ReferenceId id, const broker::ReferenceHandle& handle, bool is_surface) {
    auto reference = std::make_unique<broker::SessionReference>();
    reference->references = references;
    reference->number = references->add(handle);
    reference->is_surface = is_surface;
    if (!client.session().references().insert(id, std::move(reference))) throw std::bad_alloc();
  }
  void bind_memory(std::uint64_t address, std::uint64_t bytes = 4096) {
    proto::ReferenceSetRecord set{};
    set.reference = kTexture;
    set.source = ReferenceSource::linear;
    set.address = address;
    set.size_bytes = bytes;
    client.post(set);
  }
  void bind_array(proto::ReferenceId reference, proto::ArrayId id = kArray) {
    proto::ReferenceSetRecord set{};
    set.reference = reference;
    set.source = ReferenceSource::array;
    set.array = id;
    client.post(set);
  }
  // Bindings and launches, in the order in which the driver was given them.
  std::vector<FakeCall> given() {
    client.turn();
    std::vector<FakeCall> given;
    for (FakeCall& call : executor.fake.calls()) {
      if (call.kind != FakeCall::bind && (call.kind != FakeCall::launch || call.function != &function)) continue;
      given.push_back(std::move(call));
    }
    executor.fake.forget_calls();
    return given;
  }
};

}  // namespace

TEST_CASE("a launch reads through what was bound when it was posted") {
  Fixture f;
  f.bind_memory(f.memory);
  f.client.post_launch(f.kernel, 1);
  f.bind_memory(f.memory + 8192);
  f.client.post_launch(f.kernel, 2);
  f.client.post_launch(f.kernel, 3);
  const std::vector<FakeCall> given = f.given();
  REQUIRE(given.size() == 5);
  const FakeCall::Kind expected[] = {FakeCall::bind, FakeCall::launch, FakeCall::bind, FakeCall::launch, FakeCall::launch};
  for (std::size_t i = 0; i < given.size(); ++i) CHECK(given[i].kind == expected[i]);
  CHECK(given[0].destination == reinterpret_cast<std::uint64_t>(f.texture));
  CHECK(given[0].source == f.memory);
  CHECK(given[2].source == f.memory + 8192);
  for (const FakeCall& call : given) CHECK(call.chain == 0);  // no graph may hold such a kernel
}

TEST_CASE("what is bound stays bound, and every reference has its own") {
  Fixture f;
  f.bind_memory(f.memory);
  f.client.post_launch(f.kernel, 1);
  CHECK(f.given().size() == 2);
  f.bind_array(kSurface);
  f.client.post_launch(f.kernel, 2);
  const std::vector<FakeCall> given = f.given();
  REQUIRE(given.size() == 2);
  CHECK(given[0].destination == reinterpret_cast<std::uint64_t>(f.surface));
  CHECK(given[0].source == reinterpret_cast<std::uint64_t>(f.array));
}

TEST_CASE("an array that is gone is not read through any more") {
  Fixture f;
  f.bind_array(kTexture);
  f.client.post_launch(f.kernel, 1);
  CHECK(f.given().size() == 2);
  CHECK(f.client.take_async_error() == CUDA_SUCCESS);
  (void)f.client.session().arrays().retire(kArray);
  f.client.post_launch(f.kernel, 2);
  CHECK(f.given().empty());
  CHECK(f.client.take_async_error() == CUDA_ERROR_INVALID_HANDLE);
  f.bind_memory(f.memory);
  f.client.post_launch(f.kernel, 3);
  CHECK(f.given().size() == 2);
  CHECK(f.client.take_async_error() == CUDA_SUCCESS);
}

TEST_CASE("an array that has the id of one that was bound is not read through") {
  Fixture f;
  f.bind_array(kTexture);
  f.client.turn();
  (void)f.client.session().arrays().retire(kArray);
  broker::SessionArray other;
  other.array = reinterpret_cast<CUarray>(0xa000);
  other.hold = std::make_shared<int>();
  other.is_part = true;
  REQUIRE(f.client.session().arrays().add(kArray, other));
  f.client.post_launch(f.kernel, 1);
  CHECK(f.given().empty());
  CHECK(f.client.take_async_error() == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("memory that has been given back is not read through any more") {
  Fixture f;
  f.bind_memory(f.memory);
  f.client.post_launch(f.kernel, 1);
  CHECK(f.given().size() == 2);
  REQUIRE(f.client.session().memory().forget_chunk(f.memory));
  f.client.post_launch(f.kernel, 2);
  CHECK(f.given().empty());
  CHECK(f.client.take_async_error() == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("only what is the session's own is bound") {
  Fixture f;
  SECTION("memory of others") { f.bind_memory(kDeviceLease + kLeaseBytes); }
  SECTION("beyond the end of its own") { f.bind_memory(f.memory, 1ull << 40); }
  SECTION("an address that wraps") { f.bind_memory(f.memory, ~0ull); }
  SECTION("an array that there is not") { f.bind_array(kTexture, proto::ArrayId::make(9, 1)); }
  SECTION("rows beyond all addresses") {
    proto::ReferenceSetRecord set{};
    set.reference = kTexture;
    set.source = ReferenceSource::rows;
    set.address = f.memory;
    set.size_bytes = 1ull << 40;
    set.height = 1ull << 40;
    f.client.post(set);
  }
  SECTION("memory to a surface") {
    proto::ReferenceSetRecord set{};
    set.reference = kSurface;
    set.source = ReferenceSource::linear;
    set.address = f.memory;
    set.size_bytes = 4096;
    f.client.post(set);
  }
  f.client.turn();
  CHECK_FALSE(f.client.has_failed());
  CHECK(f.client.take_async_error() != CUDA_SUCCESS);
  CHECK(f.references->bindings() == nullptr);
}

TEST_CASE("a kernel that reads through references is no node of a graph") {
  Fixture f;
  constexpr auto kExec = proto::GraphExecId::make(3, 1);
  proto::LaunchRecord launch{};
  launch.function = f.kernel;
  launch.grid_x = launch.grid_y = launch.grid_z = launch.block_x = launch.block_y = launch.block_z = 1;
  launch.parameter_bytes = 8;
  std::vector<std::byte> bytes;
  const auto put = [&](const void* data, std::size_t size) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), first, first + size);
    bytes.resize((bytes.size() + 7) / 8 * 8);
  };
  const std::uint64_t argument = 1;
  const std::size_t record_bytes = (sizeof launch + 7) / 8 * 8;
  const proto::GraphNodeHeader header{0, proto::GraphNodeKind::kernel, 1, 0, static_cast<std::uint32_t>(record_bytes + sizeof argument)};
  put(&header, sizeof header);
  put(&launch, sizeof launch);
  put(&argument, sizeof argument);
  f.client.post(proto::GraphNodesRecord{kExec}, proto::kNullStream, bytes);
  f.client.call(proto::GraphInstantiateRecord{kExec, 0, 1, 0});
  f.client.turn();
  REQUIRE(f.client.is_answered(0));
  CHECK(f.client.status(0) == CUDA_ERROR_NOT_SUPPORTED);
}

}  // namespace mpsshim::test
