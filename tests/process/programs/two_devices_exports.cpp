// SPDX-License-Identifier: Apache-2.0
#include "tests/process/programs/two_devices_exports.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <sstream>

namespace mpsshim::test {

namespace {

std::string hexadecimal(const CUipcMemHandle& handle) {
  std::string text;
  for (const char byte : handle.reserved) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned char>(byte));
    text += digits.data();
  }
  return text;
}

CUipcMemHandle read(const std::string& text) {
  CUipcMemHandle handle{};
  require(text.size() == 2 * sizeof handle.reserved, "no handle: " + text);
  for (std::size_t i = 0; i < sizeof handle.reserved; ++i) handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return handle;
}

CUmemAllocationProp properties_of(const Side& side) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {side.device}};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

std::size_t piece_bytes(const Side& side) {
  const CUmemAllocationProp properties = properties_of(side);
  size_t bytes = 0;
  CU(cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  return bytes;
}

CUdeviceptr map(const Side& side, CUmemGenericAllocationHandle memory, std::size_t bytes) {
  CUdeviceptr range = 0;
  CU(cuMemAddressReserve(&range, bytes, 0, 0, 0));
  CU(cuMemMap(range, bytes, 0, memory, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {side.device}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU(cuMemSetAccess(range, bytes, &access, 1));
  CU(cuMemRelease(memory));
  return range;
}

void add(const Side& side, CUdeviceptr words, unsigned value) {
  side.launch_add(words, value);
  CU(cuStreamSynchronize(side.stream));
}

void require_device(const Side& side, CUdeviceptr words) {
  int ordinal = -1;
  CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, words));
  require(ordinal == side.device, "imported memory is told to be the importing device's");
}

std::string import(const Sides& sides, int pid, int descriptor) {
  const Side& side = sides[1];
  side.use();
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  const int fd = static_cast<int>(syscall(SYS_pidfd_getfd, process, descriptor, 0));
  require(fd >= 0, "the other process's descriptor cannot be had");
  CUmemGenericAllocationHandle memory = 0;
  CU(cuMemImportFromShareableHandle(&memory, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  close(process);
  CUmemAllocationProp properties{};
  CU(cuMemGetAllocationPropertiesFromHandle(&properties, memory));
  require(properties.location.id == sides[0].device, "imported memory has another device");
  const std::size_t bytes = piece_bytes(side);
  const CUdeviceptr words = map(side, memory, bytes);
  require_device(sides[0], words);
  add(side, words, 5);
  CU(cuMemUnmap(words, bytes));
  CU(cuMemAddressFree(words, bytes));
  return "ok";
}

std::string open(const Sides& sides, const CUipcMemHandle& handle) {
  sides[1].use();
  CUdeviceptr words = 0;
  CU(cuIpcOpenMemHandle(&words, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  require_device(sides[0], words);
  add(sides[1], words, 3);
  CU(cuIpcCloseMemHandle(words));
  return "ok";
}

}  // namespace

std::string Exports::export_mapped(const Side& side) {
  side.use();
  const CUmemAllocationProp properties = properties_of(side);
  const std::size_t bytes = piece_bytes(side);
  CUmemGenericAllocationHandle memory = 0;
  CU(cuMemCreate(&memory, bytes, &properties, 0));
  int fd = -1;
  CU(cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  mapped_ = map(side, memory, bytes);
  CU(cuMemsetD32(mapped_, 0, kWords));
  CU(cuCtxSynchronize());
  return "ok " + std::to_string(getpid()) + " " + std::to_string(fd);
}

std::string Exports::answer(const std::string& line, const Sides& sides) {
  std::istringstream words(line);
  std::string name;
  words >> name;
  if (name == "export") {
    sides[0].use();
    CU(cuMemAlloc(&words_, kBytes));
    CU(cuMemsetD32(words_, 0, kWords));
    CU(cuCtxSynchronize());
    CUipcMemHandle handle{};
    CU(cuIpcGetMemHandle(&handle, words_));
    return "ok " + hexadecimal(handle);
  }
  if (name == "export_mapped") return export_mapped(sides[0]);
  if (name == "open") {
    std::string handle;
    words >> handle;
    return open(sides, read(handle));
  }
  if (name == "import") {
    int pid = 0, descriptor = 0;
    words >> pid >> descriptor;
    return import(sides, pid, descriptor);
  }
  if (name != "check") return {};
  unsigned added = 0, mapped = 0;
  words >> added >> mapped;
  sides[0].use();
  require_all(sides[0].read(words_), added, "what another process has added");
  require_all(sides[0].read(mapped_), mapped, "what another process has added to mapped memory");
  return "ok";
}

}  // namespace mpsshim::test
