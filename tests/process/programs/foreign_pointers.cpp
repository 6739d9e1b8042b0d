// SPDX-License-Identifier: Apache-2.0
#include "tests/process/programs/foreign_pointers.hpp"

#include <utility>

namespace mpsshim::test {

std::string touch_foreign(CUdeviceptr address, Words& own) {
  constexpr std::size_t kBytes = 8;
  unsigned host[2] = {0xbad, 0xbad};
  void* pinned = nullptr;
  CU(cuMemHostAlloc(&pinned, kBytes, 0));
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const std::pair<const char*, CUresult> results[] = {
      {"HtoD", cuMemcpyHtoD(address, host, kBytes)},
      {"DtoH", cuMemcpyDtoH(host, address, kBytes)},
      {"DtoD_to", cuMemcpyDtoD(address, own.address, kBytes)},
      {"DtoD_from", cuMemcpyDtoD(own.address, address, kBytes)},
      {"HtoDAsync", cuMemcpyHtoDAsync(address, host, kBytes, stream)},
      {"HtoDAsync_pinned", cuMemcpyHtoDAsync(address, pinned, kBytes, stream)},
      {"DtoHAsync_pinned", cuMemcpyDtoHAsync(pinned, address, kBytes, stream)},
      {"DtoDAsync", cuMemcpyDtoDAsync(address, own.address, kBytes, stream)},
      {"D8", cuMemsetD8(address, 1, kBytes)},
      {"D16", cuMemsetD16(address, 1, kBytes / 2)},
      {"D32", cuMemsetD32(address, 1, kBytes / 4)},
      {"D32Async", cuMemsetD32Async(address, 1, kBytes / 4, stream)},
      {"D2D8", cuMemsetD2D8(address, 16, 1, kBytes / 2, 2)},
      {"D2D32Async", cuMemsetD2D32Async(address, 16, 1, 1, 2, stream)},
      {"Free", cuMemFree(address + kBytes)},
  };
  CU(cuCtxSynchronize());
  own.check();
  CU(cuStreamDestroy(stream));
  CU(cuMemFreeHost(pinned));
  std::string text;
  for (const auto& [call, result] : results) text += (text.empty() ? "" : " ") + std::string(call) + "=" + std::to_string(static_cast<int>(result));
  return text;
}

}  // namespace mpsshim::test
