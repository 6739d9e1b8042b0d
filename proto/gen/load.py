# SPDX-License-Identifier: Apache-2.0
"""Reads proto/spec/*.toml into a model.Spec; whatever is wrong in it ends with a SpecError."""

import re
import tomllib

import load_messages
from model import FIRST_RECORD_ID, ORDERS, PER_THREAD, RECIPES, REPEATS, UNSIGNED, WIRE_SIZES, Argument, AttributeOverride, Enum, Field, Function, Record, Spec, SpecError, Types, Value

# Of the ABI of CUDA 3.1 and older: the type that the argument has today.
WIDER = {"CUdeviceptr_v1": "CUdeviceptr", "unsigned int": "size_t"}

FUNCTION_KEYS = {"name", "id", "since", "reason", "per_thread", "arguments", "same_as"}
RECORD_KEYS = {"name", "id", "order", "doc", "fields", "trailing", "reply", "reply_trailing", "repeat", "recipe"}
_ARGUMENT = re.compile(r"(out )?(\w+(?: \w+)*\**) (\w+)")
_RULE = re.compile(r"[a-z_]+\(.*\)")
# Members of AddressOracle (tests/wire/support/address_oracle.hpp), explained in addresses.toml.
RULES = ("bytes", "bytes_or_row", "rows", "texels", "operations", "word", "leased", "reserved", "host", "registrable", "registered", "part",
         "external", "value", "structure")


def load(folder):
    files = {path.stem: _read(path) for path in sorted(folder.glob("*.toml"))}
    if "types" not in files:
        raise SpecError(f"{folder} has no types.toml: name the spec folder with --spec")
    types = _types(files.pop("types"))
    records_file = files.pop("records", {})
    enums = _enums(files.pop("enums", {}))
    overrides = _overrides(files.pop("device_attributes", {}))
    addresses = files.pop("addresses", {})
    messages_file = files.pop("messages", {})
    functions = [_function(group, entry) for group, content in files.items() for entry in content.get("function", [])]
    _check_ids(functions)
    _resolve_same_as(functions)
    for function in functions:
        _check_function(function, types)
    functions.sort(key=lambda function: function.id)
    records = [_record(entry, enums) for entry in records_file.get("record", [])]
    records.sort(key=lambda record: record.id)
    _check_records(records)
    _check_addresses(addresses, {function.name: function for function in functions}, types)
    structures, messages = load_messages.messages(messages_file, _check_keys, lambda entries, where: _fields(entries, enums, where), check_layout)
    return Spec(types, functions, records, overrides, list(enums.values()), structures, messages, addresses)


def _check_addresses(addresses, functions, types):
    for name, rules in addresses.items():
        where = f"addresses.toml, {name}"
        if name not in functions:
            raise SpecError(f"{where}: no function has that name")
        arguments = [argument.name for argument in functions[name].arguments if argument.is_address(types)]
        for argument in arguments:
            if argument not in rules:
                raise SpecError(f"{where}: {argument} is an address: say what must hold of it")
        for argument, rule in rules.items():
            if argument not in arguments:
                raise SpecError(f"{where}: {argument} is no address of that function")
            if not _RULE.fullmatch(rule) or rule.partition("(")[0] not in RULES:
                raise SpecError(f"{where}, {argument}: {rule!r} is no rule: write name(arguments), with one of {', '.join(RULES)}")


def _overrides(content):
    found = [AttributeOverride(**entry) for entry in content.get("override", [])]
    for before, after in zip(found, found[1:]):
        if before.number >= after.number:
            raise SpecError(f"device_attributes.toml: {after.name} ({after.number}) stands behind {before.name} ({before.number}): sort by number")
    return found


def _read(path):
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path}: {error}") from error


def _types(content):
    kinds = content["kinds"]
    return Types(set(kinds["values"]), set(kinds["address_structures"]), set(kinds["opaque"]), content.get("newer", []), content.get("foreign", []))


def parse_argument(text, where):
    match = _ARGUMENT.fullmatch(text)
    if not match:
        raise SpecError(f"{where}: argument {text!r} was not understood: write `type name`, such as `const void* source`")
    return Argument(match[2], match[3], bool(match[1]))


def _function(group, entry):
    where = f"{group}.toml, {entry.get('name', 'an entry without a name')}"
    _check_keys(entry, FUNCTION_KEYS, ("name", "id", "since"), where)
    if "same_as" in entry:
        if "reason" in entry:
            raise SpecError(f"{where}: same_as takes the reason from {entry['same_as']}: remove it here")
    else:
        _check_keys(entry, FUNCTION_KEYS, ("arguments",), where)
        if entry.get("reason") == "":
            raise SpecError(f"{where}: an unsupported function needs a reason")
    arguments = [parse_argument(text, where) for text in entry.get("arguments", [])]
    return Function(entry["name"], group, entry["id"], entry["since"], entry.get("reason", ""),
                    entry.get("per_thread", ""), arguments, entry.get("same_as", ""))


def _check_keys(entry, known, needed, where):
    for key in entry.keys() - known:
        raise SpecError(f"{where}: unknown key {key!r}; known are {', '.join(sorted(known))}")
    for key in needed:
        if key not in entry:
            raise SpecError(f"{where}: {key!r} is missing")


def _check_ids(functions):
    names, ids = {}, {}
    for function in functions:
        where = f"{function.group}.toml, {function.name}"
        if function.name in names:
            raise SpecError(f"{where}: the name stands in {names[function.name].group}.toml already")
        if function.id in ids:
            free = max(other.id for other in functions) + 1
            raise SpecError(f"{where}: id {function.id} belongs to {ids[function.id].name} for ever; the next free one is {free}")
        if not 0 < function.id < FIRST_RECORD_ID:
            raise SpecError(f"{where}: id {function.id} is outside 1..{FIRST_RECORD_ID - 1}")
        names[function.name] = ids[function.id] = function


def _resolve_same_as(functions):
    by_name = {function.name: function for function in functions}
    for function in functions:
        if not function.same_as:
            continue
        target = by_name.get(function.same_as)
        if target is None or target.same_as:
            raise SpecError(f"{function.group}.toml, {function.name}: same_as names {function.same_as}, "
                            "which is not an entry with arguments of its own")
        function.reason = target.reason
        if not function.arguments:
            function.arguments = target.arguments
        elif not _widen_to(function.arguments, target.arguments):
            raise SpecError(f"{function.group}.toml, {function.name}: its arguments do not widen to those of {function.same_as}")
        else:
            function.widens = True


def _widen_to(narrow, wide):
    """What is put in may have more bits there; all else is the same."""
    def fits(one, other):
        is_wider = WIDER.get(one.type) == other.type
        return is_wider or one.type == other.type
    return len(narrow) == len(wide) and all(
        one.name == other.name and one.is_out == other.is_out and fits(one, other) for one, other in zip(narrow, wide))


def _check_function(function, types):
    where = f"{function.group}.toml, {function.name}"
    _check_choice(where, "per_thread", function.per_thread, PER_THREAD)
    if not re.fullmatch(r"cu[A-Z]\w*", function.name):
        raise SpecError(f"{where}: a driver function's name begins with cu and a capital")
    if not isinstance(function.since, int) or function.since < 2000:
        raise SpecError(f"{where}: since is the driver version as a number, such as 12040")
    if len({argument.name for argument in function.arguments}) != len(function.arguments):
        raise SpecError(f"{where}: two arguments have the same name")
    for argument in function.arguments:
        _check_argument(argument, types, where)


def _check_choice(where, key, value, choices):
    if value not in choices:
        raise SpecError(f"{where}: {key} {value!r} is none of {', '.join(choice or '(nothing)' for choice in choices)}")


def _check_argument(argument, types, where):
    where = f"{where}, {argument.name}"
    if not types.knows(argument.base):
        raise SpecError(f"{where}: type {argument.base!r} is not in types.toml: add it there")
    if argument.base in types.opaque and not argument.is_pointer:
        raise SpecError(f"{where}: {argument.base} stands only behind a pointer")
    if argument.is_out and not (argument.is_pointer and argument.has_addresses(types)):
        raise SpecError(f"{where}: only a pointer to addresses is marked as out: nothing reads it elsewhere")
    if argument.is_out and argument.type.startswith("const "):
        raise SpecError(f"{where}: {argument.type} cannot be out")


def _enums(content):
    found = {}
    for entry, is_flags in [(entry, key == "flags") for key in ("enum", "flags") for entry in content.get(key, [])]:
        where = f"enums.toml, {entry.get('name', 'an entry without a name')}"
        _check_keys(entry, {"name", "type", "doc", "values"}, ("name", "type", "values"), where)
        if entry["name"] in found:
            raise SpecError(f"{where}: the name stands twice")
        if entry["type"] not in UNSIGNED:
            raise SpecError(f"{where}: type {entry['type']!r} is none of {', '.join(UNSIGNED)}")
        values = [Value(**value) for value in entry["values"]]
        for value in values:
            if not 0 <= value.value < 1 << 8 * WIRE_SIZES[entry["type"]]:
                raise SpecError(f"{where}: {value.name} does not fit {entry['type']}")
            if is_flags and value.value.bit_count() != 1:
                raise SpecError(f"{where}: {value.name} is {value.value}: a flag is one bit")
        for what in ([value.name for value in values], [value.value for value in values]):
            if len(set(what)) != len(what):
                raise SpecError(f"{where}: two of its values are the same")
        found[entry["name"]] = Enum(entry["name"], entry["type"], values, is_flags, entry.get("doc", ""))
    return found


def _record(entry, enums):
    where = f"records.toml, {entry.get('name', 'an entry without a name')}"
    _check_keys(entry, RECORD_KEYS, ("name", "id", "order", "doc", "fields"), where)
    _check_choice(where, "order", entry["order"], ORDERS)
    if not FIRST_RECORD_ID <= entry["id"] <= 0xFFFF:
        raise SpecError(f"{where}: id {entry['id']:#x} is outside {FIRST_RECORD_ID:#x}..0xffff")
    if "reply" in entry and entry["order"] == "stream":
        raise SpecError(f"{where}: work of a stream is a post: whoever waits for it waits for a fence")
    if "reply" not in entry and ("reply_trailing" in entry or entry["order"] == "out_of_line"):
        raise SpecError(f"{where}: a post has no reply and keeps its order: give it a reply, if only `reply = []`")
    _check_choice(where, "recipe", entry.get("recipe", "none"), RECIPES)
    if "reply" in entry:
        _check_choice(where, "repeat", entry.get("repeat", ""), REPEATS)
    elif "repeat" in entry:
        raise SpecError(f"{where}: a post is not repeated: it is among the records that the next executor gets, or was done")
    if entry.get("recipe") == "restoring" and not any(field["name"] == "restores" and field["type"] == "bool" for field in entry["fields"]):
        raise SpecError(f"{where}: a restoring recipe needs a bool `restores`")
    return Record(entry["name"], entry["id"], entry["order"], entry["doc"], _fields(entry["fields"], enums, where), entry.get("trailing", ""),
                  _fields(entry["reply"], enums, where) if "reply" in entry else None, entry.get("reply_trailing", ""),
                  entry.get("repeat", ""), entry.get("recipe", "none"))


def _fields(entries, enums, where):
    return [_field(entry, enums, f"{where}, {entry.get('name', 'a field without a name')}") for entry in entries]


def _field(entry, enums, where):
    _check_keys(entry, {"type", "name", "doc", "of", "max", "one_of"}, ("type", "name"), where)
    field = Field(entry["type"], entry["name"], entry.get("doc", ""))
    named, _, width = entry["type"].partition(":")
    if named == "bool":
        field.type, field.is_truth, field.allowed = width or "u32", True, [0, 1]
    elif named in enums:
        field.enum = enums[named]
        field.type = width or field.enum.type
        if not field.enum.is_flags:
            field.allowed = _allowed(entry.get("of"), field.enum, where)
    elif not re.fullmatch(rf"({'|'.join(WIRE_SIZES)}|id:\w+)(\[\d+\])?", entry["type"]):
        raise SpecError(f"{where}: type {entry['type']!r} is none of {', '.join(WIRE_SIZES)}, id:<kind> or one of them with [n], bool, "
                        "nor in enums.toml")
    if (field.enum or field.is_truth) and (field.type not in UNSIGNED or (field.enum and field.size < WIRE_SIZES[field.enum.type])):
        raise SpecError(f"{where}: {width!r} does not hold {named}: it is none of {', '.join(UNSIGNED)}, or too small")
    if "of" in entry and field.allowed is None or (field.enum and field.enum.is_flags and field.type != field.enum.type):
        raise SpecError(f"{where}: `of` limits an enum, and flags have one width")
    if "max" in entry or "one_of" in entry:
        if field.type not in UNSIGNED or field.enum or field.is_truth:
            raise SpecError(f"{where}: only one unsigned number has a largest value, or certain ones")
        field.allowed = entry["one_of"] if "one_of" in entry else list(range(entry["max"] + 1))
        field.largest = entry.get("max")
    return field


def _allowed(names, enum, where):
    known = {value.name: value.value for value in enum.values}
    for name in names or []:
        if name not in known:
            raise SpecError(f"{where}: {name} is no value of {enum.name}")
    return sorted(known[name] for name in names) if names else sorted(known.values())


def check_layout(fields, where):
    """No hole and no tail: what the compiler would pad, the spec writes out, so that no byte on the wire is left to chance."""
    offset = 0
    for item in fields:
        hole = -offset % item.alignment
        if hole:
            raise SpecError(f"{where}: {item.name} would begin behind a hole of {hole} bytes at {offset}: "
                            "put a reserved field of that size before it, or reorder")
        offset += item.size
    tail = -offset % max((item.alignment for item in fields), default=1)
    if tail:
        raise SpecError(f"{where}: {tail} bytes of padding would follow at {offset}: end with a reserved field of that size")
    return offset


def _check_records(records):
    names, ids = set(), {}
    for record in records:
        where = f"record {record.name}"
        if record.name in names:
            raise SpecError(f"{where}: the name stands twice")
        if record.id in ids:
            free = max(other.id for other in records) + 1
            raise SpecError(f"{where}: id {record.id:#x} belongs to {ids[record.id].name} for ever; the next free one is {free:#x}")
        names.add(record.name)
        ids[record.id] = record
        check_layout(record.fields, where)
        check_layout(record.reply or [], f"{where}, reply")
