# SPDX-License-Identifier: Apache-2.0
"""Messages of sockets: structures, ids, rows to hold what arrives against, and docs/messages.md."""

from emit import BANNER, header, namespace
from emit_records import range_check

LINKS = {
    "client": ("MessageType", "kClientMessages"),
    "executor": ("ExecutorMessage", "kExecutorMessages"),
}


def client_messages(spec):
    messages = spec.messages_of("client")
    includes = ["<array>", "<cstddef>", "<cstdint>", "<type_traits>", '"gen/enums.hpp"', '"proto/message.hpp"', '"proto/version.hpp"']
    includes += sorted({f'"{structure.header}"' for structure in spec.structures if structure.header})
    body = _ids("client", messages) + "".join(_shared(structure) for structure in spec.structures)
    body += "".join(_message(message, [f"MessageHeader header{{.type = MessageType::{message.enumerator}}};"], 16) for message in messages)
    return header(namespace("mpsshim::proto", body + _rows("client", messages)), includes,
                  "What clients and the control process send each other. kBytes is the size of the packet.")


def executor_messages(spec):
    messages = spec.messages_of("executor")
    enums = sorted({field.enum.name for message in messages for field in message.fields if field.enum})
    structures = "".join(f"using proto::{name};\n" for name in enums + ["number_in"]) + "\n"
    structures += "".join(_message(message, [], 0) for message in messages)
    body = _ids("executor", messages) + namespace("message", structures) + "\n" + _rows("executor", messages, "message::")
    return header(namespace("mpsshim::broker", body), ("<array>", "<cstddef>", "<cstdint>", "<type_traits>", '"gen/client_messages.hpp"'),
                  "What the control process and its executors send each other, behind an ExecutorHeader: kBytes is the size without that.")


def _ids(link, messages):
    return f"enum class {LINKS[link][0]} : std::uint32_t {{\n" + "".join(f"  {message.enumerator} = {message.id},\n" for message in messages) + "};\n\n"


def _shared(structure):
    fields = "".join(f"  {_member(field)}\n" for field in structure.fields)
    check = f"static_assert(sizeof({structure.name}) == {structure.size} && std::is_trivially_copyable_v<{structure.name}>);\n\n"
    if structure.header:
        return check
    return f"// {structure.doc}\nstruct {structure.name} {{\n{fields}  bool operator==(const {structure.name}&) const = default;\n}};\n" + check


def _member(field):
    array = f"[{field.count}]" if field.is_array and not field.structure else ""
    start = f" = {field.default}" if field.default else "{}"
    return f"{field.cpp_type()} {field.name}{array}{start};" + (f"  // {field.doc}" if field.doc else "")


def _message(message, first, first_bytes):
    size = first_bytes + message.body_bytes
    enum = LINKS[message.link][0]
    lines = [f"static constexpr {enum} kId = {enum}::{message.enumerator};", f"static constexpr std::size_t kBytes = {size};"]
    lines += _descriptors(message) + first + [_member(field) for field in message.fields]
    lines += range_check(message.fields) + _texts(message.fields)
    check = f"sizeof({message.name}) == {message.name}::kBytes" if size else f"std::is_empty_v<{message.name}>"
    return (f"// {message.doc}\nstruct {message.name} {{\n" + "".join(f"  {line}\n" for line in lines)
            + f"}};\nstatic_assert({check} && std::is_trivially_copyable_v<{message.name}> && std::is_standard_layout_v<{message.name}>);\n\n")


def _descriptors(message):
    if not message.descriptors:
        return ["template <typename File>", "using Descriptors = proto::NoDescriptors<File>;"]
    names = ", ".join(f"&{descriptor.name}" for descriptor in message.descriptors)
    rows = [f"  File {descriptor.name}{{-1}};  // {descriptor.kind}" + (", may be missing" if descriptor.is_optional else "") for descriptor in message.descriptors]
    return (["template <typename File>", "struct Descriptors {"] + rows
            + [f"  constexpr std::array<File*, {len(message.descriptors)}> list() {{ return {{{names}}}; }}", "};"])


def _texts(fields):
    texts = [field.name for field in fields if field.element == "text"]
    return [f"void end_texts() {{ {' '.join(f'{name}[sizeof {name} - 1] = 0;' for name in texts)} }}"] if texts else []


def _rows(link, messages, prefix=""):
    enum, table = LINKS[link]
    rows = ""
    for message in messages:
        limited = any(field.is_limited for field in message.fields)
        check = f"&proto::out_of_range_in<{prefix}{message.name}>" if limited and link == "executor" else "nullptr"
        rows += (f'  {{static_cast<std::uint32_t>({enum}::{message.enumerator}), "{message.name}", proto::MessageDirection::{message.direction}, '
                 f"{prefix}{message.name}::kBytes, {message.least_descriptors}, {len(message.descriptors)}, {check}}},\n")
    return f"// Ids ascending.\ninline constexpr proto::MessageRow {table}[] = {{\n{rows}}};\n"


def message_names(spec):
    macros = [f"MPSSHIM_{direction}" for direction in ("FROM_CLIENT", "TO_CLIENT", "TO_EXECUTOR", "FROM_EXECUTOR")]
    text = BANNER + "// MPSSHIM_<direction>(enumerator, structure) for each message; a direction whose macro is not defined is left out.\n"
    text += "".join(f"#ifndef {macro}\n#define {macro}(enumerator, structure)\n#endif\n" for macro in macros)
    text += "".join(f"MPSSHIM_{message.direction.upper()}({message.enumerator}, {message.name})\n" for message in spec.messages)
    return text + "".join(f"#undef {macro}\n" for macro in macros)


DIRECTION_WORDS = {"from_client": "client →", "to_client": "→ client", "to_executor": "→ executor", "from_executor": "executor →"}


def documentation(spec):
    text = ("# Messages\n\nWritten by `proto/gen/generate.py --messages` from `proto/spec/messages.toml`: change it there. The other side is the control process in each.\n"
            "Bytes are those of the packet, header included. Records, which go through the ring, are in `proto/spec/records.toml`.\n")
    for link, title, bytes_before in (("client", "Clients", 0), ("executor", "Executors", 8)):
        text += f"\n## {title}\n\n| id | message | direction | bytes | descriptors | what it says |\n| --- | --- | --- | --- | --- | --- |\n"
        for message in spec.messages_of(link):
            size = bytes_before + message.body_bytes + (16 if link == "client" else 0)
            text += f"| {message.id} | {message.name} | {DIRECTION_WORDS[message.direction]} | {size} | {_descriptor_words(message)} | {_what(message)} |\n"
    return text


def _descriptor_words(message):
    return "; ".join(f"{descriptor.name.replace('_', ' ')} ({descriptor.kind}{', optional' if descriptor.is_optional else ''})" for descriptor in message.descriptors)


def _what(message):
    fields = [f"`{field.name}`" + (f" {field.doc}" if field.doc else "") for field in message.fields if field.name != "reserved"]
    return message.doc + (" Fields: " + "; ".join(fields) + "." if fields else "")
