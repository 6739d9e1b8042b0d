// SPDX-License-Identifier: Apache-2.0
// What the compiler process, the executor and the interposer read from module images: fatbin containers, cubins, PTX text; and what linker processes
// are asked and answer. The first byte of an input
// says as which of them the rest is read (what form_of() says is tried too). Under the sanitizers each read outside is found; here nothing may
// allocate beyond its limit or go on for ever.
#include <cstring>
#include <string_view>

#include <elf.h>

#include "broker/compiler/prepare_image.hpp"
#include "broker/linker/link_file.hpp"
#include "proto/image/check.hpp"
#include "proto/image/cubin.hpp"
#include "proto/image/fatbin.hpp"
#include "proto/image/image.hpp"
#include "proto/image/managed.hpp"
#include "proto/image/ptx_text.hpp"
#include "tests/fuzz/support/fuzz_target.hpp"

using namespace mpsshim;
using namespace mpsshim::fuzz;

namespace {

constexpr std::size_t kUnpackLimit = 1u << 20;
std::uint64_t records = 0;

void read_container(std::span<const std::byte> bytes) {
  std::vector<image::FatbinEntry> entries;
  (void)image::fatbin_bytes(bytes);
  (void)image::read_fatbin(bytes, entries);
  for (const image::FatbinEntry& entry : entries) {
    require(entry.payload.data() >= bytes.data() && entry.payload.data() + entry.payload.size() <= bytes.data() + bytes.size(),
            "an entry lies outside");
    std::vector<std::byte> unpacked;
    require(image::unpack(entry, kUnpackLimit, unpacked) != image::UnpackError::none || unpacked.size() <= kUnpackLimit,
            "more is unpacked than the limit");
  }
}

void read_text(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  (void)image::looks_like_ptx(text);
  (void)image::ptx_has_writable_globals(text);
  (void)image::ptx_variables(text);
  (void)image::ptx_adds_for_system(text);
  std::vector<image::Placement> placements;
  for (const image::ManagedVariable& variable : image::managed_of_ptx(text)) placements.push_back({variable.name, 0x2000'0000'1000});
  (void)image::place_in_ptx(text, placements);
}

void read_machine_code(std::span<const std::byte> bytes) {
  (void)image::read_cubin(bytes);
  std::vector<std::byte> cubin(bytes.begin(), bytes.end());
  std::vector<image::Placement> placements;
  for (const image::ManagedVariable& variable : image::managed_of_cubin(cubin)) placements.push_back({variable.name, 0x2000'0000'1000});
  std::string why;
  (void)image::place_in_cubin(cubin, placements, why);
}

// As the compiler process does it.
void prepare(const std::vector<std::byte>& bytes, bool runs_texts) {
  const broker::ImageBytes image{std::vector<std::byte>(bytes)};
  broker::PreparedImage prepared;
  std::string log;
  const CUresult status = broker::prepare_image(image, {90, runs_texts, false}, prepared, log);
  std::size_t unpacked = 0;
  for (const broker::LinkInput& input : prepared.inputs) unpacked += input.bytes.size();
  require(unpacked <= 2 * broker::kAnyGrowthBytes, "more is unpacked than an image may grow to");
  require(status != CUDA_SUCCESS || !prepared.content.empty() || !prepared.inputs.empty(), "an image came to nothing");
}

void require_within(const broker::ImageBytes& part, const broker::ImageBytes& file) {
  require(part.empty() || (part.data() >= file.data() && part.data() + part.size() <= file.data() + file.size()), "a part lies outside of its file");
}

void read_link_files(const std::vector<std::byte>& bytes) {
  const broker::ImageBytes file{std::vector<std::byte>(bytes)};
  broker::LinkRequest request;
  if (broker::read_request(file, request)) {
    require(request.steps.size() <= broker::kMaxLinkSteps, "more steps than the limit");
    for (const broker::LinkStep& step : request.steps) {
      require_within(step.bytes, file);
      for (const broker::JitOption& option : step.options) {
        require(broker::is_plain_option(static_cast<std::uint32_t>(option.option)), "an option is an address");
      }
    }
  }
  broker::LinkOutcome outcome;
  if (!broker::read_outcome(file, outcome)) return;
  require_within(outcome.code, file);
  require(outcome.error_log.size() < broker::kLinkLogBytes && outcome.info_log.size() < broker::kLinkLogBytes, "a log is too long");
}

// A description of small numbers, some of them read as sizes, some as places, and what they may lead to.
Input make_link_file(Random& random) {
  Input input;
  append(input, random() % 2 == 0 ? broker::kRequestMagic : broker::kOutcomeMagic);
  const std::uint64_t numbers = random() % 40;
  append(input, random() % 8 == 0 ? random() % 512 : numbers * 8);
  for (std::uint64_t i = 0; i < numbers; ++i) append(input, random() % 16 == 0 ? random() : random() % (random() % 4 == 0 ? 64 : 3));
  input.resize(input.size() + random() % 256);
  return input;
}

// An ELF file of a few sections whose tables hold together.
Input make_elf(Random& random) {
  const char names[] = "\0.shstrtab\0.nv.info.kernel\0.text.kernel\0.symtab\0.strtab\0.nv.global\0.nv.constant3";
  const std::size_t sections = 4 + random() % 5;
  const std::size_t body = 64 + random() % 256;
  Input input(sizeof(Elf64_Ehdr) + sizeof names + body + sections * sizeof(Elf64_Shdr));
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_EXEC;
  header.e_machine = 190;  // EM_CUDA
  header.e_version = EV_CURRENT;
  header.e_ehsize = sizeof header;
  header.e_shoff = sizeof header + sizeof names + body;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = static_cast<Elf64_Half>(sections);
  header.e_shstrndx = 1;
  std::memcpy(input.data(), &header, sizeof header);
  std::memcpy(input.data() + sizeof header, names, sizeof names);
  for (std::size_t i = 0; i < body; ++i)
    input[sizeof header + sizeof names + i] = static_cast<std::uint8_t>(random() % 3 != 0 ? random() % 24 : random());
  for (std::size_t i = 1; i < sections; ++i) {
    Elf64_Shdr section{};
    section.sh_name = i == 1 ? 1 : static_cast<Elf64_Word>(random() % sizeof names);
    static constexpr Elf64_Word kTypes[] = {SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_NOBITS, 0x70000000};
    section.sh_type = i == 1 ? SHT_STRTAB : kTypes[random() % std::size(kTypes)];
    section.sh_offset = i == 1 ? sizeof header : sizeof header + sizeof names + random() % body;
    section.sh_size = i == 1 ? sizeof names : random() % body;
    section.sh_link = static_cast<Elf64_Word>(random() % sections);
    section.sh_info = static_cast<Elf64_Word>(random() % 4);
    section.sh_entsize = section.sh_type == SHT_SYMTAB ? sizeof(Elf64_Sym) : 0;
    std::memcpy(input.data() + header.e_shoff + i * sizeof section, &section, sizeof section);
  }
  return input;
}

Input make_text(Random& random) {
  static constexpr const char* kWords[] = {".version 8.0\n",
                                           ".target sm_80\n",
                                           ".address_size 64\n",
                                           ".visible ",
                                           ".global ",
                                           ".const ",
                                           ".align 4 ",
                                           ".u32 ",
                                           ".b8 ",
                                           "name",
                                           "[4]",
                                           " = {1, 2}",
                                           ";\n",
                                           "{",
                                           "}",
                                           "// note\n",
                                           "/*",
                                           "*/",
                                           "\"text\"",
                                           ".entry k(",
                                           ".param .u64 p)",
                                           ".extern ",
                                           "$str",
                                           "\0"};
  std::string text = ".version 8.0\n.target sm_80\n";
  for (std::uint64_t words = random() % 100; words > 0; --words) text += kWords[random() % std::size(kWords)];
  return {text.begin(), text.end()};
}

// A container whose entries hold texts and ELF files, some said to be packed.
Input make_container(Random& random) {
  Input entries;
  for (std::uint64_t count = random() % 4; count > 0; --count) {
    Input payload = random() % 2 == 0 ? make_elf(random) : make_text(random);
    payload.resize((payload.size() + 7) / 8 * 8);
    std::uint32_t words[16] = {};
    words[0] = static_cast<std::uint32_t>(1 + random() % 2) | 0x01010000;  // kind and version
    words[1] = sizeof words;
    words[2] = static_cast<std::uint32_t>(payload.size());
    words[7] = 80;
    words[10] = static_cast<std::uint32_t>(random() % 4 == 0 ? random() : 0x11);
    words[14] = static_cast<std::uint32_t>(random() % 4096);
    for (const std::uint32_t word : words) append(entries, word);
    entries.insert(entries.end(), payload.begin(), payload.end());
  }
  Input input;
  append(input, image::kFatbinMagic);
  append(input, std::uint16_t{1});
  append(input, static_cast<std::uint16_t>(image::kFatbinHeaderBytes));
  append(input, std::uint64_t{entries.size()});
  input.insert(input.end(), entries.begin(), entries.end());
  return input;
}

}  // namespace

namespace mpsshim::fuzz {

Input make_input(Random& random) {
  const auto kind = static_cast<std::uint8_t>(random() % 4);
  Input input = kind == 0 ? make_container(random) : kind == 1 ? make_elf(random) : kind == 2 ? make_text(random) : make_link_file(random);
  input.insert(input.begin(), kind);
  return input;
}

std::uint64_t records_so_far() { return records; }
void finish() {}

}  // namespace mpsshim::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  ++records;
  // A copy whose last byte is the allocation's last.
  const std::vector<std::byte> exact(reinterpret_cast<const std::byte*>(data) + 1, reinterpret_cast<const std::byte*>(data) + size);
  const std::span<const std::byte> bytes(exact);
  require(image::length_of(bytes) <= bytes.size(), "an image is longer than its bytes");
  read_link_files(exact);
  switch (data[0] % 4) {
    case 0: read_container(bytes); break;
    case 1: read_machine_code(bytes); break;
    case 2: read_text(bytes); break;
    default: return 0;
  }
  for (const bool runs_texts : {false, true}) prepare(exact, runs_texts);
  switch (image::form_of(bytes)) {
    case image::Form::fatbin: read_container(bytes); break;
    case image::Form::elf: read_machine_code(bytes); break;
    case image::Form::ptx: read_text(bytes); break;
    case image::Form::unknown:
    case image::Form::fatbin_wrapper:
    case image::Form::archive: break;
  }
  return 0;
}
