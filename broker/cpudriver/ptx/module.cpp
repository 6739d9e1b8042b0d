// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/ptx/module.hpp"

#include <cstring>
#include <new>

#include "broker/cpudriver/ptx/cooperative_groups.hpp"
#include "broker/cpudriver/ptx/decoder.hpp"
#include "broker/cpudriver/ptx/image.hpp"
#include "broker/cpudriver/ptx/parser.hpp"

namespace mpsshim::ptx {
namespace {

bool wants_cooperative_groups(const std::vector<ast::Text>& texts) {
  bool is_declared = false;
  for (const ast::Text& text : texts) {
    for (const ast::Function& function : text.functions) {
      if (function.name != kGridHandleFunction && function.name != kGridBarrierFunction) continue;
      if (function.has_body) return false;
      is_declared = true;
    }
  }
  return is_declared;
}

std::unique_ptr<Program> compile_texts(std::span<const std::string_view> ptx_texts, std::size_t& text_index) {
  std::vector<ast::Text> texts;
  for (text_index = 0; text_index < ptx_texts.size(); ++text_index) {
    texts.push_back(Parser(ptx_texts[text_index], static_cast<std::uint32_t>(text_index)).parse());
  }
  if (wants_cooperative_groups(texts)) texts.push_back(Parser(kCooperativeGroupsText, static_cast<std::uint32_t>(texts.size())).parse());
  text_index = 0;
  auto program = std::make_unique<Program>();
  Image image(texts, *program);
  RowPool pool(*program);
  for (std::uint32_t f = 0; f < image.functions().size(); ++f) {
    text_index = image.functions()[f].text;
    if (image.functions()[f].declaration->has_body) FunctionDecoder(image, pool, *program, f).decode();
  }
  image.resolve_initial_values();
  image.fill_kernels();
  pool.finish();
  return program;
}

}  // namespace

Module::Module(std::unique_ptr<Program> program) : program_(std::move(program)) {}
Module::~Module() = default;

const std::vector<KernelInfo>& Module::kernels() const { return program_->kernels; }
const std::vector<GlobalInfo>& Module::globals() const { return program_->globals; }

std::optional<std::uint32_t> Module::find_kernel(std::string_view name) const {
  for (std::uint32_t i = 0; i < program_->kernels.size(); ++i) {
    if (program_->kernels[i].name == name) return i;
  }
  return std::nullopt;
}

std::optional<std::uint32_t> Module::find_global(std::string_view name) const {
  std::optional<std::uint32_t> found;
  for (std::uint32_t i = 0; i < program_->globals.size(); ++i) {
    if (program_->globals[i].name != name) continue;
    if (program_->globals[i].is_visible) return i;
    if (!found) found = i;  // Whole-program compilation makes __device__ variables local; drivers find them too.
  }
  return found;
}

std::shared_ptr<const Module> compile(std::span<const std::string_view> ptx_texts, Error& error) {
  std::size_t text_index = 0;
  try {
    auto program = compile_texts(ptx_texts, text_index);
    error = Error{};
    return std::make_shared<const Module>(std::move(program));
  } catch (const LoadError& refused) {
    error = Error{refused.code, text_index, refused.line, "PTX line " + std::to_string(refused.line) + ": " + refused.text};
  } catch (const std::bad_alloc&) {
    error = Error{ErrorCode::out_of_memory, text_index, 0, "No memory to decode the PTX image"};
  }
  return nullptr;
}

ModuleInstance::ModuleInstance(std::shared_ptr<const Module> module, std::vector<std::uint64_t> global_addresses)
    : module_(std::move(module)), global_addresses_(std::move(global_addresses)), bindings_(std::make_unique<Bindings>()) {
  const Program& program = module_->program();
  bindings_->storage.resize(program.symbol_rows.size() * kLanes + 8);
  auto* row = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(symbol_rows(*bindings_)));
  for (const SymbolRow& symbol : program.symbol_rows) {
    const std::uint64_t address = global_addresses_.at(symbol.global) + static_cast<std::uint64_t>(symbol.addend);
    for (std::uint32_t i = 0; i < kLanes; ++i) *row++ = address;
  }
}
ModuleInstance::~ModuleInstance() = default;

void ModuleInstance::write_initial(std::uint32_t global, void* destination) const {
  const GlobalInfo& info = module_->globals()[global];
  auto* bytes = static_cast<std::byte*>(destination);
  if (!info.initial.empty()) std::memcpy(bytes, info.initial.data(), info.initial.size());
  std::memset(bytes + info.initial.size(), 0, info.size - info.initial.size());
  for (const Relocation& relocation : info.relocations) {
    const std::uint64_t address = global_addresses_[relocation.target] + static_cast<std::uint64_t>(relocation.addend);
    std::memcpy(bytes + relocation.offset, &address, sizeof address);
  }
}

}  // namespace mpsshim::ptx
