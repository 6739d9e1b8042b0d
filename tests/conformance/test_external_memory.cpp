// SPDX-License-Identifier: Apache-2.0
// Memory of other interfaces, by file descriptors. Vulkan's is not at hand: what cuMemCreate has made and exported stands for it; on the CPU driver
// memory files do as well.
#include <fcntl.h>
#include <sys/mman.h>

#include <array>
#include <vector>

#include "loaded_image.hpp"

using namespace mpsshim::test;

namespace {

constexpr size_t kBytes = 2 * kGranule;
constexpr unsigned kWords = kBytes / sizeof(unsigned);

CUDA_EXTERNAL_MEMORY_HANDLE_DESC opaque(int fd, size_t bytes = kBytes) {
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC description{};
  description.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  description.handle.fd = fd;
  description.size = bytes;
  return description;
}

CUDA_EXTERNAL_MEMORY_BUFFER_DESC part(size_t offset, size_t bytes) {
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC description{};
  description.offset = offset;
  description.size = bytes;
  return description;
}

bool is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }

void tell(const char* what, CUresult seen) {
  const char* name = nullptr;
  CU(cuGetErrorName)(seen, &name);
  std::printf("recorded: %s: %d %s\n", what, static_cast<int>(seen), name == nullptr ? "(no name)" : name);
}

// A memory file, seen by this process too.
class File {
 public:
  explicit File(size_t bytes = kBytes) : bytes_(bytes), fd(memfd_create("exported", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    REQUIRE(fd >= 0);
    REQUIRE(ftruncate(fd, static_cast<off_t>(bytes)) == 0);
    void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(mapped != MAP_FAILED);
    words = static_cast<unsigned*>(mapped);
  }
  ~File() {
    munmap(words, bytes_);
    if (fd >= 0) close(fd);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  CUexternalMemory import() {
    const auto description = opaque(fd, bytes_);
    CUexternalMemory memory = nullptr;
    OK(CU(cuImportExternalMemory)(&memory, &description));
    CHECK_FALSE(is_open(fd));  // it is the driver's
    fd = -1;
    return memory;
  }

 private:
  const size_t bytes_;

 public:
  int fd;
  unsigned* words = nullptr;
};

CUdeviceptr map(CUexternalMemory memory, size_t offset = 0, size_t bytes = kBytes) {
  const auto description = part(offset, bytes);
  CUdeviceptr address = 0;
  OK(CU(cuExternalMemoryGetMappedBuffer)(&address, memory, &description));
  return address;
}

template <typename T>
T attribute(CUpointer_attribute which, CUdeviceptr address) {
  T value{};
  OK(CU(cuPointerGetAttribute)(&value, which, address));
  return value;
}

}  // namespace

TEST_CASE("memory that cuMemCreate has made and exported is imported as external memory", "[forwarded]") {
  const DeviceContext context;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  OK(CU(cuMemCreate)(&handle, kBytes, &prop, 0));
  CUdeviceptr range = 0;
  OK(CU(cuMemAddressReserve)(&range, kBytes, 0, 0, 0));
  OK(CU(cuMemMap)(range, kBytes, 0, handle, 0));
  CUmemAccessDesc access{};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  OK(CU(cuMemSetAccess)(range, kBytes, &access, 1));
  int fd = -1;
  OK(CU(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));

  const auto too_large = opaque(fd, kBytes + kGranule);
  CUexternalMemory memory = nullptr;
  const CUresult refused = CU(cuImportExternalMemory)(&memory, &too_large);
  tell("cuImportExternalMemory of more than is there", refused);
  if (driver_kind() != DriverKind::real) {
    CHECK(refused == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(is_open(fd));
  }
  if (refused != CUDA_SUCCESS) {
    const auto description = opaque(fd);
    const CUresult imported = CU(cuImportExternalMemory)(&memory, &description);
    tell("cuImportExternalMemory of cuMemCreate's memory", imported);
    // Whether NVIDIA's driver takes such a descriptor is its affair, here and behind a broker.
    if (is_cpu_device()) REQUIRE(imported == CUDA_SUCCESS);
    if (imported == CUDA_SUCCESS) {
      if (driver_kind() != DriverKind::real) CHECK_FALSE(is_open(fd));  // NVIDIA's driver owns it, open or not
      const CUdeviceptr address = map(memory);
      OK(CU(cuMemsetD32)(range, 0x1234, kWords));
      OK(CU(cuCtxSynchronize)());
      CHECK(word_at(address + kBytes - 4) == 0x1234);
      OK(CU(cuMemsetD32)(address + kGranule, 0x4321, 1));
      OK(CU(cuCtxSynchronize)());
      CHECK(word_at(range + kGranule) == 0x4321);
      OK(CU(cuMemFree)(address));
      OK(CU(cuDestroyExternalMemory)(memory));
    }
  }
  OK(CU(cuMemUnmap)(range, kBytes));
  OK(CU(cuMemRelease)(handle));
  OK(CU(cuMemAddressFree)(range, kBytes));
}

TEST_CASE("a mapped buffer is memory of the device and of whoever has exported it", "[forwarded]") {
  const DeviceContext context;
  if (!is_cpu_device()) MPSSHIM_SKIP("memory files stand for other interfaces on the CPU driver alone");
  const LoadedImage image;
  File file;
  file.words[0] = 41;
  const CUexternalMemory memory = file.import();
  const CUdeviceptr address = map(memory);
  CHECK(word_at(address) == 41);
  OK(CU(cuMemsetD32)(address, 0x77, kWords));
  OK(CU(cuCtxSynchronize)());
  CHECK(file.words[0] == 0x77);
  CHECK(file.words[kWords - 1] == 0x77);
  OK(launch(image.function("store"), nullptr, 1, 1, address + 64, 5u));
  OK(CU(cuCtxSynchronize)());
  CHECK(file.words[16] == 5);
  CUdeviceptr own = 0;
  OK(CU(cuMemAlloc)(&own, kBytes));
  file.words[kWords - 1] = 99;
  OK(CU(cuMemcpyDtoD)(own, address, kBytes));
  CHECK(word_at(own + kBytes - 4) == 99);
  OK(CU(cuMemFree)(own));

  // Where it ends.
  CHECK(CU(cuMemsetD8)(address, 0, kBytes + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemsetD8)(address - 1, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemsetD8)(address + kBytes, 0, 1) == CUDA_ERROR_INVALID_VALUE);

  CHECK(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address + 8) == CU_MEMORYTYPE_DEVICE);
  CHECK(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address + 8) == address);
  CHECK(attribute<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, address + 8) == kBytes);
  CHECK(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) == 0);
  CUdeviceptr base = 0;
  size_t size = 0;
  OK(CU(cuMemGetAddressRange)(&base, &size, address + 100));
  CHECK(base == address);
  CHECK(size == kBytes);
  if (!is_cpu_driver()) {
    CHECK_FALSE(attribute<bool>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address));
    CUipcMemHandle handle{};
    CHECK(CU(cuIpcGetMemHandle)(&handle, address) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(CU(cuMemFree)(address + 8) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFree)(address));
  CHECK(CU(cuMemsetD8)(address, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemFree)(address) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuDestroyExternalMemory)(memory));
}

TEST_CASE("buffers of parts, and of memory that is destroyed", "[forwarded]") {
  const DeviceContext context;
  if (!is_cpu_device()) MPSSHIM_SKIP("memory files stand for other interfaces on the CPU driver alone");
  File file;
  const CUexternalMemory memory = file.import();
  const CUdeviceptr all = map(memory), half = map(memory, kGranule, kGranule), small = map(memory, kGranule, 100);
  OK(CU(cuMemsetD32)(half, 3, 25));
  CHECK(word_at(all + kGranule + 96) == 3);
  CHECK(word_at(small + 96) == 3);
  CHECK(CU(cuMemsetD8)(small, 0, 101) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFree)(all));
  OK(CU(cuDestroyExternalMemory)(memory));
  // "Any existing buffers ... must be explicitly freed": they are there until then.
  OK(CU(cuMemsetD32)(half, 4, 1));
  CHECK(word_at(small) == 4);
  OK(CU(cuMemFree)(half));
  OK(CU(cuMemFree)(small));
  CHECK(file.words[kGranule / 4] == 4);
  if (!refuses_dead_handles()) return;
  CUdeviceptr address = 0;
  const auto description = part(0, 4096);
  CHECK(CU(cuExternalMemoryGetMappedBuffer)(&address, memory, &description) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(CU(cuDestroyExternalMemory)(memory) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("a mipmapped array in external memory", "[forwarded]") {
  const DeviceContext context;
  if (!is_cpu_device()) MPSSHIM_SKIP("memory files stand for other interfaces on the CPU driver alone");
  constexpr size_t kWidth = 64, kHeight = 16, kOffset = 8192;
  File file;
  const CUexternalMemory memory = file.import();
  CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC description{};
  description.offset = kOffset;
  description.arrayDesc = {kWidth, kHeight, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0};
  description.numLevels = 2;
  CUmipmappedArray mipmapped = nullptr;
  OK(CU(cuExternalMemoryGetMappedMipmappedArray)(&mipmapped, memory, &description));
  OK(CU(cuDestroyExternalMemory)(memory));
  const auto fill_level = [&](unsigned number, size_t width, size_t height, unsigned value) {
    CUarray level = nullptr;
    OK(CU(cuMipmappedArrayGetLevel)(&level, mipmapped, number));
    const std::vector<unsigned> values(width * height, value);
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = values.data();
    copy.srcPitch = width * 4;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = level;
    copy.WidthInBytes = width * 4;
    copy.Height = height;
    OK(CU(cuMemcpy2D)(&copy));
  };
  fill_level(0, kWidth, kHeight, 7);
  fill_level(1, kWidth / 2, kHeight / 2, 8);
  OK(CU(cuCtxSynchronize)());
  const unsigned* const first = file.words + kOffset / 4;
  CHECK(first[0] == 7);
  CHECK(first[kWidth * kHeight - 1] == 7);
  CHECK(first[kWidth * kHeight] == 8);
  CHECK(first[kWidth * kHeight + kWidth * kHeight / 4 - 1] == 8);
  CHECK(first[kWidth * kHeight + kWidth * kHeight / 4] == 0);
  OK(CU(cuMipmappedArrayDestroy)(mipmapped));
}

TEST_CASE("what cannot be imported is refused, and stays the application's", "[forwarded]") {
  const DeviceContext context;
  CUexternalMemory memory = nullptr;
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {ends[0], ends[1], null}) {
    const auto description = opaque(fd);
    const CUresult refused = CU(cuImportExternalMemory)(&memory, &description);
    tell("cuImportExternalMemory of another kind of descriptor", refused);
    CHECK(refused != CUDA_SUCCESS);
    // NVIDIA's driver was seen to close what it refuses (H200, driver 580); here it stays the caller's, as the manual has it.
    if (driver_kind() != DriverKind::real) CHECK(is_open(fd));
    close(fd);
  }
  const auto closed = opaque(null);
  CHECK(CU(cuImportExternalMemory)(&memory, &closed) != CUDA_SUCCESS);
  auto wrong = opaque(-1);
  CHECK(CU(cuImportExternalMemory)(&memory, &wrong) != CUDA_SUCCESS);
  if (driver_kind() == DriverKind::real) return;  // it may follow what stands for a descriptor here
  wrong.type = beyond<CUexternalMemoryHandleType>(77);
  CHECK(CU(cuImportExternalMemory)(&memory, &wrong) != CUDA_SUCCESS);
  wrong.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32;
  CHECK(CU(cuImportExternalMemory)(&memory, &wrong) != CUDA_SUCCESS);
}

TEST_CASE("external memory of wrong sizes, flags and places is refused", "[forwarded]") {
  const DeviceContext context;
  if (!is_cpu_device()) MPSSHIM_SKIP("memory files stand for other interfaces on the CPU driver alone");
  CUexternalMemory memory = nullptr;
  auto wrong = opaque(-1);
  CHECK(CU(cuImportExternalMemory)(nullptr, &wrong) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuImportExternalMemory)(&memory, nullptr) == CUDA_ERROR_INVALID_VALUE);
  File file;
  for (const size_t bytes : {size_t{0}, kBytes + 1, SIZE_MAX}) {
    const auto description = opaque(file.fd, bytes);
    CHECK(CU(cuImportExternalMemory)(&memory, &description) == CUDA_ERROR_INVALID_VALUE);
  }
  auto flagged = opaque(file.fd);
  flagged.flags = 2;
  CHECK(CU(cuImportExternalMemory)(&memory, &flagged) == CUDA_ERROR_INVALID_VALUE);
  CHECK(is_open(file.fd));
  memory = file.import();
  CUdeviceptr address = 0;
  for (const auto& description : {part(0, 0), part(0, kBytes + 1), part(kBytes, 1), part(SIZE_MAX & ~size_t{4095}, 8192)}) {
    CHECK(CU(cuExternalMemoryGetMappedBuffer)(&address, memory, &description) == CUDA_ERROR_INVALID_VALUE);
  }
  const auto right = part(0, 4096);
  CHECK(CU(cuExternalMemoryGetMappedBuffer)(nullptr, memory, &right) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuExternalMemoryGetMappedBuffer)(&address, memory, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC array{};
  array.arrayDesc = {64, 1 << 20, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0};
  array.numLevels = 1;
  CUmipmappedArray mipmapped = nullptr;
  CHECK(CU(cuExternalMemoryGetMappedMipmappedArray)(&mipmapped, memory, &array) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuDestroyExternalMemory)(memory));
}

TEST_CASE("a file behind external memory cannot be made shorter", "[forwarded]") {
  const DeviceContext context;
  if (!is_cpu_device()) MPSSHIM_SKIP("memory files stand for other interfaces on the CPU driver alone");
  File file;
  const int other = dup(file.fd);
  const CUexternalMemory memory = file.import();
  CHECK(ftruncate(other, 0) != 0);
  close(other);
  OK(CU(cuDestroyExternalMemory)(memory));
  const int unsealable = memfd_create("unsealable", MFD_CLOEXEC);  // nobody may seal it
  REQUIRE(ftruncate(unsealable, kBytes) == 0);
  const auto description = opaque(unsealable);
  CUexternalMemory refused = nullptr;
  CHECK(CU(cuImportExternalMemory)(&refused, &description) == CUDA_ERROR_INVALID_VALUE);
  close(unsealable);
}
