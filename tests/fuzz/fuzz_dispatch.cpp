// SPDX-License-Identifier: Apache-2.0
// The executor's decoder on hostile input: the bytes are a ring's contents, read by RingConsumer, dispatched, and issued to a FakeDriver.
// Sequence numbers are filled in, or nothing behind the first record would ever be reached. Whatever comes, no copy or fill may leave the
// session's memory. Jobs for helpers are queued and never run: what they do is not decoding.
// Without libFuzzer (MPSSHIM_FUZZ_STANDALONE) main() runs the files it is given, or as many random inputs as the first argument says.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/wire/support/wire_fixture.hpp"

using namespace mpsshim;

namespace {

constexpr std::uint64_t kChunkBytes = 2u << 20;
constexpr unsigned kInputsPerExecutor = 256;  // queued jobs hold their sessions; a new executor lets them go

std::unique_ptr<test::WireExecutor> executor;
unsigned inputs = 0;

void number_records(std::vector<std::byte>& bytes, std::uint32_t sequence) {
  for (std::size_t at = 0; at + sizeof(proto::RecordHeader) <= bytes.size();) {
    proto::RecordHeader header;
    std::memcpy(&header, bytes.data() + at, sizeof header);
    header.sequence = ++sequence;
    std::memcpy(bytes.data() + at, &header, sizeof header);
    if (header.size_bytes < sizeof header || header.size_bytes % proto::kRecordAlignment != 0 || header.size_bytes > bytes.size() - at) return;
    at += header.size_bytes;
  }
}

bool is_inside(std::uint64_t address, std::uint64_t chunk) { return address >= chunk && address < chunk + kChunkBytes; }

void check_driver_calls(std::uint64_t chunk) {
  for (const test::FakeCall& call : executor->fake.calls()) {
    if (call.kind == test::FakeCall::copy && (!is_inside(call.destination, chunk) || !is_inside(call.source, chunk))) abort();
    if (call.kind == test::FakeCall::fill && !is_inside(call.destination, chunk)) abort();
  }
  executor->fake.forget_calls();
}

}  // namespace

// A session with work still queued holds itself. A real executor takes its sessions down or ends by exit; the one here just goes.
extern "C" __attribute__((visibility("default"), used)) const char* __asan_default_options() { return "detect_leaks=0"; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (inputs++ % kInputsPerExecutor == 0) {
    executor.reset();
    executor = std::make_unique<test::WireExecutor>(0);
  }
  test::FakeFunction function{"f", {8, 4}};
  test::WireClient client(*executor);
  client.add_function(function);
  client.add_event(1);
  client.add_stream(1);
  client.add_stream(2, CU_STREAM_NON_BLOCKING);
  client.turn();
  const std::uint64_t chunk = client.add_chunk(kChunkBytes);

  std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(data), reinterpret_cast<const std::byte*>(data) + size);
  number_records(bytes, client.sequence());
  client.write_ring(bytes);
  for (int i = 0; i < 4; ++i) client.turn();
  // Another client's memory map would answer the same address; only this session's chunk and what it made since are its own.
  if (client.session().memory().owns_device(chunk, kChunkBytes)) check_driver_calls(chunk);
  executor->fake.forget_calls();
  return 0;
}

#ifdef MPSSHIM_FUZZ_STANDALONE
int main(int count, char** arguments) {
  std::srand(1);
  const int random_inputs = count > 1 ? std::atoi(arguments[1]) : 0;
  for (int i = 0; i < random_inputs; ++i) {
    std::vector<std::uint8_t> input;
    while (input.size() < 2000 && std::rand() % 8 != 0) {
      std::vector<std::uint8_t> body(static_cast<std::size_t>(std::rand() % 20) * 8);
      for (std::uint8_t& byte : body) byte = static_cast<std::uint8_t>(std::rand() % 3 != 0 ? 0 : std::rand() % 4);
      const auto stream = proto::StreamId::make(static_cast<std::uint32_t>(std::rand() % 3), 1);
      const proto::RecordHeader header{static_cast<std::uint32_t>(sizeof(proto::RecordHeader) + body.size()),
                                       static_cast<std::uint16_t>(0x8001 + std::rand() % 26), static_cast<std::uint16_t>(std::rand() % 2 ? 0xffff : 1), 0,
                                       static_cast<std::uint32_t>(std::rand() % 3 ? 0 : std::rand() % 64), stream};
      const auto* raw = reinterpret_cast<const std::uint8_t*>(&header);
      input.insert(input.end(), raw, raw + sizeof header);
      input.insert(input.end(), body.begin(), body.end());
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  for (int i = random_inputs > 0 ? 2 : 1; i < count; ++i) {
    std::FILE* file = std::fopen(arguments[i], "rb");
    if (file == nullptr) continue;
    std::vector<std::uint8_t> input(64 * 1024);
    input.resize(std::fread(input.data(), 1, input.size(), file));
    std::fclose(file);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  executor.reset();
  return 0;
}
#endif
