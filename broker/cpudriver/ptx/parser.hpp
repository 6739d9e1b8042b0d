// SPDX-License-Identifier: Apache-2.0
//
// Turns one PTX text into an ast::Text. Anything it does not understand throws LoadError with the line. One parser
// per text, one thread. Debug sections, .file and .loc are skipped; .pragma changes nothing and is skipped too.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "broker/cpudriver/ptx/ast.hpp"
#include "broker/cpudriver/ptx/lexer.hpp"

namespace mpsshim::ptx {

class Parser {
 public:
  Parser(std::string_view text, std::uint32_t text_index) : lexer_(text) { result_.index = text_index; }

  ast::Text parse();

 private:
  // parser.cpp: the text
  struct Linkage {
    bool is_extern = false;
    bool is_visible = false;
    bool is_weak = false;
  };
  void parse_directive();
  void parse_function(bool is_entry, Linkage linkage);
  void parse_function_directives(ast::Function& function);
  void parse_dimensions(std::uint32_t (&out)[3]);
  std::vector<ast::Variable> parse_parameters();
  // variable.cpp: declarations
  ast::Variable parse_variable(Space space, Linkage linkage);
  void parse_extent(ast::Variable& variable, std::uint32_t vector);
  void parse_initializer(ast::Variable& variable);
  void parse_initial_element(ast::Variable& variable, std::uint64_t& offset);
  void skip_pointer_attributes();
  void skip_section();
  // parser_body.cpp: statements
  struct Name {
    bool is_register = false;
    std::uint32_t index = 0;
  };
  struct RegisterRange {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
  };
  struct Scope {
    std::uint32_t id = 0;
    std::uint32_t parameter_bytes = 0;
    std::unordered_map<std::string_view, Name> names;
    std::unordered_map<std::string_view, RegisterRange> ranges;
  };
  void parse_body(ast::Function& function);
  void parse_statement(ast::Function& function);
  void parse_registers(ast::Function& function);
  void parse_local_variable(ast::Function& function, Space space, Linkage linkage);
  void parse_prototype(ast::Function& function, std::string_view name);
  void parse_instruction(ast::Function& function, const Token& opcode, std::uint32_t guard, bool negated);
  ast::Operand parse_operand();
  ast::Operand parse_named_operand();
  ast::Operand parse_address();
  std::vector<ast::Operand> parse_list(char end);
  void open_scope(ast::Function& function);
  [[nodiscard]] bool find_name(std::string_view name, Name& out) const;
  std::uint32_t expect_predicate(const ast::Function& function);
  // tokens
  [[noreturn]] void fail(const std::string& text) const;
  [[noreturn]] void fail_at(std::uint32_t line, const std::string& text) const;
  // `what` is not executed; `where` it stands: an instruction, a directive.
  [[noreturn]] void fail_unsupported(std::uint32_t line, std::string_view what, const std::string& where) const;
  bool accept(char c);
  void expect(char c);
  std::string_view expect_identifier();
  std::int64_t expect_integer();
  ast::Operand parse_number();

  Lexer lexer_;
  ast::Text result_;
  std::string_view function_;  // that is being read; empty between functions
  std::vector<Scope> scopes_;
};

}  // namespace mpsshim::ptx
