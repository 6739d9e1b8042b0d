# SPDX-License-Identifier: Apache-2.0
"""The enums and flags of records and messages (proto/spec/enums.toml)."""

from emit import header, namespace
from model import WIRE_CPP


def enums(spec):
    body = "\n".join(_enum(enum) for enum in spec.enums)
    return header(namespace("mpsshim::proto", body), ("<cstdint>", '"proto/fields.hpp"'),
                  "What discriminators and flags can be. Which of the values a field takes is said by its record's out_of_range().")


def _enum(enum):
    text = f"// {enum.doc}\n" if enum.doc else ""
    rows = "".join(f"  {value.name} = {f'{value.value:#x}' if enum.is_flags else value.value}," + (f"  // {value.doc}" if value.doc else "") + "\n"
                   for value in enum.values)
    text += f"enum class {enum.name} : {WIRE_CPP[enum.type]} {{\n{rows}}};\n"
    if enum.is_flags:
        return text + f"constexpr Flags<{enum.name}> operator|({enum.name} a, {enum.name} b) {{ return Flags<{enum.name}>(a).with(b); }}\n"
    values = sorted(value.value for value in enum.values)
    known = f"static_cast<std::uint64_t>(value) <= {values[-1]}" if values == list(range(len(values))) else \
        " || ".join(f"value == {enum.name}::{value.name}" for value in enum.values)
    return text + f"constexpr bool is_known({enum.name} value) {{ return {known}; }}\n"
