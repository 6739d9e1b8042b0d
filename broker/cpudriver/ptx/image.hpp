// SPDX-License-Identifier: Apache-2.0
//
// The linker's view of an image: what each name of each text means, and where variables lie. Built from all parsed
// texts before any function is decoded; fills Program::globals, ::functions and ::kernels. One thread, one load.
#pragma once

#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "broker/cpudriver/ptx/ast.hpp"
#include "broker/cpudriver/ptx/lexer.hpp"
#include "broker/cpudriver/ptx/program.hpp"

namespace mpsshim::ptx {

enum class SymbolKind : std::uint8_t { none, global, shared, function };

struct Symbol {
  SymbolKind kind = SymbolKind::none;
  std::uint32_t index = 0;
};

struct SharedVariable {
  const ast::Variable* declaration = nullptr;
  bool is_dynamic = false;   // .extern: begins where the static ones end.
  std::uint32_t offset = 0;  // In the segment common to several functions, or in `owner`.
  std::uint32_t users = 0;
  bool is_used_by_function = false;  // By a .func, which cannot know its kernel.
};

struct FunctionRecord {
  std::uint32_t text = 0;
  const ast::Function* declaration = nullptr;
  std::vector<std::uint32_t> shared;  // Shared variables it names.
  std::vector<std::uint32_t> callees;
  bool calls_indirectly = false;
};

class Image {
 public:
  Image(const std::vector<ast::Text>& texts, Program& program);

  // The meaning of a name in a text; kind none if there is none. Throws LoadError not_found for an .extern that no
  // text defines.
  [[nodiscard]] Symbol find(std::uint32_t text, std::string_view name, std::uint32_t line) const;
  // Function-scope variables of .global, .const and .shared.
  [[nodiscard]] Symbol find_local(const ast::Variable& variable) const;
  [[nodiscard]] const SharedVariable& shared(std::uint32_t index) const { return shared_[index]; }
  [[nodiscard]] const std::vector<FunctionRecord>& functions() const { return functions_; }
  [[nodiscard]] const ast::Text& text(std::uint32_t index) const { return texts_[index]; }

  void resolve_initial_values();  // After all names are known.
  void fill_kernels();            // After decoding, which finds the functions' frames and locals.

 private:
  void add_variable(std::uint32_t text, const ast::Variable& variable, bool is_exported_name);
  void add_function(std::uint32_t text, const ast::Function& function);
  void add_device_runtime(const ast::Function& function, Function& decoded);
  void scan_uses();
  void scan_function(FunctionRecord& record);
  void note_symbol(FunctionRecord& record, Symbol symbol, bool is_call);
  [[nodiscard]] bool claim_name(std::uint32_t text, std::string_view name, std::uint32_t line, bool is_weak, Symbol& symbol);
  void place_shared();
  [[nodiscard]] std::set<std::uint32_t> reachable(std::uint32_t function) const;
  [[nodiscard]] std::uint32_t local_need(std::uint32_t function, std::vector<std::uint8_t>& on_path) const;

  const std::vector<ast::Text>& texts_;
  Program& program_;
  std::vector<std::unordered_map<std::string_view, Symbol>> by_text_;
  std::vector<std::unordered_map<std::string_view, std::uint8_t>> externs_by_text_;
  struct Export {
    Symbol symbol;
    std::uint32_t text = 0;  // that defines it
    bool is_weak = false;
  };
  std::unordered_map<std::string_view, Export> exported_;
  std::unordered_map<const ast::Variable*, Symbol> by_declaration_;
  std::vector<SharedVariable> shared_;
  std::vector<FunctionRecord> functions_;
  std::vector<const ast::Variable*> global_declarations_;
  std::vector<std::uint32_t> global_texts_;
  std::uint32_t common_shared_bytes_ = 0;
};

}  // namespace mpsshim::ptx
