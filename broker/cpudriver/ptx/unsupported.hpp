// SPDX-License-Identifier: Apache-2.0
//
// What PTX has and the engine does not execute, in words for the program's user. Read by the parser, which meets such
// instructions first: their operands have forms of their own.
#pragma once

#include <string>
#include <string_view>

namespace mpsshim::ptx {

// "textures", for tex: a noun in the plural. Empty: it is executed, or not known at all.
[[nodiscard]] std::string_view unsupported_instruction(std::string_view opcode);

// The same for a directive of a function (".reqnctapercluster") or a variable's type (".texref"), without the dot.
[[nodiscard]] std::string_view unsupported_directive(std::string_view name);

// And for a special register (%is_explicit_cluster).
[[nodiscard]] std::string_view unsupported_register(std::string_view name);

// "textures are not supported by the CPU driver ('tex.2d.v4.f32.s32' in 'blur')". No `function`: outside of one.
[[nodiscard]] std::string unsupported_sentence(std::string_view what, std::string_view where, std::string_view function);

}  // namespace mpsshim::ptx
