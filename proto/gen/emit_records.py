# SPDX-License-Identifier: Apache-2.0
"""The wire: record and reply structures, their names, hash and fuzzer dictionary."""

import hashlib

from emit import BANNER, header, namespace


def records(spec):
    ids = "\n".join(f"  {record.name} = {record.id:#06x}," for record in spec.records)
    body = f'''enum class RecordId : std::uint16_t {{
{ids}
}};

// Where a record stands among the others of its session.
enum class RecordOrder : std::uint8_t {{
  stream,       // keeps the order of the header's stream
  session,      // done when its turn in the ring comes
  out_of_line,  // a call that may be answered later; later records go on
}};

// Whether a client posts a record again to the next executor, so that it has what the record made.
enum class RecordRecipe : std::uint8_t {{
  none,
  as_made,
  restoring,  // with `restores`
}};

'''
    body += "\n".join(_record(record) for record in spec.records)
    return header(namespace("mpsshim::proto", body), ("<cstddef>", "<cstdint>", "<type_traits>", '"gen/enums.hpp"', '"proto/ids.hpp"'),
                  "What lies behind a RecordHeader and in a reply slot. kBodyBytes is the size on the wire: an empty structure has none.")


def _record(record):
    text = f"// {record.doc}\n" if record.doc else ""
    if record.trailing:
        text += f"// Trailing: {record.trailing}.\n"
    constants = [
        f"static constexpr RecordId kId = RecordId::{record.name};",
        f"static constexpr bool kIsCall = {str(record.is_call).lower()};",
        f"static constexpr RecordOrder kOrder = RecordOrder::{record.order};",
        f"static constexpr bool kHasTrailing = {str(bool(record.trailing)).lower()};",
        f"static constexpr RecordRecipe kRecipe = RecordRecipe::{record.recipe};",
    ]
    if record.is_call:
        constants.append(f"static constexpr bool kMayRepeat = {str(record.repeat == 'harmless').lower()};")
    text += _structure(f"{record.name}Record", record.fields, constants)
    if record.is_call:
        text += f"// Reply to {record.name}Record." + (f" Trailing: {record.reply_trailing}.\n" if record.reply_trailing else "\n")
        text += _structure(f"{record.name}Reply", record.reply, [f"static constexpr bool kHasTrailing = {str(bool(record.reply_trailing)).lower()};"])
    return text


def _structure(name, fields, constants):
    size = sum(field.size for field in fields)
    limited = [field for field in fields if field.largest is not None]
    constants = constants + [f"static constexpr {field.cpp_type()} {_largest_name(field)} = {field.largest};" for field in limited]
    lines = constants + [f"static constexpr std::size_t kBodyBytes = {size};"]
    lines += [f"{field.cpp_type()} {field.name}{f'[{field.count}]' if field.is_array else ''};" + (f"  // {field.doc}" if field.doc else "")
              for field in fields]
    lines += range_check(fields)
    check = f"sizeof({name}) == {name}::kBodyBytes" if fields else f"std::is_empty_v<{name}>"
    return (f"struct {name} {{\n" + "".join(f"  {line}\n" for line in lines)
            + f"}};\nstatic_assert({check} && std::is_trivially_copyable_v<{name}> && std::is_standard_layout_v<{name}>);\n")


def _largest_name(field):
    return "kMax" + "".join(word.capitalize() for word in field.name.split("_"))


def range_check(fields):
    limited = [field for field in fields if field.is_limited]
    if not limited:
        return ["static constexpr const char* out_of_range() { return nullptr; }"]
    return (["[[nodiscard]] constexpr const char* out_of_range() const {  // the first field that is nothing it can be; nullptr: none"]
            + [f'  if (!({_condition(field)})) return "{field.name}";' for field in limited] + ["  return nullptr;", "}"])


def _condition(field):
    number = f"number_in({field.name})"
    if field.allowed is None:
        return f"({number} & ~std::uint64_t{{{sum(value.value for value in field.enum.values):#x}}}) == 0"
    if field.allowed == list(range(len(field.allowed))):
        return f"{number} <= {field.allowed[-1]}"
    return " || ".join(f"{number} == {value}" for value in field.allowed)


def ranges(spec):
    """For tests: each field whose numbers are limited, one that it can have and those around its limits that it cannot."""
    rows = ""
    for record in spec.records:
        for field in (field for field in record.fields if field.is_limited):
            if field.allowed is None:
                known = sum(value.value for value in field.enum.values)
                unknown = [1 << bit for bit in range(8 * field.size) if not known >> bit & 1]
                good, bad = 0, [unknown[0], unknown[-1]]
            else:
                good, bad = field.allowed[0], sorted({near for value in field.allowed for near in (value - 1, value + 1, (1 << 8 * field.size) - 1)
                                                      if near >= 0} - set(field.allowed))
            rows += f"MPSSHIM_RANGE({record.name}Record, {field.name}, {good}u, ({', '.join(f'{value:#x}u' for value in bad)}))\n"
    return BANNER + "// MPSSHIM_RANGE(structure, field, a value that it can have, (values that it cannot)).\n" + rows


def record_names(spec):
    return (BANNER + "// MPSSHIM_RECORD(enumerator, structure) for each record, ids ascending.\n"
            + "".join(f"MPSSHIM_RECORD({record.name}, {record.name}Record)\n" for record in spec.records))


def kept_recipes(spec):
    """Records that a client must keep: the library does not link while nobody does (interposer/channel/kept_recipes.cpp)."""
    return (BANNER + "// MPSSHIM_KEPT(structure) for each record with a recipe. It is undefined at the end.\n"
            + "".join(f"MPSSHIM_KEPT({record.name}Record)\n" for record in spec.records if record.recipe != "none") + "#undef MPSSHIM_KEPT\n")


def wire_text(spec):
    """Everything that both sides must agree on, in a fixed form: the protocol hash is over this."""
    lines = []
    for record in spec.records:
        lines.append(f"record {record.id:#06x} {record.name} {'call' if record.is_call else 'post'} {record.order} trailing={bool(record.trailing)}")
        for field in record.fields:
            lines.append(f"  field {field.type} {field.name}" + (f" {field.allowed or field.enum.values}" if field.is_limited else ""))
        lines += [f"  reply {field.type} {field.name}" for field in record.reply or []]
    return "\n".join(lines) + "\n"


def protocol_hash(spec):
    digest = hashlib.sha256(wire_text(spec).encode()).digest()[:8]
    body = f"inline constexpr std::uint64_t kProtocolHash = {int.from_bytes(digest, 'little'):#018x};"
    return header(namespace("mpsshim::proto", body), ("<cstdint>",),
                  "First eight bytes of the SHA-256 over every record's id, order and fields. Logged at attach; layouts\n"
                  "are compared by kLayoutMajor and by record sizes, never by this.")


def fuzz_dictionary(spec):
    """Record ids as they lie in a RecordHeader, little endian, with the size that a record without trailing bytes has."""
    text = "# Generated by proto/gen/generate.py from proto/spec: change it there.\n"
    for record in spec.records:
        size = 24 + sum(field.size for field in record.fields)
        raw = (size + -size % 8).to_bytes(4, "little") + record.id.to_bytes(2, "little")
        text += f'{record.name}="' + "".join(f"\\x{byte:02x}" for byte in raw) + '"\n'
    return text
