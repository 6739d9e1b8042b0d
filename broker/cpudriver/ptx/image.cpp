// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/ptx/image.hpp"

#include <algorithm>
#include <cstring>

#include "broker/cpudriver/ptx/device_runtime_names.hpp"

namespace mpsshim::ptx {
namespace {

constexpr std::uint32_t kRegistersOfBlock = 65'536;

// Of a kernel that takes `estimate`. As ptxas does it where it is told the largest block: what does not fit goes to local memory.
std::uint32_t registers_of(std::uint32_t estimate, const ast::Function& declaration, std::uint32_t max_threads) {
  const std::uint32_t registers = std::min(estimate, kRegistersOfBlock / std::max(max_threads, 1U) / 8 * 8);
  return declaration.max_registers != 0 ? std::min(registers, declaration.max_registers) : registers;
}

std::uint32_t align_up(std::uint64_t value, std::uint32_t alignment) {
  return static_cast<std::uint32_t>((value + alignment - 1) / alignment * alignment);
}

Builtin builtin_by_name(std::string_view name) {
  if (name == "vprintf") return Builtin::print;
  if (name == "malloc") return Builtin::allocate;
  if (name == "free") return Builtin::release;
  if (name == "__assertfail") return Builtin::assert_fail;
  if (name == "cudaGraphSetConditional") return Builtin::set_condition;
  return find_runtime_function(name) ? Builtin::device_runtime : Builtin::none;
}

std::vector<Slot> slots_of(const ast::Function& function, std::uint32_t first, std::uint32_t count) {
  std::vector<Slot> slots;
  for (std::uint32_t i = first; i < first + count; ++i) {
    slots.push_back(Slot{0, 0, static_cast<std::uint32_t>(function.variables[i].bytes)});
  }
  return slots;
}

}  // namespace

Image::Image(const std::vector<ast::Text>& texts, Program& program)
    : texts_(texts), program_(program), by_text_(texts.size()), externs_by_text_(texts.size()) {
  for (const ast::Text& text : texts) {
    for (const ast::Variable& variable : text.variables) add_variable(text.index, variable, true);
    for (const ast::Function& function : text.functions) add_function(text.index, function);
  }
  scan_uses();
  place_shared();
}

void Image::add_variable(std::uint32_t text, const ast::Variable& variable, bool is_exported_name) {
  auto& names = by_text_[text];
  if (variable.space == Space::shared) {
    const Symbol symbol{SymbolKind::shared, static_cast<std::uint32_t>(shared_.size())};
    SharedVariable shared;
    shared.declaration = &variable;
    shared.is_dynamic = variable.is_extern;
    shared_.push_back(shared);
    by_declaration_[&variable] = symbol;
    if (is_exported_name) names[variable.name] = symbol;
    return;
  }
  if (variable.is_extern) {
    externs_by_text_[text][variable.name] = 1;
    return;
  }
  Symbol symbol{SymbolKind::global, static_cast<std::uint32_t>(program_.globals.size())};
  const bool is_exported = is_exported_name && variable.is_visible;
  if (is_exported && !claim_name(text, variable.name, variable.line, variable.is_weak, symbol)) return;
  if (is_exported_name && !is_exported) names[variable.name] = symbol;
  by_declaration_[&variable] = symbol;
  if (symbol.index == program_.globals.size()) {
    program_.globals.emplace_back();
    global_declarations_.emplace_back();
    global_texts_.emplace_back();
  }
  GlobalInfo& info = program_.globals[symbol.index];
  info.name = std::string(variable.name);
  info.space = variable.space == Space::constant ? GlobalSpace::constant : GlobalSpace::global;
  info.size = variable.bytes;
  info.alignment = std::max(1U, variable.align);
  info.is_managed = variable.is_managed;
  info.is_visible = is_exported;
  info.initial = variable.initial;
  global_declarations_[symbol.index] = &variable;
  global_texts_[symbol.index] = text;
}

void Image::add_function(std::uint32_t text, const ast::Function& function) {
  const Builtin builtin = function.has_body ? Builtin::none : builtin_by_name(function.name);
  if (!function.has_body && builtin == Builtin::none) {
    externs_by_text_[text][function.name] = 1;
    return;
  }
  Symbol symbol{SymbolKind::function, static_cast<std::uint32_t>(functions_.size())};
  const bool is_exported = function.is_visible || builtin != Builtin::none;
  if (is_exported && !claim_name(text, function.name, function.line, function.is_weak || builtin != Builtin::none, symbol)) return;
  if (!is_exported) by_text_[text][function.name] = symbol;
  if (symbol.index == functions_.size()) {
    functions_.emplace_back();
    program_.functions.emplace_back();
  }
  FunctionRecord& record = functions_[symbol.index];
  record.text = text;
  record.declaration = &function;
  Function& decoded = program_.functions[symbol.index];
  decoded.name = std::string(function.name);
  decoded.builtin = builtin;
  decoded.returns = slots_of(function, 0, function.returns_count);
  decoded.parameters = slots_of(function, function.returns_count, function.parameters_count);
  if (builtin == Builtin::device_runtime) add_device_runtime(function, decoded);
  for (const ast::Variable& variable : function.variables) {
    const bool is_placed = variable.space == Space::global || variable.space == Space::constant || variable.space == Space::shared;
    if (is_placed) add_variable(text, variable, false);
  }
}

void Image::add_device_runtime(const ast::Function& function, Function& decoded) {
  const auto known = find_runtime_function(function.name);
  if (!known || !fits(*known, decoded.returns, decoded.parameters)) {
    throw LoadError{ErrorCode::invalid_ptx, function.line, "'" + decoded.name + "' is declared otherwise than the device runtime has it"};
  }
  decoded.runtime_call = known->call;
  program_.uses_device_runtime = true;
}

// An exported name means one thing in all texts: the definition that is not .weak, else the first. False: another one stands for this.
// Otherwise `symbol` is where it is to stand, in place of a weak one if there was one.
bool Image::claim_name(std::uint32_t text, std::string_view name, std::uint32_t line, bool is_weak, Symbol& symbol) {
  externs_by_text_[text][name] = 1;
  const auto [place, is_new] = exported_.emplace(name, Export{symbol, text, is_weak});
  if (is_new) return true;
  Export& known = place->second;
  if (known.symbol.kind != symbol.kind || (!known.is_weak && !is_weak)) {
    throw LoadError{ErrorCode::invalid_ptx, line,
                    "'" + std::string(name) + "' is defined twice, the first time in text " + std::to_string(known.text + 1) + " of the image"};
  }
  if (!known.is_weak || is_weak) return false;
  symbol = known.symbol;
  known = Export{symbol, text, false};
  return true;
}

Symbol Image::find(std::uint32_t text, std::string_view name, std::uint32_t line) const {
  if (const auto here = by_text_[text].find(name); here != by_text_[text].end()) return here->second;
  if (externs_by_text_[text].count(name) == 0) return {};
  if (const auto there = exported_.find(name); there != exported_.end()) return there->second.symbol;
  if (name.starts_with("cuda") || name.starts_with("__cuda")) {  // of the device runtime, which is the engine's
    throw LoadError{ErrorCode::invalid_ptx, line, "calls of " + std::string(name) + " by kernels are not supported by the CPU driver"};
  }
  throw LoadError{ErrorCode::not_found, line,
                  "'" + std::string(name) + "' is declared but no text of the image defines it; link the object that does"};
}

Symbol Image::find_local(const ast::Variable& variable) const {
  const auto found = by_declaration_.find(&variable);
  return found == by_declaration_.end() ? Symbol{} : found->second;
}

void Image::note_symbol(FunctionRecord& record, Symbol symbol, bool is_call) {
  if (symbol.kind == SymbolKind::shared) {
    if (std::find(record.shared.begin(), record.shared.end(), symbol.index) != record.shared.end()) return;
    record.shared.push_back(symbol.index);
    SharedVariable& shared = shared_[symbol.index];
    ++shared.users;
    shared.is_used_by_function |= !record.declaration->is_entry;
  } else if (symbol.kind == SymbolKind::function && !functions_[symbol.index].declaration->is_entry) {  // a kernel is launched, not called
    record.callees.push_back(symbol.index);
    record.calls_indirectly |= !is_call;
  }
}

void Image::scan_function(FunctionRecord& record) {
  const ast::Function& function = *record.declaration;
  for (const ast::Instruction& instruction : function.instructions) {
    const bool is_call = instruction.opcode == "call";
    std::vector<const ast::Operand*> pending;
    for (const ast::Operand& operand : instruction.operands) pending.push_back(&operand);
    if (is_call) {
      for (const ast::Operand& operand : instruction.operands) record.calls_indirectly |= operand.kind == ast::OperandKind::reg;
    }
    while (!pending.empty()) {
      const ast::Operand* operand = pending.back();
      pending.pop_back();
      for (const ast::Operand& element : operand->elements) pending.push_back(&element);
      Symbol symbol;
      if (operand->kind == ast::OperandKind::variable)
        symbol = find_local(function.variables[operand->index]);
      else if (operand->kind == ast::OperandKind::symbol)
        symbol = find(record.text, operand->name, instruction.line);
      note_symbol(record, symbol, is_call);
    }
  }
}

void Image::scan_uses() {
  for (FunctionRecord& record : functions_) scan_function(record);
}

// Shared variables that several functions name have one place for all; a kernel's own follow behind them.
void Image::place_shared() {
  for (SharedVariable& shared : shared_) {
    if (shared.is_dynamic || (!shared.is_used_by_function && shared.users < 2)) continue;
    shared.offset = align_up(common_shared_bytes_, shared.declaration->align);
    common_shared_bytes_ = shared.offset + static_cast<std::uint32_t>(shared.declaration->bytes);
  }
  for (std::uint32_t f = 0; f < functions_.size(); ++f) {
    if (!functions_[f].declaration->is_entry) continue;
    std::uint64_t end = 0;
    std::uint32_t dynamic_align = 16;
    for (const std::uint32_t callee : reachable(f)) {
      for (const std::uint32_t index : functions_[callee].shared) {
        const SharedVariable& shared = shared_[index];
        if (shared.is_dynamic)
          dynamic_align = std::max(dynamic_align, shared.declaration->align);
        else if (shared.is_used_by_function || shared.users > 1)
          end = std::max(end, shared.offset + shared.declaration->bytes);
      }
    }
    for (const std::uint32_t index : functions_[f].shared) {
      SharedVariable& shared = shared_[index];
      if (shared.is_dynamic || shared.is_used_by_function || shared.users > 1) continue;
      shared.offset = align_up(end, shared.declaration->align);
      end = shared.offset + shared.declaration->bytes;
    }
    if (end > 1U << 30) throw LoadError{ErrorCode::invalid_ptx, functions_[f].declaration->line, "More than 1 GiB of shared memory"};
    program_.functions[f].shared_bytes = static_cast<std::uint32_t>(end);
    program_.functions[f].dynamic_shared_align = dynamic_align;
  }
}

std::set<std::uint32_t> Image::reachable(std::uint32_t function) const {
  std::set<std::uint32_t> seen{function};
  std::vector<std::uint32_t> pending{function};
  bool is_all_added = false;
  while (!pending.empty()) {
    const FunctionRecord& record = functions_[pending.back()];
    pending.pop_back();
    const auto add = [&](std::uint32_t f) {
      if (seen.insert(f).second) pending.push_back(f);
    };
    for (const std::uint32_t callee : record.callees) add(callee);
    if (!record.calls_indirectly || is_all_added) continue;
    is_all_added = true;  // Any function could be behind a pointer.
    for (std::uint32_t f = 0; f < functions_.size(); ++f) {
      if (!functions_[f].declaration->is_entry) add(f);
    }
  }
  return seen;
}

// Local memory of the deepest chain of direct calls; a recursion counts once, the rest is the stack's.
std::uint32_t Image::local_need(std::uint32_t function, std::vector<std::uint8_t>& on_path) const {
  if (on_path[function] != 0) return 0;
  on_path[function] = 1;
  std::uint32_t deepest = 0;
  for (const std::uint32_t callee : functions_[function].callees) deepest = std::max(deepest, local_need(callee, on_path));
  on_path[function] = 2;  // Counted where met first: an estimate suffices, the engine checks every call.
  return ((program_.functions[function].local_bytes + 15) & ~15U) + deepest;
}

void Image::resolve_initial_values() {
  for (std::size_t g = 0; g < global_declarations_.size(); ++g) {
    GlobalInfo& info = program_.globals[g];
    for (const ast::InitialSymbol& initial : global_declarations_[g]->symbols) {
      const Symbol symbol = find(global_texts_[g], initial.name, initial.line);
      if (initial.offset + 8 > info.size)
        throw LoadError{ErrorCode::invalid_ptx, initial.line, "An address at the end of '" + info.name + "' has no room"};
      if (symbol.kind == SymbolKind::global) {
        info.relocations.push_back(Relocation{initial.offset, symbol.index, initial.addend});
        program_.globals[symbol.index].may_be_written |= program_.globals[symbol.index].space == GlobalSpace::global;
      } else if (symbol.kind == SymbolKind::function) {
        const std::uint64_t handle = kFunctionHandleBase + std::uint64_t{symbol.index} * 16;
        if (info.initial.size() < initial.offset + 8) info.initial.resize(initial.offset + 8);
        std::memcpy(info.initial.data() + initial.offset, &handle, sizeof handle);
      } else {
        throw LoadError{ErrorCode::invalid_ptx, initial.line,
                        "'" + std::string(initial.name) + "' has no address that '" + info.name + "' could hold"};
      }
    }
  }
}

void Image::fill_kernels() {
  std::uint64_t const_bytes = 0;
  for (const GlobalInfo& global : program_.globals) const_bytes += global.space == GlobalSpace::constant ? global.size : 0;
  for (std::uint32_t f = 0; f < functions_.size(); ++f) {
    const ast::Function& declaration = *functions_[f].declaration;
    if (!declaration.is_entry || !declaration.has_body) continue;
    const ast::Text& text = texts_[functions_[f].text];
    KernelInfo info;
    info.name = std::string(declaration.name);
    for (std::uint32_t i = 0; i < declaration.parameters_count; ++i) {
      const Slot& slot = program_.functions[f].parameters[i];
      info.parameters.push_back(ParameterInfo{slot.offset, slot.size});
      info.parameter_bytes = slot.offset + slot.size;
    }
    const auto product = [](const std::uint32_t(&v)[3]) { return std::uint64_t{v[0]} * v[1] * v[2]; };
    if (declaration.max_threads[0] != 0)
      info.max_threads_per_block = static_cast<std::uint32_t>(std::min<std::uint64_t>(1024, product(declaration.max_threads)));
    if (declaration.required_threads[0] != 0) {
      std::copy(std::begin(declaration.required_threads), std::end(declaration.required_threads), std::begin(info.required_block));
      info.max_threads_per_block = static_cast<std::uint32_t>(std::min<std::uint64_t>(1024, product(declaration.required_threads)));
    }
    std::vector<std::uint8_t> on_path(functions_.size(), 0);
    info.local_bytes = local_need(f, on_path);
    info.static_shared_bytes = program_.functions[f].shared_bytes;
    info.const_bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(const_bytes, 0xffffffff));
    info.registers = registers_of(program_.functions[f].registers, declaration, info.max_threads_per_block);
    info.ptx_version = text.version;
    info.target_sm = text.target;
    program_.kernels.push_back(std::move(info));
    program_.kernel_functions.push_back(f);
  }
}

}  // namespace mpsshim::ptx
