// SPDX-License-Identifier: Apache-2.0
#include "tests/wire/support/fake_work.hpp"

#include <atomic>
#include <cstring>

namespace mpsshim::test {

std::vector<std::pair<std::size_t, std::size_t>> FakeFunction::layout() const {
  std::vector<std::pair<std::size_t, std::size_t>> layout;
  std::size_t end = 0;
  for (const std::size_t size : parameter_sizes) {
    const std::size_t offset = (end + size - 1) / size * size;
    layout.emplace_back(offset, size);
    end = offset + size;
  }
  return layout;
}

std::vector<std::byte> gather(const FakeFunction& function, void* const* parameters) {
  std::vector<std::byte> bytes;
  const auto layout = function.layout();
  for (std::size_t i = 0; i < layout.size(); ++i) {
    bytes.resize(layout[i].first + layout[i].second);
    std::memcpy(bytes.data() + layout[i].first, parameters[i], layout[i].second);
  }
  return bytes;
}

CUstreamBatchMemOpParams write_operation(CUdeviceptr address, std::uint32_t value) {
  CUstreamBatchMemOpParams operation{};
  operation.writeValue.address = address;
  operation.writeValue.value = value;
  return operation;
}

std::vector<CUstreamBatchMemOpParams> writes_of_kernel(const std::vector<std::byte>& parameters) {
  struct {
    CUdeviceptr fence, progress;
    std::uint32_t fence_value, progress_value;
  } words;
  std::memcpy(&words, parameters.data(), sizeof words);
  std::vector<CUstreamBatchMemOpParams> writes;
  if (words.fence != 0) writes.push_back(write_operation(words.fence, words.fence_value));
  writes.push_back(write_operation(words.progress, words.progress_value));
  return writes;
}

void run_kernel(const FakeCall& call) {
  if (call.function->name != kClusterWidth) return;
  CUdeviceptr word = 0;
  std::memcpy(&word, call.parameters.data(), sizeof word);
  write_value(write_operation(word, call.cluster == kNoCluster ? 1 : call.cluster[0]));
}

void write_value(const CUstreamBatchMemOpParams& operation) {
  if (operation.operation == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES) return;
  if (operation.writeValue.address >= kExternalMemory && operation.writeValue.address < kPinnedLease) return;  // addresses only
  // Seen by other threads as a GPU's write is: after everything before it in its stream.
  auto& word = *reinterpret_cast<std::uint32_t*>(operation.writeValue.address);
  std::atomic_ref(word).store(static_cast<std::uint32_t>(operation.writeValue.value), std::memory_order_release);
}

FakeCall write_call(const CUstreamBatchMemOpParams& operation) {
  FakeCall call(FakeCall::write);
  call.destination = operation.writeValue.address;
  call.bytes_or_value = operation.writeValue.value;
  return call;
}

}  // namespace mpsshim::test
