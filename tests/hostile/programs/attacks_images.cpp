// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include "tests/hostile/programs/attacks.hpp"

namespace mpsshim::test {

namespace {

constexpr std::uint32_t kFatbinMagic = 0xba55ed50;
constexpr std::uint64_t kZstdEntry = 0x8000;
constexpr std::size_t kBlockBytes = 128u << 10;  // of zstd, at most

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// A zstd frame of nothing but blanks: four bytes say 128 KiB.
std::string packed_blanks(std::size_t unpacked_bytes) {
  std::string frame("\x28\xb5\x2f\xfd\xa0", 5);
  append(frame, static_cast<std::uint32_t>(unpacked_bytes));
  for (std::size_t left = unpacked_bytes; left > 0;) {
    const std::size_t block = std::min(left, kBlockBytes);
    left -= block;
    const auto header = static_cast<std::uint32_t>((block << 3) | 2 | (left == 0 ? 1 : 0));
    frame.append(reinterpret_cast<const char*>(&header), 3);
    frame += ' ';
  }
  return frame;
}

// A zstd frame that has its content as it is.
std::string stored_frame(const std::string& content) {
  std::string frame("\x28\xb5\x2f\xfd\xa0", 5);
  append(frame, static_cast<std::uint32_t>(content.size()));
  for (std::size_t at = 0; at < content.size();) {
    const std::size_t block = std::min(content.size() - at, kBlockBytes);
    const auto header = static_cast<std::uint32_t>((block << 3) | (at + block == content.size() ? 1 : 0));
    frame.append(reinterpret_cast<const char*>(&header), 3).append(content, at, block);
    at += block;
  }
  return frame;
}

std::string container(const std::string& entries) {
  std::string bytes;
  append(bytes, kFatbinMagic);
  append(bytes, std::uint16_t{1});
  append(bytes, std::uint16_t{16});
  append(bytes, std::uint64_t{entries.size()});
  return bytes + entries;
}

// A PTX text in a container, which says that it is `says_bytes` long.
std::string text_entry(std::string packed, std::uint64_t says_bytes) {
  std::string entry;
  const auto compressed = static_cast<std::uint32_t>(packed.size());
  packed.resize((packed.size() + 7) / 8 * 8);
  append(entry, std::uint16_t{1});
  append(entry, std::uint16_t{0x101});
  append(entry, std::uint32_t{64});
  append(entry, std::uint64_t{packed.size()});
  append(entry, compressed);
  append(entry, std::uint32_t{0});
  append(entry, std::uint32_t{0x00090000});
  append(entry, std::uint32_t{50});
  append(entry, std::uint64_t{0});
  append(entry, kZstdEntry | 0x11);
  append(entry, std::uint64_t{0});
  append(entry, says_bytes);
  return entry + packed;
}

std::string load(Hostile& hostile, const std::string& image) {
  RawSession& session = hostile.own();
  static std::uint32_t number = 0;
  const auto id = proto::ModuleId::make(0, ++number);
  const RawReply loaded = session.call(proto::ModuleLoadRecord{id, session.make_image(image), false, {}});
  if (loaded.status == 0) session.post(proto::ModuleUnloadRecord{id});
  return std::to_string(loaded.status);
}

}  // namespace

std::string image(Hostile& hostile, const std::string& what, int count) {
  std::string statuses = "ok";
  for (int i = 0; i < count; ++i) {
    const std::string text = "//" + std::to_string(hostile.random()) + " mpsshim-test:" + what +
                             "\n.version 7.0\n.target sm_50\n.address_size 64\n.visible .entry nop()\n{\n  ret;\n}\n";
    statuses += " " + load(hostile, text);
  }
  return statuses;
}

std::string large_entry(Hostile& hostile, std::uint64_t says_bytes) {
  std::string packed = packed_blanks(std::size_t{1'100} << 20);  // some 38 KB
  append(packed, hostile.random());
  return "ok " + load(hostile, container(text_entry(packed, says_bytes)));
}

std::string many_objects(Hostile& hostile, int count) {
  std::string objects = container("");  // what the linker made ahead: nothing for this device
  std::string packed = packed_blanks(std::size_t{32} << 20);
  append(packed, std::uint32_t{0x184d2a50});  // a frame to be skipped: no other image has its content
  append(packed, std::uint32_t{8});
  append(packed, hostile.random());
  for (int i = 0; i < count; ++i) objects += container(text_entry(packed, std::uint64_t{32} << 20));
  return "ok " + load(hostile, objects);
}

std::string linked(Hostile& hostile, int count) {
  constexpr std::uint32_t kFatbinInput = 2;  // CU_JIT_INPUT_FATBINARY
  RawSession& session = hostile.own();
  std::string entries;
  const std::string entry = text_entry(packed_blanks(std::size_t{32} << 20), std::uint64_t{32} << 20);
  for (int i = 0; i < count; ++i) entries += entry;
  const std::string input = container(entries);
  const auto bytes = std::as_bytes(std::span(input));
  const auto id = proto::Id<proto::HandleKind::link_state>::make(0, 1);
  if (const RawReply created = session.call(proto::LinkCreateRecord{id, 0, 0}); created.status != 0) throw Failure("LinkCreate");
  constexpr std::size_t kPiece = 16u << 10;
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    session.post(proto::LinkDataRecord{id}, proto::kNullStream, bytes.subspan(at, std::min(kPiece, bytes.size() - at)));
  }
  const RawReply added = session.call(proto::LinkAddRecord{id, kFatbinInput, 0});
  return "ok " + std::to_string(added.status);
}

std::string new_images(Hostile& hostile, int count, std::size_t bytes) {
  std::chrono::nanoseconds loading{0};
  RawSession& session = hostile.own();
  for (int i = 0; i < count; ++i) {
    std::string text = "//" + std::to_string(hostile.random()) + "\n.version 7.0\n.target sm_50\n.address_size 64\n";
    for (int kernel = 0; kernel == 0 || text.size() < bytes; ++kernel) {
      text += ".visible .entry k" + std::to_string(kernel) + "()\n{\n  .reg .b32 %r<4>;\n  mov.u32 %r1, %tid.x;\n  add.s32 %r2, %r1, 7;\n  ret;\n}\n";
    }
    text += '\0';
    const std::uint64_t made = session.make_image(container(text_entry(stored_frame(text), text.size())));
    const auto id = proto::ModuleId::make(1, static_cast<std::uint32_t>(i + 1));
    const auto began = std::chrono::steady_clock::now();
    const RawReply loaded = session.call(proto::ModuleLoadRecord{id, made, false, {}});
    loading += std::chrono::steady_clock::now() - began;
    if (loaded.status != 0) throw Failure("ModuleLoad: " + std::to_string(loaded.status));
    session.post(proto::ModuleUnloadRecord{id});
  }
  return "ok " + std::to_string(loading.count() / 1000 / count);
}

}  // namespace mpsshim::test
