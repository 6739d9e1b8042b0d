// SPDX-License-Identifier: Apache-2.0
//
// In a text the address of a variable is followed from its name through registers, whatever the order of instructions: what a register may hold
// anywhere in a function it may hold everywhere. An address that is only loaded from does no harm; one that is stored to, or by an atomic, is a
// write; one that is stored itself, passed on, or used by an instruction that is not known here, is a write and is left behind.
#include <algorithm>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "proto/image/ptx_text.hpp"
#include "proto/image/ptx_tokens.hpp"
#include "proto/image/variable_uses.hpp"

namespace mpsshim::image {
namespace {

using Names = std::set<std::string_view>;

constexpr int kMostPasses = 100;  // over a function: few have loops within loops so deep

constexpr std::string_view kLoads[] = {"ld", "ldu", "prefetch", "prefetchu"};
constexpr std::string_view kStores[] = {"st", "atom", "red"};
// What they make of an address may be one, and goes nowhere but into their first operand.
constexpr std::string_view kArithmetic[] = {"mov",   "cvta", "add",  "addc", "sub",   "subc", "mad",      "madc", "mul", "mul24",
                                            "mad24", "shl",  "shr",  "shf",  "and",   "or",   "xor",      "not",  "neg", "abs",
                                            "min",   "max",  "selp", "set",  "setp",  "slct", "cvt",      "bfe",  "bfi", "prmt",
                                            "lop3",  "sad",  "popc", "clz",  "bfind", "brev", "isspacep", "div",  "rem"};

template <std::size_t Count>
bool is_one_of(const std::string_view (&words)[Count], std::string_view word) {
  return std::ranges::find(words, word) != std::end(words);
}

struct Operand {
  bool is_address = false;
  std::vector<std::string_view> words;
};

struct Instruction {
  std::string_view guard;
  std::string_view opcode;  // without what follows its first dot
  std::vector<Operand> operands;
};

struct Function {
  bool is_kernel = false;
  bool calls_by_pointer = false;
  std::vector<Instruction> instructions;  // those that may have to do with addresses
  Names calls;
  Names written;
  Names left;
};

class TextReader {
 public:
  explicit TextReader(std::string_view text) : text_(text) {
    for (std::string& name : ptx_variables(text)) {
      is_doubtful_ |= name.empty();
      variables_.insert(std::move(name));
    }
  }

  VariableUses read() {
    VariableUses uses;
    if (variables_.empty()) return uses;
    while (read_declaration()) {
    }
    for (const std::string_view word : initial_words_) is_doubtful_ |= variables_.contains(std::string(word)) || functions_.contains(word);
    for (auto& [name, function] : functions_) {
      if (!is_doubtful_) follow(function);
    }
    for (const std::string_view name : constants_) {
      if (variables_.contains(std::string(name))) uses.constants.emplace(name);
    }
    if (is_doubtful_) return uses;
    pass_on_to_callers();
    for (const auto& [name, function] : functions_) {
      if (!function.is_kernel) continue;
      ++uses.kernel_count;
      VariableUse use;
      for (const std::string_view variable : function.written) use.variables.emplace(variable);
      use.leaves_addresses = !function.left.empty();
      if (!use.variables.empty()) uses.kernels.emplace(name, std::move(use));
    }
    uses.are_known = true;
    return uses;
  }

 private:
  std::string_view next() { return next_ptx_token(text_); }

  // One of the module's. False: the text has ended.
  bool read_declaration() {
    bool is_extern = false;
    for (std::string_view token = next(); !token.empty(); token = next()) {
      if (token == ".extern") is_extern = true;
      if (token == ".const" || token == ".global") {
        if (token == ".const") note_constant();
        is_doubtful_ |= is_extern;
        return read_variable();
      }
      if (token == ".entry" || token == ".func") return read_function(token == ".entry");
      if (token == ";") return true;
    }
    return false;
  }

  // Its name is the last word in front of '[', '=', ',' or ';'.
  void note_constant() {
    std::string_view rest = text_;
    std::string_view name;
    for (std::string_view token = next_ptx_token(rest); !token.empty(); token = next_ptx_token(rest)) {
      if (token == "[" || token == "=" || token == "," || token == ";") break;
      if (is_ptx_word(token.front())) name = token;
    }
    constants_.insert(name);
  }

  bool read_variable() {
    bool is_initial = false;
    for (std::string_view token = next(); !token.empty(); token = next()) {
      if (token == ";") return true;
      if (token == "=") is_initial = true;
      if (is_initial && is_ptx_word(token.front())) initial_words_.push_back(token);
    }
    return false;
  }

  bool read_function(bool is_kernel) {
    std::string_view name;
    int parentheses = 0;  // around what is returned, and around the parameters
    std::string_view token = next();
    for (; !token.empty() && token != "{" && token != ";"; token = next()) {
      if (token == "(") ++parentheses;
      if (token == ")") --parentheses;
      if (parentheses == 0 && name.empty() && is_ptx_word(token.front())) name = token;
    }
    is_doubtful_ |= name.find("cudaLaunch") != std::string_view::npos || name.find("cudaCDP") != std::string_view::npos;
    Function& function = functions_[name];
    function.is_kernel |= is_kernel;
    if (token == "{") read_body(function);
    return !token.empty();
  }

  void read_body(Function& function) {
    for (int depth = 1; depth > 0;) {
      const std::string_view token = next();
      if (token.empty()) return void(is_doubtful_ = true);  // cut off
      if (token == "{") ++depth;
      if (token == "}") --depth;
      if (token == "{" || token == "}" || token == ";") continue;
      if (token == ".loc" || token == ".file") {
        skip_line();
      } else if (token.front() == '.') {
        skip_directive();
      } else {
        read_statement(function, token);
      }
    }
  }

  // For debuggers, without an end but that of the line.
  void skip_line() {
    const std::string_view line = text_.substr(0, text_.find('\n'));
    is_doubtful_ |= line.find(';') != std::string_view::npos;
    text_.remove_prefix(line.size());
  }

  void skip_directive() {
    for (std::string_view token = next(); !token.empty() && token != ";"; token = next()) {
      is_doubtful_ |= token == "{";  // none that is known has a block
    }
  }

  void read_statement(Function& function, std::string_view token) {
    Instruction instruction;
    if (token == "@") {
      token = next();
      if (token == "!") token = next();
      instruction.guard = token;
      token = next();
    }
    instruction.opcode = token;
    int depth = 0;  // of all brackets
    bool is_new = true;
    for (token = next(); !token.empty() && token != ";"; token = next()) {
      if (token == ":" && instruction.operands.empty() && instruction.guard.empty()) return;  // a label
      if (token.front() == '.' && is_new && instruction.operands.empty()) continue;           // of the opcode
      if (token == "[" || token == "{" || token == "(") ++depth;
      if (token == "]" || token == "}" || token == ")") --depth;
      if (token == "," && depth == 0) {
        is_new = true;
        continue;
      }
      if (std::exchange(is_new, false)) instruction.operands.push_back({token == "[", {}});
      if (is_ptx_word(token.front())) instruction.operands.back().words.push_back(token);
    }
    is_doubtful_ |= depth != 0;
    if (instruction.opcode == "call") read_call(function, instruction);
    function.instructions.push_back(std::move(instruction));
  }

  // What is called stands by itself in front of the arguments, behind what is returned if there is anything.
  void read_call(Function& function, const Instruction& call) {
    for (const Operand& operand : call.operands) {
      for (const std::string_view word : operand.words) {
        if (word.front() == '%') function.calls_by_pointer = true;
        function.calls.insert(word);
      }
    }
  }

  // --- one function, once all is read ---

  using Held = std::unordered_map<std::string_view, Names>;  // by register

  // The variables whose addresses a word may stand for.
  void add_held(const Held& held, std::string_view word, Names& found) {
    if (const auto variable = variables_.find(std::string(word)); variable != variables_.end()) found.insert(*variable);
    if (const auto known = held.find(word); known != held.end()) found.insert(known->second.begin(), known->second.end());
  }
  Names held_by(const Held& held, const Operand& operand) {
    Names found;
    for (const std::string_view word : operand.words) add_held(held, word, found);
    return found;
  }

  void follow(Function& function) {
    Held held;
    int passes = 0;
    for (bool has_changed = true; has_changed; ++passes) {
      if (passes == kMostPasses) return void(is_doubtful_ = true);
      has_changed = false;
      for (const Instruction& instruction : function.instructions) has_changed |= follow_into_registers(instruction, held);
    }
    for (const Instruction& instruction : function.instructions) note_effects(function, instruction, held);
    std::erase_if(function.written, [&](std::string_view name) { return constants_.contains(name); });
    std::erase_if(function.left, [&](std::string_view name) { return constants_.contains(name); });
  }

  bool follow_into_registers(const Instruction& instruction, Held& held) {
    if (!is_one_of(kArithmetic, instruction.opcode) || instruction.operands.empty()) return false;
    Names found;
    add_held(held, instruction.guard, found);
    for (std::size_t i = 1; i < instruction.operands.size(); ++i) {
      for (const std::string_view word : instruction.operands[i].words) add_held(held, word, found);
    }
    if (found.empty()) return false;
    bool has_changed = false;
    for (const std::string_view word : instruction.operands.front().words) {
      Names& known = held[word];
      const std::size_t before = known.size();
      known.insert(found.begin(), found.end());
      has_changed |= known.size() != before;
    }
    return has_changed;
  }

  void note_effects(Function& function, const Instruction& instruction, const Held& held) {
    const bool is_call = instruction.opcode == "call";
    for (const Operand& operand : instruction.operands) {
      for (const std::string_view word : operand.words) is_doubtful_ |= !is_call && functions_.contains(word);  // its address is taken
    }
    if (is_one_of(kArithmetic, instruction.opcode)) return;
    const bool has_result = is_one_of(kLoads, instruction.opcode) || instruction.opcode == "atom";
    for (const Operand& operand : std::span(instruction.operands).subspan(has_result && !instruction.operands.empty() ? 1 : 0)) {
      const Names found = held_by(held, operand);
      if (found.empty() || (operand.is_address && is_one_of(kLoads, instruction.opcode))) continue;
      function.written.insert(found.begin(), found.end());
      if (!operand.is_address || !is_one_of(kStores, instruction.opcode)) function.left.insert(found.begin(), found.end());
    }
  }

  // By its pointer any function may be called but a kernel.
  void pass_on_to_callers() {
    Function any;
    for (bool has_changed = true; has_changed;) {
      has_changed = false;
      for (auto& [name, function] : functions_) {
        const std::size_t before = function.written.size() + function.left.size();
        for (const std::string_view called : function.calls) {
          if (const auto found = functions_.find(called); found != functions_.end()) add_effects(found->second, function);
        }
        if (function.calls_by_pointer) add_effects(any, function);
        if (!function.is_kernel) add_effects(function, any);
        has_changed |= function.written.size() + function.left.size() != before;
      }
    }
    for (auto& [name, function] : functions_) {
      if (function.calls_by_pointer) add_effects(any, function);
    }
  }
  static void add_effects(const Function& from, Function& to) {
    to.written.insert(from.written.begin(), from.written.end());
    to.left.insert(from.left.begin(), from.left.end());
  }

  std::string_view text_;
  std::unordered_set<std::string> variables_;
  std::unordered_set<std::string_view> constants_;
  std::vector<std::string_view> initial_words_;
  std::map<std::string_view, Function> functions_;
  bool is_doubtful_ = false;
};

}  // namespace

VariableUses variable_uses_of_ptx(std::string_view text) { return TextReader(text).read(); }

}  // namespace mpsshim::image
