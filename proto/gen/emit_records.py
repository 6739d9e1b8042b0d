# SPDX-License-Identifier: Apache-2.0
"""The wire: record and reply structures, their names, the executor's dispatch rows, argument descriptors, hash and fuzzer dictionary."""

import hashlib

import automatic
from emit import BANNER, header, namespace


def records(spec):
    ids = "\n".join(f"  {record.enumerator} = {record.id:#06x}," for record in spec.records)
    body = f'''enum class RecordId : std::uint16_t {{
{ids}
}};

// Where a record stands among the others of its session.
enum class RecordOrder : std::uint8_t {{
  stream,       // keeps the order of the header's stream
  session,      // done when its turn in the ring comes
  out_of_line,  // handed to the helper pool at once; later records go on
}};

'''
    body += "\n".join(_record(record) for record in spec.records)
    return header(namespace("mpsshim::proto", body), ("<cstddef>", "<cstdint>", "<type_traits>", '"proto/counts.hpp"', '"proto/ids.hpp"'),
                  "What lies behind a RecordHeader and in a reply slot. kBodyBytes is the size on the wire: an empty structure has none.")


def _record(record):
    text = f"// {record.doc}\n" if record.doc else ""
    if record.trailing:
        text += f"// Trailing: {record.trailing}.\n"
    constants = [
        f"static constexpr RecordId kId = RecordId::{record.enumerator};",
        f"static constexpr bool kIsCall = {str(record.is_call).lower()};",
        f"static constexpr RecordOrder kOrder = RecordOrder::{record.order};",
        f"static constexpr bool kHasTrailing = {str(bool(record.trailing)).lower()};",
    ]
    counts = [f"constexpr std::uint64_t count_of_{argument.name}() const {{ return {expression}; }}"
              for argument, expression in automatic.counts(record)]
    text += _structure(f"{record.name}Record", record.fields, constants, counts)
    if record.is_call:
        text += f"// Reply to {record.name}Record." + (f" Trailing: {record.reply_trailing}.\n" if record.reply_trailing else "\n")
        text += _structure(f"{record.name}Reply", record.reply, [f"static constexpr bool kHasTrailing = {str(bool(record.reply_trailing)).lower()};"], [])
    return text


def _structure(name, fields, constants, methods):
    size = sum(field.size for field in fields)
    lines = constants + [f"static constexpr std::size_t kBodyBytes = {size};"]
    lines += [f"{field.cpp_type()} {field.name}{f'[{field.count}]' if field.is_array else ''};" + (f"  // {field.doc}" if field.doc else "")
              for field in fields] + methods
    check = f"sizeof({name}) == {name}::kBodyBytes" if fields else f"std::is_empty_v<{name}>"
    return (f"struct {name} {{\n" + "".join(f"  {line}\n" for line in lines)
            + f"}};\nstatic_assert({check} && std::is_trivially_copyable_v<{name}> && std::is_standard_layout_v<{name}>);\n")


def record_names(spec):
    return (BANNER + "// MPSSHIM_RECORD(enumerator, structure) for each record, ids ascending.\n"
            + "".join(f"MPSSHIM_RECORD({record.enumerator}, {record.name}Record)\n" for record in spec.records))


def dispatch(spec):
    """`auto`: served by the templates through gen/driver_calls.hpp; `manual`: a handler written by hand."""
    return (BANNER + "// MPSSHIM_DISPATCH(structure, auto|manual) for each record, ids ascending.\n"
            + "".join(f"MPSSHIM_DISPATCH({record.name}Record, {'auto' if record.function else 'manual'})\n" for record in spec.records))


def arguments(spec):
    body = ""
    for record in (record for record in spec.records if record.function):
        parts = [f"{d.kind}<{', '.join(d.parameters)}>{{}}" if d.parameters else f"{d.kind}{{}}" for d in automatic.descriptors(record, spec.types)]
        reply = f"{record.name}Reply" if record.is_call else "NoReply"
        body += f"// {record.function.name}({record.function.parameters()})\n"
        body += f"template <>\nstruct Arguments<{record.name}Record> {{\n  using Reply = {reply};\n"
        body += f"  static constexpr auto kList = std::tuple{{{', '.join(parts)}}};\n}};\n\n"
    return header(namespace("mpsshim::proto", body), ("<tuple>", '"gen/records.hpp"', '"proto/arguments.hpp"'),
                  "How each argument of an automatic call travels, in the order of the C function.")


def driver_calls(spec):
    body = "template <class Record>\ninline constexpr std::nullptr_t kDriverFunction = nullptr;\n"
    for record in (record for record in spec.records if record.function):
        body += f"template <>\ninline constexpr auto kDriverFunction<proto::{record.name}Record> = &DriverTable::{record.function.name};\n"
    return header(namespace("mpsshim", body), ("<cstddef>", '"gen/driver_table.hpp"', '"gen/records.hpp"'),
                  "The driver function behind each automatic record.")


def wire_text(spec):
    """Everything that both sides must agree on, in a fixed form: the protocol hash is over this."""
    lines = []
    for record in spec.records:
        lines.append(f"record {record.id:#06x} {record.enumerator} {record.mode} {record.order} trailing={bool(record.trailing)}")
        lines += [f"  field {field.type} {field.name}" for field in record.fields]
        lines += [f"  reply {field.type} {field.name}" for field in record.reply]
        if record.function:
            lines += [f"  argument {d.kind} {' '.join(d.parameters)}" for d in automatic.descriptors(record, spec.types)]
    return "\n".join(lines) + "\n"


def protocol_hash(spec):
    digest = hashlib.sha256(wire_text(spec).encode()).digest()[:8]
    body = f"inline constexpr std::uint64_t kProtocolHash = {int.from_bytes(digest, 'little'):#018x};"
    return header(namespace("mpsshim::proto", body), ("<cstdint>",),
                  "First eight bytes of the SHA-256 over every record's id, order, fields and arguments. Logged at attach; layouts\n"
                  "are compared by kLayoutMajor and by record sizes, never by this.")


def fuzz_dictionary(spec):
    """Record ids as they lie in a RecordHeader, little endian, with the size that a record without trailing bytes has."""
    text = "# Generated by proto/gen/generate.py from proto/spec: change it there.\n"
    for record in spec.records:
        size = 24 + sum(field.size for field in record.fields)
        raw = (size + -size % 8).to_bytes(4, "little") + record.id.to_bytes(2, "little")
        text += f'{record.name}="' + "".join(f"\\x{byte:02x}" for byte in raw) + '"\n'
    return text
