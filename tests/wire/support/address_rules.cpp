// SPDX-License-Identifier: Apache-2.0
// The oracle's rules: whose memory an address is, and what of a call's addresses must hold (proto/spec/addresses.toml).
#include "tests/wire/support/address_oracle.hpp"

#include <algorithm>

#include "broker/progress_table.hpp"
#include "proto/channel.hpp"
#include "tests/wire/support/address_numbers.hpp"

namespace mpsshim::test {

namespace {

// Whether pieces that lie side by side cover the range.
bool is_covered(const std::map<std::uint64_t, std::uint64_t>& pieces, std::uint64_t address, Number size_bytes) {
  const Number end = Number{address} + size_bytes;
  for (Number at = address; at < end;) {
    auto piece = pieces.upper_bound(static_cast<std::uint64_t>(at));
    if (piece == pieces.begin()) return false;
    --piece;
    const Number piece_end = Number{piece->first} + piece->second;
    if (piece_end <= at) return false;
    at = piece_end;
  }
  return end <= kAllAddresses;
}

bool lies_in_one(const std::map<std::uint64_t, std::uint64_t>& pieces, std::uint64_t address, Number size_bytes) {
  const auto piece = pieces.upper_bound(address);
  return piece != pieces.begin() && Number{address} + size_bytes <= Number{std::prev(piece)->first} + std::prev(piece)->second;
}

bool touches_one(const std::map<std::uint64_t, std::uint64_t>& pieces, std::uint64_t address, std::uint64_t size_bytes) {
  const auto next = pieces.lower_bound(address);
  return lies_in_one(pieces, address, 1) || (next != pieces.end() && Number{next->first} < Number{address} + size_bytes);
}

bool has_plain_elements(CUarray_format format) {
  return format == CU_AD_FORMAT_UNSIGNED_INT8 || format == CU_AD_FORMAT_UNSIGNED_INT16 || format == CU_AD_FORMAT_UNSIGNED_INT32 ||
         format == CU_AD_FORMAT_SIGNED_INT8 || format == CU_AD_FORMAT_SIGNED_INT16 || format == CU_AD_FORMAT_SIGNED_INT32 ||
         format == CU_AD_FORMAT_HALF || format == CU_AD_FORMAT_FLOAT;
}

Number bytes_of(CUarray_format format, unsigned channels) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return Number{2} * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return Number{4} * channels;
    default: return 16;
  }
}

std::uint64_t at_most_all(Number bytes) { return bytes < kAllAddresses ? static_cast<std::uint64_t>(bytes) : ~0ull; }

}  // namespace

void AddressOracle::wrong(const char* where, const std::string& what) { violations_.push_back(std::string(where) + " " + what); }

std::optional<std::uint64_t> AddressOracle::owner_of(std::uint64_t address, std::uint64_t size_bytes) const {
  const std::uint64_t of_device = leaseholder(kDeviceLease, address, size_bytes);
  if (of_device != 0) {
    const bool is_there = is_covered(mapped_, address, size_bytes) || lies_in_one(registered_, address, size_bytes);  // in a chunk's place
    return is_there ? std::optional(of_device) : std::nullopt;
  }
  const std::uint64_t of_pinned = leaseholder(kPinnedLease, address, size_bytes);
  if (of_pinned != 0) return is_covered(registered_, address, size_bytes) ? std::optional(of_pinned) : std::nullopt;
  if (const External* const piece = external_at(address, size_bytes); piece != nullptr) {
    const auto memory = imported_.find(piece->memory);
    return memory != imported_.end() ? std::optional(memory->second.session) : std::nullopt;
  }
  if (const Variable* const variable = variable_at(address, size_bytes); variable != nullptr) return variable->session;
  auto given = given_.upper_bound(address);
  if (given == given_.begin()) return std::nullopt;
  --given;
  const auto piece = registered_.find(given->first);
  if (piece == registered_.end() || Number{address} + size_bytes > Number{piece->first} + piece->second) return std::nullopt;
  return given->second;
}

// Buffers that lie side by side are of different memory, and not one.
const AddressOracle::External* AddressOracle::external_at(std::uint64_t address, std::uint64_t size_bytes) const {
  auto piece = external_.upper_bound(address);
  if (piece == external_.begin()) return nullptr;
  --piece;
  return Number{address} + size_bytes <= Number{piece->first} + piece->second.size_bytes ? &piece->second : nullptr;
}

// Variables that lie side by side are not one either.
const AddressOracle::Variable* AddressOracle::variable_at(std::uint64_t address, std::uint64_t size_bytes) const {
  auto variable = variables_.upper_bound(address);
  if (variable == variables_.begin()) return nullptr;
  --variable;
  return Number{address} + size_bytes <= Number{variable->first} + variable->second.size_bytes ? &variable->second : nullptr;
}

void AddressOracle::check_owner(const char* where, std::uint64_t owner) {
  if (actor_ != 0 && owner != actor_) wrong(where, "is another session's");
  if (owner_ != 0 && owner != owner_) wrong(where, "is another session's than what else the call names");
  owner_ = owner;
}

void AddressOracle::check_bytes(const char* where, std::uint64_t address, std::uint64_t size_bytes) {
  const std::optional<std::uint64_t> owner = owner_of(address, std::max<std::uint64_t>(size_bytes, 1));
  if (!owner) return wrong(where, "leaves the memory of clients");
  check_owner(where, *owner);
}

void AddressOracle::bytes_or_row(const char* where, CUdeviceptr address, std::uint64_t size_bytes) {
  for (const auto& [begin, size] : registered_) {
    if (size != sizeof(broker::ProgressTable) || address < begin || address - begin >= size) continue;
    const std::uint64_t place = (address - begin - offsetof(broker::ProgressTable, stream)) % sizeof(broker::StreamProgress);
    if (place != offsetof(broker::StreamProgress, probe) || size_bytes > sizeof(std::uint64_t))
      wrong(where, "is in the progress table, but no probe");
    return;
  }
  check_bytes(where, address, size_bytes);
}

void AddressOracle::rows(const char* where, CUdeviceptr address, std::uint64_t pitch, std::uint64_t width, std::uint64_t height,
                         std::uint64_t element_bytes) {
  if (width == 0 || height == 0) return wrong(where, "is of no size");
  const Number row = Number{width} * element_bytes;
  if (row >= kAllAddresses || (height > 1 && pitch < row)) return wrong(where, "has rows that lie upon each other");
  check_bytes(where, address, at_most_all(Number{height - 1} * pitch + row));
}

void AddressOracle::texels(const char* where, CUdeviceptr address, const CUDA_ARRAY_DESCRIPTOR* descriptor, std::uint64_t pitch) {
  const Number row = descriptor->Width * bytes_of(descriptor->Format, descriptor->NumChannels);
  const Number before = Number{std::max<std::uint64_t>(descriptor->Height, 1) - 1} * pitch;
  check_bytes(where, address, before < kAllAddresses && row < kAllAddresses ? at_most_all(before + row) : ~0ull);
}

// One is a client's; two are the executor's own; what is waited for is the executor's as well.
void AddressOracle::operations(const char* where, const CUstreamBatchMemOpParams* operations, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    const CUstreamBatchMemOpParams& operation = operations[i];
    switch (operation.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32: word(where, operation.waitValue.address, 4); break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        if (count == 1) check_bytes(where, operation.writeValue.address, 4);
        if (count != 1) word(where, operation.writeValue.address, 4);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_64: check_bytes(where, operation.writeValue.address, 8); break;
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: break;
      default: wrong(where, "is an operation that is not the executor's");
    }
  }
}

void AddressOracle::word(const char* where, CUdeviceptr address, std::uint64_t size_bytes) {
  for (const auto& [begin, size] : registered_) {
    const bool has_words = size == sizeof(broker::ProgressTable) || size == proto::kFenceSegmentBytes;
    if (has_words && !touches_leases(begin, size) && !given_.contains(begin) && address >= begin &&
        Number{address} + size_bytes <= Number{begin} + size)
      return;
  }
  wrong(where, "is no word of the executor's");
}

void AddressOracle::leased(const char* where, CUdeviceptr address, std::uint64_t size_bytes) {
  const std::uint64_t owner = leaseholder(kDeviceLease, address, size_bytes);
  if (owner == 0) return wrong(where, "is in no session's lease");
  if (touches_one(registered_, address, size_bytes)) wrong(where, "has registered memory in it");
  check_owner(where, owner);
}

// The leases here need no rounding to what a driver reserves.
void AddressOracle::reserved(const char* where, CUdeviceptr address, std::uint64_t size_bytes) { leased(where, address, size_bytes); }

void AddressOracle::check_host(const char* where, std::uint64_t address, std::uint64_t size_bytes) {
  const bool is_clients = touches_leases(address, size_bytes) || external_at(address, 1) != nullptr || variable_at(address, 1) != nullptr;
  if (address == 0 || is_clients) wrong(where, "is not the executor's own memory");
}

void AddressOracle::registrable(const char* where, const void* address, std::uint64_t size_bytes) {
  if (const std::uint64_t owner = leaseholder(kPinnedLease, number(address), size_bytes); owner != 0) return check_owner(where, owner);
  if (const std::uint64_t owner = leaseholder(kDeviceLease, number(address), size_bytes); owner != 0) {
    if (touches_one(mapped_, number(address), size_bytes)) wrong(where, "is device memory");
    return check_owner(where, owner);
  }
  check_host(where, number(address), size_bytes);
}

void AddressOracle::structure(const char* where, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* memory) {
  if (memory->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) return wrong(where, "is of a type that may be a pointer");
  std::uint64_t size_bytes = 0;
  const auto file = files_.find(inode_of(memory->handle.fd, size_bytes));
  if (file == files_.end()) return wrong(where, "is a descriptor that no session was given");
  if (memory->size == 0 || memory->size > size_bytes) wrong(where, "is more than there is");
  check_owner(where, file->second);
}

void AddressOracle::part(const char* where, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* buffer, CUexternalMemory memory) {
  const auto whole = imported_.find(memory);
  if (whole == imported_.end()) return wrong(where, "is of no memory that was imported");
  if (buffer->size == 0 || Number{buffer->offset} + buffer->size > whole->second.size_bytes) wrong(where, "leaves what was imported");
  check_owner(where, whole->second.session);
}

// The largest level fits; the rest is the driver's to know.
void AddressOracle::part(const char* where, const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC* array, CUexternalMemory memory) {
  const auto whole = imported_.find(memory);
  if (whole == imported_.end()) return wrong(where, "is of no memory that was imported");
  const Number room = array->offset < whole->second.size_bytes ? Number{whole->second.size_bytes} - array->offset : 0;
  const CUDA_ARRAY3D_DESCRIPTOR& shape = array->arrayDesc;
  Number bytes = has_plain_elements(shape.Format) ? bytes_of(shape.Format, shape.NumChannels) : 1;
  for (const std::uint64_t extent : {shape.Width, shape.Height, shape.Depth}) {
    if (bytes <= room) bytes *= std::max<std::uint64_t>(extent, 1);
  }
  if (has_plain_elements(shape.Format) ? bytes > room : room == 0) wrong(where, "leaves what was imported");
  check_owner(where, whole->second.session);
}

void AddressOracle::external(const char* where, CUdeviceptr address) {
  const auto piece = external_.find(address);
  if (piece == external_.end()) return wrong(where, "is no buffer of external memory");
  const auto memory = imported_.find(piece->second.memory);
  if (memory != imported_.end()) check_owner(where, memory->second.session);
}

void AddressOracle::registered(const char* where, const void* address) {
  if (!registered_.contains(number(address))) wrong(where, "is not registered");
}

struct AddressOracle::Box {
  std::uint64_t width, height, depth;
};

struct AddressOracle::End {
  CUmemorytype type;
  CUarray array;
  const void* host;
  CUdeviceptr device;
  std::uint64_t x, y, z, pitch, rows, level;
};

// As the manual of cuMemcpy3D reckons where an end begins.
void AddressOracle::check_end(const char* where, const End& end, const Box& box) {
  if (box.width == 0 || box.height == 0 || box.depth == 0) return wrong(where, "copies nothing");
  if (end.level != 0) return wrong(where, "names a level");
  if (end.type == CU_MEMORYTYPE_ARRAY) {
    const auto array = arrays_.find(number(end.array));
    if (array == arrays_.end()) return wrong(where, "names no array");
    const CUDA_ARRAY3D_DESCRIPTOR& shape = array->second;
    // Planes of formats whose blocks the driver alone knows lie below each other: half as much again, or as much.
    const Number height = Number{std::max<std::uint64_t>(shape.Height, 1)} * (has_plain_elements(shape.Format) ? 1 : 2);
    const Number depth = std::max<std::uint64_t>(shape.Depth, 1);
    const bool fits = Number{end.x} + box.width <= shape.Width * bytes_of(shape.Format, shape.NumChannels) && Number{end.y} + box.height <= height &&
                      Number{end.z} + box.depth <= depth;
    if (!fits) wrong(where, "leaves its array");
    return;
  }
  if (end.type != CU_MEMORYTYPE_HOST && end.type != CU_MEMORYTYPE_DEVICE) return wrong(where, "is of a type that is not the executor's");
  const bool has_rows = box.height > 1 || box.depth > 1;
  if (has_rows && Number{end.x} + box.width > end.pitch) return wrong(where, "has rows that lie upon each other");
  if (box.depth > 1 && Number{end.y} + box.height > end.rows) return wrong(where, "has slices that lie upon each other");
  const Number limit = Number{1} << 63;  // of each factor, so that no product is too large
  const Number rows_before = Number{end.z} * end.rows + end.y;
  const Number rows_within = Number{box.depth - 1} * (box.depth > 1 ? end.rows : 0) + (box.height - 1);
  if (rows_before >= limit || rows_within >= limit) return wrong(where, "begins or ends nowhere");
  const Number begin = (end.type == CU_MEMORYTYPE_HOST ? number(end.host) : end.device) + rows_before * end.pitch + end.x;
  const Number bytes = rows_within * (has_rows ? end.pitch : 0) + box.width;
  if (begin >= kAllAddresses) return wrong(where, "begins nowhere");
  check_bytes(where, static_cast<std::uint64_t>(begin), at_most_all(bytes));
}

void AddressOracle::structure(const char* where, const CUDA_MEMCPY2D* copy) {
  const Box box{copy->WidthInBytes, copy->Height, 1};
  check_end(where, {copy->dstMemoryType, copy->dstArray, copy->dstHost, copy->dstDevice, copy->dstXInBytes, copy->dstY, 0, copy->dstPitch, 0, 0},
            box);
  check_end(where, {copy->srcMemoryType, copy->srcArray, copy->srcHost, copy->srcDevice, copy->srcXInBytes, copy->srcY, 0, copy->srcPitch, 0, 0},
            box);
}

void AddressOracle::structure(const char* where, const CUDA_MEMCPY3D* copy) {
  const Box box{copy->WidthInBytes, copy->Height, copy->Depth};
  check_end(where,
            {copy->dstMemoryType, copy->dstArray, copy->dstHost, copy->dstDevice, copy->dstXInBytes, copy->dstY, copy->dstZ, copy->dstPitch,
             copy->dstHeight, copy->dstLOD},
            box);
  check_end(where,
            {copy->srcMemoryType, copy->srcArray, copy->srcHost, copy->srcDevice, copy->srcXInBytes, copy->srcY, copy->srcZ, copy->srcPitch,
             copy->srcHeight, copy->srcLOD},
            box);
}

void AddressOracle::structure(const char* where, const CUDA_MEMSET_NODE_PARAMS* fill) {
  const bool has_such_elements = fill->elementSize == 1 || fill->elementSize == 2 || fill->elementSize == 4;
  if (!has_such_elements) return wrong(where, "has elements of no such size");
  rows(where, fill->dst, fill->pitch, fill->width, fill->height, fill->elementSize);
}

void AddressOracle::structure(const char* where, const CUgraphNodeParams* node) {
  if (node->type != CU_GRAPH_NODE_TYPE_CONDITIONAL) wrong(where, "is a node with addresses");
}

// It begins in memory that is there, and ends in the lease, whatever is there.
void AddressOracle::check_texels(const char* where, std::uint64_t address, std::uint64_t size_bytes) {
  const std::optional<std::uint64_t> owner = owner_of(address, 1);
  if (!owner) return wrong(where, "begins in no client's memory");
  check_owner(where, *owner);
  if (external_at(address, size_bytes) != nullptr) return;
  const std::uint64_t of_device = leaseholder(kDeviceLease, address, size_bytes);
  if (of_device != *owner && leaseholder(kPinnedLease, address, size_bytes) != *owner) wrong(where, "leaves its session's lease");
}

void AddressOracle::structure(const char* where, const CUDA_RESOURCE_DESC* resource) {
  switch (resource->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
      if (!arrays_.contains(number(resource->res.array.hArray))) wrong(where, "names no array");
      return;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      if (!mipmapped_.contains(number(resource->res.mipmap.hMipmappedArray))) wrong(where, "names no mipmapped array");
      return;
    case CU_RESOURCE_TYPE_LINEAR: return check_texels(where, resource->res.linear.devPtr, resource->res.linear.sizeInBytes);
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& plane = resource->res.pitch2D;
      const Number row = plane.width * bytes_of(plane.format, plane.numChannels);
      const Number before = Number{std::max<std::uint64_t>(plane.height, 1) - 1} * plane.pitchInBytes;
      return check_texels(where, plane.devPtr, before < kAllAddresses && row < kAllAddresses ? at_most_all(before + row) : ~0ull);
    }
  }
  wrong(where, "is of an unknown type");
}

}  // namespace mpsshim::test
