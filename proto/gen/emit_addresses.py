# SPDX-License-Identifier: Apache-2.0
"""The driver as the executor has it, where addresses need a key, and what tests ask of every address (proto/spec/addresses.toml)."""

from emit import header, namespace


def _has_addresses(function, spec):
    return any(argument.is_address(spec.types) for argument in function.arguments)


def _member(symbol, function, spec):
    kind = f"CUresult(CUDAAPI*)({function.parameter_types()})"
    if not _has_addresses(function, spec):
        return f"  CUresult(CUDAAPI* {symbol})({function.parameters()}) = nullptr;"
    if symbol in spec.addresses:
        return f"  AddressCall<{kind}> {symbol};"
    return f"  WithheldCall {symbol};"


def checked_driver(spec):
    members = "\n".join(_member(symbol, function, spec) for function in spec.functions for symbol in function.symbols())
    body = f'''struct CheckedDriverTable {{
{members}
}};
static_assert(std::is_standard_layout_v<CheckedDriverTable> && std::is_trivially_copyable_v<CheckedDriverTable>);
static_assert(sizeof(CheckedDriverTable) == sizeof(DriverTable));
'''
    return header(namespace("mpsshim::broker", body), ("<type_traits>", '"broker/driver/address_call.hpp"', '"gen/driver_table.hpp"'),
                  "DriverTable as the executor has it: functions that take addresses want a key, those that it does not use cannot be called.")


def _row(name, function, rules):
    parameters = ", ".join(f"[[maybe_unused]] {argument.declaration()}" for argument in function.arguments)
    asked = ""
    for argument, rule in rules.items():
        what, _, rest = rule.partition("(")
        more = rest[:-1].strip()
        asked += f'    oracle.{what}("{name}: {argument}", {argument}{", " + more if more else ""});\n'
    return f'''template <>
struct AddressRow<&DriverTable::{name}> {{
  static constexpr const char* kName = "{name}";
  template <typename Oracle>
  static void ask(Oracle& oracle, {parameters}) {{
{asked}  }}
}};
'''


def address_rows(spec):
    functions = spec.by_name()
    rows = "\n".join(_row(name, functions[name], rules) for name, rules in spec.addresses.items())
    visits = "\n".join(f"  visit.template operator()<&DriverTable::{name}>();" for name in spec.addresses)
    body = f'''// ask() tells an oracle every address of a call, and what must hold of it.
template <auto Member>
struct AddressRow;

{rows}
template <typename Visit>
void for_each_address_row(Visit&& visit) {{
{visits}
}}
'''
    return header(namespace("mpsshim", body), ('"gen/driver_table.hpp"',), "Every driver function with addresses that the executor calls.")
