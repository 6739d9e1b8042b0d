// SPDX-License-Identifier: Apache-2.0
#include "broker/compiler/prepared_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string_view>

#include <unistd.h>

#include "broker/image/image.hpp"
#include "proto/file_size_limit.hpp"

namespace mpsshim::broker {

namespace {

using Bytes = std::span<const std::byte>;

constexpr std::uint64_t kMagic = 0x3144455041525045;
constexpr std::size_t kAlignment = 64;  // of what drivers read
constexpr std::size_t kMaxLogBytes = 8 * 1024;

enum class Source : std::uint64_t { none, image, file };

struct Header {
  std::uint64_t magic = kMagic;
  std::uint64_t description_bytes = 0;  // behind the header
};

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool lies_in(Bytes part, Bytes whole) {
  const std::less_equal<> is_before;
  return is_before(whole.data(), part.data()) && is_before(part.data() + part.size(), whole.data() + whole.size());
}

// Numbers and names, one behind the other.
class Writer {
 public:
  explicit Writer(Bytes image) : image_(image) {}

  void number(std::uint64_t value) {
    const auto raw = std::as_bytes(std::span(&value, 1));
    description_.insert(description_.end(), raw.begin(), raw.end());
  }
  void text(std::string_view text) {
    number(text.size());
    const auto raw = std::as_bytes(std::span(text.data(), text.size()));
    description_.insert(description_.end(), raw.begin(), raw.end());
  }
  void bytes(Bytes bytes) { text({reinterpret_cast<const char*>(bytes.data()), bytes.size()}); }
  // Where they are: the parts of the file are counted from behind the description.
  void place(Bytes bytes) {
    const bool is_of_image = !bytes.empty() && lies_in(bytes, image_);
    const Source source = bytes.empty() ? Source::none : is_of_image ? Source::image : Source::file;
    number(static_cast<std::uint64_t>(source));
    number(is_of_image ? static_cast<std::uint64_t>(bytes.data() - image_.data()) : parts_bytes_);
    number(bytes.size());
    if (source != Source::file) return;
    parts_.push_back(bytes);
    parts_bytes_ += aligned(bytes.size());
  }

  [[nodiscard]] proto::FileDescriptor write() const {
    const Header header{kMagic, description_.size()};
    if (description_.size() > kMaxDescriptionBytes) return errno = EFBIG, proto::FileDescriptor();
    std::size_t at = aligned(sizeof header + description_.size());
    proto::FileDescriptor file = proto::create_memory_file("mpsshim-prepared", at + parts_bytes_);
    bool is_written = file.valid() && put(file, 0, std::as_bytes(std::span(&header, 1))) && put(file, sizeof header, description_);
    for (const Bytes part : parts_) {
      is_written = is_written && put(file, at, part);
      at += aligned(part.size());
    }
    if (!is_written || !proto::seal(file, proto::Seal::content)) file.reset();
    return file;
  }

 private:
  static bool put(const proto::FileDescriptor& file, std::size_t offset, Bytes bytes) {
    const proto::NoFileSizeSignal hold;
    while (!bytes.empty()) {
      const ssize_t written = pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (written <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      offset += static_cast<std::size_t>(written);
    }
    return true;
  }

  const Bytes image_;
  std::vector<std::byte> description_;
  std::vector<Bytes> parts_;
  std::size_t parts_bytes_ = 0;
};

class Reader {
 public:
  Reader(Bytes description, const ImageBytes& file, std::size_t parts_at, const ImageBytes& image)
      : rest_(description), file_(file), parts_at_(parts_at), image_(image) {}

  [[nodiscard]] bool ok() const { return ok_; }

  std::uint64_t number() {
    std::uint64_t value = 0;
    const Bytes raw = take(sizeof value);
    if (ok_) std::memcpy(&value, raw.data(), sizeof value);
    return value;
  }
  bool flag() { return number() != 0; }
  Bytes bytes() { return take(number()); }
  std::string text() {
    const Bytes raw = bytes();
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }
  // Of things of which each takes a number at least.
  std::uint64_t count() {
    const std::uint64_t count = number();
    if (count > rest_.size() / sizeof(std::uint64_t)) ok_ = false;
    return ok_ ? count : 0;
  }
  ImageBytes place() {
    const std::uint64_t source = number();
    const std::uint64_t offset = number();
    const std::uint64_t size = number();
    switch (static_cast<Source>(source)) {
      case Source::none: return {};
      case Source::image: return part(image_, 0, offset, size);
      case Source::file: return part(file_, parts_at_, offset, size);
    }
    ok_ = false;
    return {};
  }

 private:
  Bytes take(std::uint64_t size) {
    if (!ok_ || size > rest_.size()) {
      ok_ = false;
      return {};
    }
    const Bytes taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }
  ImageBytes part(const ImageBytes& whole, std::size_t from, std::uint64_t offset, std::uint64_t size) {
    const Bytes bytes = whole.bytes().subspan(std::min(from, whole.size()));
    if (!ok_ || offset > bytes.size() || size > bytes.size() - offset || size == 0) {
      ok_ = false;
      return {};
    }
    return whole.part(bytes.subspan(offset, size));
  }

  Bytes rest_;
  const ImageBytes& file_;
  const std::size_t parts_at_;
  const ImageBytes& image_;
  bool ok_ = true;
};

void write_variable(Writer& writer, const image::Variable& variable) {
  writer.text(variable.name);
  writer.number(variable.starts_as_zeroes ? 1 : 0);
  writer.number(variable.section);
  writer.number(variable.offset_bytes);
  writer.number(variable.size_bytes);
}

image::Variable read_variable(Reader& reader) {
  image::Variable variable;
  variable.name = reader.text();
  variable.starts_as_zeroes = reader.flag();
  variable.section = static_cast<std::uint32_t>(reader.number());
  variable.offset_bytes = reader.number();
  variable.size_bytes = reader.number();
  return variable;
}

// Names go to the driver as texts with an end.
bool has_end_within(const std::string& name) { return name.find('\0') != std::string::npos; }

std::string as_line(std::string text) {
  text.resize(std::min(text.size(), kMaxLogBytes));
  std::ranges::replace_if(
      text, [](char c) { return (static_cast<unsigned char>(c) < ' ' && c != '\t') || c == '\x7f'; }, ' ');
  return text;
}

}  // namespace

proto::FileDescriptor write_prepared(const Preparation& preparation, const ImageBytes& image) {
  Writer writer(image.bytes());
  const PreparedImage& prepared = preparation.image;
  writer.number(static_cast<std::uint64_t>(preparation.status));
  writer.text(as_line(preparation.log));
  writer.place(prepared.content.bytes());
  writer.number(prepared.inputs.size());
  for (const LinkInput& input : prepared.inputs) {
    writer.number(static_cast<std::uint64_t>(input.type));
    writer.place(input.bytes.bytes());
  }
  writer.bytes(prepared.prefix);
  for (const bool flag : {prepared.has_writable_globals, prepared.uses_device_heap, prepared.all_may_use_device_heap, prepared.takes_code_addresses, prepared.has_references,
                          prepared.all_may_print, prepared.variables.has_value()}) {
    writer.number(flag ? 1 : 0);
  }
  writer.number(prepared.heap_kernels.size());
  for (const std::string& name : prepared.heap_kernels) writer.text(name);
  writer.number(prepared.printing_kernels.size());
  for (const std::string& name : prepared.printing_kernels) writer.text(name);
  writer.number(prepared.variables ? prepared.variables->size() : 0);
  if (prepared.variables) {
    for (const image::Variable& variable : *prepared.variables) write_variable(writer, variable);
  }
  writer.number(prepared.managed.size());
  for (const image::ManagedVariable& variable : prepared.managed) {
    writer.text(variable.name);
    writer.number(variable.size_bytes);
    writer.number(variable.starts_as_zeroes ? 1 : 0);
  }
  writer.number(prepared.placed.size());
  for (const image::Variable& variable : prepared.placed) write_variable(writer, variable);
  return writer.write();
}

ImageBytes map_sealed(const proto::FileDescriptor& file) {
  const auto size = proto::sealed_size(file);
  if (!size || *size == 0 || !proto::is_sealed(file, proto::Seal::given_content)) return {};
  auto mapping = std::make_shared<proto::Mapping>(proto::Mapping::map(file, 0, *size, proto::Access::read_only));
  if (!*mapping) return {};
  const Bytes bytes(mapping->data(), *size);
  return {bytes, std::move(mapping)};
}

bool read_prepared(const proto::FileDescriptor& descriptor, const ImageBytes& image, Preparation& preparation) {
  preparation = {};
  const ImageBytes file = map_sealed(descriptor);
  Header header;
  if (file.size() < sizeof header) return false;
  std::memcpy(&header, file.data(), sizeof header);
  const std::size_t room = file.size() - sizeof header;
  if (header.magic != kMagic || header.description_bytes > std::min(room, kMaxDescriptionBytes)) return false;
  Reader reader(file.bytes().subspan(sizeof header, header.description_bytes), file, aligned(sizeof header + header.description_bytes), image);
  PreparedImage& prepared = preparation.image;
  preparation.status = static_cast<CUresult>(reader.number());
  preparation.log = as_line(reader.text());
  prepared.content = reader.place();
  for (std::uint64_t left = reader.count(); left > 0 && reader.ok(); --left) {
    LinkInput& input = prepared.inputs.emplace_back();
    input.type = static_cast<CUjitInputType>(reader.number());
    input.bytes = reader.place();
    if (input.type != CU_JIT_INPUT_PTX && input.type != CU_JIT_INPUT_CUBIN) return false;
    if (input.bytes.empty() || (input.type == CU_JIT_INPUT_PTX && input.bytes.bytes().back() != std::byte{0})) return false;
  }
  const Bytes prefix = reader.bytes();
  prepared.prefix.assign(prefix.begin(), prefix.end());
  prepared.has_writable_globals = reader.flag();
  prepared.uses_device_heap = reader.flag();
  prepared.all_may_use_device_heap = reader.flag();
  prepared.takes_code_addresses = reader.flag();
  prepared.has_references = reader.flag();
  prepared.all_may_print = reader.flag();
  if (reader.flag()) prepared.variables.emplace();
  bool are_names = true;
  const auto note = [&](const std::string& name) { are_names = are_names && !has_end_within(name); };
  for (std::uint64_t left = reader.count(); left > 0 && reader.ok(); --left) prepared.heap_kernels.insert(reader.text());
  for (std::uint64_t left = reader.count(); left > 0 && reader.ok(); --left) prepared.printing_kernels.insert(reader.text());
  for (std::uint64_t left = reader.count(); left > 0 && reader.ok(); --left) {
    if (!prepared.variables) return false;
    note(prepared.variables->emplace_back(read_variable(reader)).name);
  }
  for (std::uint64_t left = reader.count(); left > 0 && reader.ok(); --left) {
    image::ManagedVariable& variable = prepared.managed.emplace_back();
    variable.name = reader.text();
    variable.size_bytes = reader.number();
    variable.starts_as_zeroes = reader.flag();
    note(variable.name);
  }
  for (std::uint64_t left = reader.count(); left > 0 && reader.ok(); --left) note(prepared.placed.emplace_back(read_variable(reader)).name);
  if (!reader.ok() || !are_names) return false;
  if (preparation.status != CUDA_SUCCESS) return true;
  return prepared.content.empty() || ends_within(prepared.content);
}

bool ends_within(const ImageBytes& content) {
  switch (image::form_of(content.bytes())) {
    case image::Form::elf:
    case image::Form::fatbin: return image::length_of(content.bytes()) != 0;
    case image::Form::ptx: return content.bytes().back() == std::byte{0};
    case image::Form::fatbin_wrapper:
    case image::Form::archive:
    case image::Form::unknown: return false;
  }
  return false;
}

}  // namespace mpsshim::broker
