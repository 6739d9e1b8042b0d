// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>

#include "tests/fuzz/support/record_maker.hpp"

namespace mpsshim::fuzz {

namespace {

constexpr std::uint16_t kFirstRecord = 0x8001;
constexpr std::uint16_t kLastRecord = static_cast<std::uint16_t>(proto::RecordId::LeaseEnd);  // of those that add_plain() knows one by one

}  // namespace

void RecordMaker::add_plain(proto::StreamId stream) {
  const auto event = proto::EventId::make(static_cast<std::uint32_t>(random_() % 4), static_cast<std::uint32_t>(1 + random_() % 2));
  const auto module = proto::ModuleId::make(static_cast<std::uint32_t>(random_() % 3), 1);
  const auto function = proto::FunctionId::make(static_cast<std::uint32_t>(random_() % 16 == 0), 1);
  switch (kFirstRecord + random_() % (kLastRecord - kFirstRecord + 1)) {
    case 0x8001:
      return add(proto::StreamCreateRecord{static_cast<std::uint32_t>(random_() % 2), 0},
                 proto::StreamId::make(static_cast<std::uint32_t>(random_() % 1024), 1));
    case 0x8002: return add(proto::StreamDestroyRecord{}, stream.index() == 0 ? proto::StreamId::make(random_() % 64 == 0 ? 0 : 7, 1) : stream);
    case 0x8003:
      return add(proto::EventCreateRecord{proto::EventId::make(static_cast<std::uint32_t>(random_() % 8192), 1),
                                          static_cast<std::uint32_t>(random_() % 4), 0},
                 {});
    case 0x8004: return add(proto::EventDestroyRecord{event}, {});
    case 0x8005: return add(proto::EventRecordRecord{event, static_cast<std::uint32_t>(random_()), 0}, stream);
    case 0x8006: return add(proto::StreamWaitEventRecord{event, 0, 0}, stream);
    case 0x8007: return add(proto::FenceRecord{static_cast<std::uint32_t>(random_()), 0}, stream);
    case 0x8008: {
      proto::LaunchRecord launch{};
      launch.function = function;
      launch.grid_x = launch.grid_y = launch.grid_z = launch.block_x = launch.block_y = launch.block_z = 1;
      launch.parameter_bytes = 16;
      launch.attribute_count = random_() % 8 == 0 ? static_cast<std::uint32_t>(random_() % 4) : 0;
      return add(launch, stream, 16 + launch.attribute_count * 64);
    }
    case 0x8009: {
      proto::CopyRecord copy{};
      copy.destination = some_address();
      copy.source = some_address();
      copy.size_bytes = some_size() / 2;
      copy.destination_space = static_cast<proto::MemorySpace>(random_() % 16 == 0 ? random_() % 4 : 0);
      copy.source_space = static_cast<proto::MemorySpace>(random_() % 16 == 0 ? random_() % 4 : 0);
      copy.flags.set(proto::CopyFlag::before_all_later, random_() % 2 == 0);
      return add(copy, stream);
    }
    case 0x800a: return add(proto::FillRecord{some_address(), some_size(), some_size() / 16, 1 + random_() % 3, 7, 1u << random_() % 3}, stream);
    case 0x800b: return add(proto::ChunkCreateRecord{random_() % 4 == 0 ? random_() : kChunkBytes}, {});
    case 0x800c: return add(proto::ChunkReleaseRecord{random_() % 2 == 0 ? random_() : scenery_.chunk + kChunkBytes * (1 + random_() % 8)}, {});
    case 0x800d: return add(proto::SegmentMapRecord{random_() % 8, 0, 0}, {});
    case 0x800e: return add(proto::SegmentUnmapRecord{random_() % 8}, {});
    case 0x800f: return add(proto::ModuleLoadRecord{module, random_() % 8, false, {}}, {});
    case 0x8010: return add(proto::ModuleUnloadRecord{module}, {});
    case 0x8011: return add(proto::FunctionLookupRecord{module, function}, {}, random_() % 40);
    case 0x8012: return add(proto::FunctionListRecord{module, static_cast<std::uint32_t>(random_() % 100), 0}, {});
    case 0x8013: return add(proto::GlobalLookupRecord{module}, {}, random_() % 40);
    case 0x8014:
      return add(
          proto::FunctionSetAttributeRecord{function, static_cast<std::int32_t>(random_() % 16), static_cast<std::int32_t>(random_() % 100'000)}, {});
    case 0x8015: return add(proto::EventElapsedRecord{event, event}, {});
    case 0x8016: return add(proto::MemoryInfoRecord{}, {});
    case 0x8017: return add(proto::OccupancyRecord{function, static_cast<proto::OccupancyQuestion>(random_() % 3), 32, 0, 0, 1}, {});
    case 0x8018: return add(proto::ReleaseRecord{}, {});
    case 0x801b: return add(proto::LeaseUseRecord{random_()}, {});
    case 0x801c: return add(proto::LeaseEndRecord{random_() % 2 == 0 ? random_() : scenery_.chunk}, {});
    default: return add(proto::FenceRecord{1, 0}, stream);
  }
}

std::uint64_t RecordMaker::some_place(std::uint64_t space) {
  const std::uint64_t own = space == 0 ? scenery_.chunk : space == 1 ? scenery_.pinned : 0;
  if (is_tame() && space < 2) return own + random_() % (space == 0 ? kChunkBytes / 2 : kSegmentBytes / 2) / 64 * 64;
  switch (random_() % 32) {
    case 0: return random_();
    case 1: return scenery_.foreign_chunk + random_() % kChunkBytes;
    case 2: return scenery_.foreign_chunk - own;
    case 3: return own - 1;
    case 4: return scenery_.foreign_buffer + random_() % kExternalBytes;
    case 5:
    case 6: return scenery_.buffer + random_() % kExternalBytes;
    default: return own + random_() % (space == 0 ? kChunkBytes : kSegmentBytes);
  }
}

std::uint64_t RecordMaker::some_count(std::uint64_t usual) {
  if (is_tame()) return usual;
  switch (random_() % 24) {
    case 0: return 0;
    case 1: return 1;
    case 2: return random_();
    case 3: return ~std::uint64_t{0} - random_() % 4;
    case 4: return std::uint64_t{1} << random_() % 64;
    case 5: return scenery_.foreign_chunk - scenery_.chunk;
    default: return random_() % 2 == 0 ? usual : 1 + random_() % usual;
  }
}

void RecordMaker::add_external() {
  const auto memory = proto::ExternalMemoryId::make(static_cast<std::uint32_t>(random_() % 4 == 0 ? random_() % 3 : 0), 1);
  const std::uint64_t offset = random_() % 2 == 0 ? 0 : some_count(kExternalBytes);
  switch (random_() % 16) {
    case 0: return add(proto::ExternalReleaseRecord{memory}, {});
    case 1: return add(proto::ExternalUnmapRecord{random_() % 4 == 0 ? some_place(0) : scenery_.buffer}, {});
    case 2:
    case 3:
    case 4: {
      proto::ExternalMapArrayRecord map{};
      map.memory = memory;
      map.array = proto::ArrayId::make(static_cast<std::uint32_t>(3 + random_() % 8), 1);
      map.offset = offset;
      map.width = some_count(64);
      map.height = some_count(64);
      map.depth = some_count(4);
      map.format = random_() % 4 == 0 ? static_cast<std::uint32_t>(random_() % 40) : static_cast<std::uint32_t>(CU_AD_FORMAT_FLOAT);
      map.channels = static_cast<std::uint32_t>(random_() % 8 == 0 ? random_() : 1 + random_() % 4);
      map.flags = static_cast<std::uint32_t>(random_() % 4 == 0 ? random_() : 0);
      map.levels = static_cast<std::uint32_t>(random_() % 8 == 0 ? random_() : random_() % 8);
      return add(map, {});
    }
    case 5: return add(proto::ExternalImportRecord{memory, some_count(kExternalBytes), 0, 0}, {});
    default: return add(proto::ExternalMapRecord{memory, offset, some_count(kExternalBytes), 0, 0}, {});
  }
}

void RecordMaker::add_memory(proto::StreamId stream) {
  const auto space = [&] { return static_cast<proto::MemorySpace>(random_() % 32 == 0 ? random_() % 5 : random_() % 3); };
  const auto memory = proto::MemoryId::make(static_cast<std::uint32_t>(random_() % 3), 1);
  const std::uint64_t range = scenery_.chunk + kChunkBytes * (1 + random_() % 8);
  switch (random_() % 13) {
    case 12: return add_external();
    case 0: {
      proto::CopyRecord copy{};
      copy.destination_space = space();
      copy.source_space = space();
      copy.destination = some_place(proto::number_in(copy.destination_space));
      copy.source = some_place(proto::number_in(copy.source_space));
      copy.size_bytes = some_count(4096);
      return add(copy, stream);
    }
    case 1: {
      proto::CopyBoxRecord box{};
      box.destination_space = space();
      box.source_space = space();
      box.destination = some_place(proto::number_in(box.destination_space));
      box.source = some_place(proto::number_in(box.source_space));
      box.width = some_count(64);
      box.height = some_count(8);
      box.depth = some_count(2);
      box.destination_pitch = some_count(128);
      box.source_pitch = some_count(128);
      box.destination_rows = some_count(16);
      box.source_rows = some_count(16);
      return add(box, stream);
    }
    case 2:
    case 3: return add_array_copy(stream);
    case 4: return add(proto::FillRecord{some_place(random_() % 2), some_count(256), some_count(64), some_count(8), 7, 1u << random_() % 3}, stream);
    case 5:
      if (random_() % 4 == 0) {
        const std::uint32_t number = random_() % 8 == 0 ? 1 : 0;  // one that nobody completes holds its stream to the end
        return add(
            proto::StreamWaitSharedEventRecord{some_place(random_() % 8 == 0 ? 0 : 1) & ~std::uint64_t{7}, number, random_() % 2 == 0 ? 1u : 0u},
            stream);
      }
      return add(proto::StreamWaitValueRecord{some_place(random_() % 2) & ~std::uint64_t{7}, 0, random_() % 2 == 0 ? 4u : 8u,
                                              static_cast<std::uint32_t>(random_() % 4)},
                 stream);
    case 6:
      return add(proto::StreamWriteValueRecord{some_place(random_() % 2) & ~std::uint64_t{random_() % 8}, random_(),
                                               random_() % 2 == 0 ? proto::StreamWrite::value_32 : static_cast<proto::StreamWrite>(random_() % 6), 0},
                 stream);
    case 7: return add(proto::RangeReserveRecord{some_count(4) * kChunkBytes, kChunkBytes, random_() % 2 == 0 ? 0 : range}, {});
    case 8: return add(proto::MemoryCreateRecord{memory, kChunkBytes}, {});
    case 9: return add(proto::MappingCreateRecord{random_() % 8 == 0 ? random_() : range, kChunkBytes, memory, 1, 0}, {});
    case 10: {
      const std::uint64_t place = random_() % 8 == 0 ? random_() : range;
      switch (random_() % 3) {
        case 0: return add(proto::MappingAccessRecord{place, some_count(2) * kChunkBytes, random_() % 2 == 0, 0}, {});
        case 1: return add(proto::MappingEndRecord{place}, {});
        default: return add(proto::RangeFreeRecord{place, some_count(4) * kChunkBytes}, {});
      }
    }
    default: return add_graph(stream);
  }
}

}  // namespace mpsshim::fuzz
