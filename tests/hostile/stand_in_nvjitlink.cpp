// SPDX-License-Identifier: Apache-2.0
// A library with nvJitLink's interface, for a broker on the CPU driver, whose machine code is PTX: it gives the texts back, as that driver's linker
// does, in a container of fat binaries. A text without an entry is an error to it.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace {

constexpr int kSuccess = 0, kPtxError = 4, kUnknownInput = 8;
constexpr int kText = 2;

struct Linker {
  std::string entries;
  std::string code;
  std::string error;
};

template <typename Number>
void append(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void append_text(std::string& entries, std::string text) {
  text.resize((text.size() + 1 + 7) / 8 * 8);
  append(entries, std::uint16_t{1});
  append(entries, std::uint16_t{0x101});
  append(entries, std::uint32_t{64});
  append(entries, std::uint64_t{text.size()});
  append(entries, std::uint64_t{0});  // not compressed, no options
  append(entries, std::uint32_t{0x00090000});
  append(entries, std::uint32_t{75});
  append(entries, std::uint64_t{0});
  append(entries, std::uint64_t{0x11});
  append(entries, std::uint64_t{0});
  append(entries, std::uint64_t{0});
  entries += text;
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] int nvJitLinkVersion(unsigned* major, unsigned* minor) {
  *major = 13;
  *minor = 0;
  return kSuccess;
}

[[gnu::visibility("default")]] int nvJitLinkCreate(Linker** linker, std::uint32_t count, const char* const* options) {
  for (std::uint32_t i = 0; i < count; ++i) {
    if (std::strncmp(options[i], "-arch=sm_", 9) != 0) continue;
    *linker = new Linker;
    return kSuccess;
  }
  return 2;  // no architecture
}

[[gnu::visibility("default")]] int nvJitLinkDestroy(Linker** linker) {
  delete *linker;
  *linker = nullptr;
  return kSuccess;
}

[[gnu::visibility("default")]] int nvJitLinkAddData(Linker* linker, int kind, const void* data, std::size_t bytes, const char* name) {
  if (kind != kText) return kUnknownInput;
  const std::string text(static_cast<const char*>(data), strnlen(static_cast<const char*>(data), bytes));
  if (text.find(".entry") == std::string::npos) {
    linker->error = std::string(name) + ": the stand-in finds no entry";
    return kPtxError;
  }
  append_text(linker->entries, text);
  return kSuccess;
}

[[gnu::visibility("default")]] int nvJitLinkComplete(Linker* linker) {
  linker->code.clear();
  append(linker->code, std::uint32_t{0xba55ed50});
  append(linker->code, std::uint16_t{1});
  append(linker->code, std::uint16_t{16});
  append(linker->code, std::uint64_t{linker->entries.size()});
  linker->code += linker->entries;
  return kSuccess;
}

[[gnu::visibility("default")]] int nvJitLinkGetLinkedCubinSize(Linker* linker, std::size_t* bytes) {
  *bytes = linker->code.size();
  return kSuccess;
}

[[gnu::visibility("default")]] int nvJitLinkGetLinkedCubin(Linker* linker, void* code) {
  std::memcpy(code, linker->code.data(), linker->code.size());
  return kSuccess;
}

[[gnu::visibility("default")]] int nvJitLinkGetErrorLogSize(Linker* linker, std::size_t* bytes) {
  *bytes = linker->error.empty() ? 0 : linker->error.size() + 1;
  return kSuccess;
}

[[gnu::visibility("default")]] int nvJitLinkGetErrorLog(Linker* linker, char* text) {
  std::memcpy(text, linker->error.c_str(), linker->error.size() + 1);
  return kSuccess;
}

[[gnu::visibility("default")]] int nvJitLinkGetInfoLogSize(Linker*, std::size_t* bytes) {
  *bytes = 0;
  return kSuccess;
}

[[gnu::visibility("default")]] int nvJitLinkGetInfoLog(Linker*, char*) { return kSuccess; }
}
