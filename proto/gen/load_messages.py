# SPDX-License-Identifier: Apache-2.0
"""Reads proto/spec/messages.toml: the messages of sockets, and structures that several of them have."""

import re

from model import DIRECTIONS, Descriptor, Field, Message, SpecError, Structure

MOST_DESCRIPTORS = 8     # proto::kMaxMessageFds
MOST_BYTES = 4096        # proto::kMaxMessageBytes
HEADER_BYTES = {"client": 16, "executor": 8}
_TEXT = re.compile(r"(text|char)\[\d+\]")


def messages(content, check_keys, read_fields, check_layout):
    """`check_keys`, `read_fields` and `check_layout` are those of load.py."""
    reader = _Reader(check_keys, read_fields, check_layout)
    check_keys(content, {"retired", "structure", "message"}, (), "messages.toml")
    for entry in content.get("structure", []):
        reader.add_structure(entry)
    found = [reader.message(entry) for entry in content.get("message", [])]
    retired = content.get("retired", {})
    check_keys(retired, set(DIRECTIONS.values()), (), "messages.toml, retired")
    _check_ids(found, retired)
    found.sort(key=lambda message: (message.link, message.id))
    return list(reader.structures.values()), found


class _Reader:
    def __init__(self, check_keys, read_fields, check_layout):
        self.structures = {}
        self._check_keys, self._read_fields, self._check_layout = check_keys, read_fields, check_layout

    def add_structure(self, entry):
        where = f"messages.toml, {entry.get('name', 'a structure without a name')}"
        self._check_keys(entry, {"name", "doc", "fields", "header"}, ("name", "doc", "fields"), where)
        if entry["name"] in self.structures:
            raise SpecError(f"{where}: the name stands twice")
        fields = self._fields(entry["fields"], where)
        if not fields:
            raise SpecError(f"{where}: a structure has fields")
        self._check_layout(fields, where)
        self.structures[entry["name"]] = Structure(entry["name"], entry["doc"], fields, entry.get("header", ""))

    def message(self, entry):
        where = f"messages.toml, {entry.get('name', 'a message without a name')}"
        self._check_keys(entry, {"name", "id", "direction", "doc", "descriptors", "fields"}, ("name", "id", "direction", "doc", "fields"), where)
        if not re.fullmatch(r"([A-Z][a-z]+)+", entry["name"]):
            raise SpecError(f"{where}: a message's name is of words with a capital each")
        if entry["direction"] not in DIRECTIONS:
            raise SpecError(f"{where}: direction {entry['direction']!r} is none of {', '.join(DIRECTIONS)}")
        if not entry["doc"].endswith("."):
            raise SpecError(f"{where}: doc says in a sentence what the message is for")
        fields = self._fields(entry["fields"], where)
        message = Message(entry["name"], entry["id"], entry["direction"], entry["doc"], self._descriptors(entry.get("descriptors", []), where), fields)
        self._check_layout(_header(message.link) + fields, where)
        if HEADER_BYTES[message.link] + message.body_bytes > MOST_BYTES:
            raise SpecError(f"{where}: it has more than {MOST_BYTES} bytes")
        return message

    def _fields(self, entries, where):
        return [self._field(entry, where) for entry in entries]

    # Those that are no fields of records are read here, the others as a record's.
    def _field(self, entry, where):
        field_type = entry.get("type", "")
        if field_type in self.structures or _TEXT.fullmatch(field_type):
            self._check_keys(entry, {"type", "name", "doc"}, ("type", "name"), where)
            return Field(field_type, entry["name"], entry.get("doc", ""), structure=self.structures.get(field_type))
        [field] = self._read_fields([{key: value for key, value in entry.items() if key != "default"}], where)
        field.default = entry.get("default", "")
        return field

    def _descriptors(self, entries, where):
        found = []
        for entry in entries:
            self._check_keys(entry, {"name", "kind", "optional"}, ("name", "kind"), where)
            descriptor = Descriptor(entry["name"], entry["kind"], entry.get("optional", False))
            if any(other.name == descriptor.name for other in found):
                raise SpecError(f"{where}: two descriptors are called {descriptor.name}")
            if found and found[-1].is_optional and not descriptor.is_optional:
                raise SpecError(f"{where}: {descriptor.name} stands behind one that may be missing: nobody could tell which it is")
            found.append(descriptor)
        if len(found) > MOST_DESCRIPTORS:
            raise SpecError(f"{where}: a packet has at most {MOST_DESCRIPTORS} descriptors")
        return found


def _header(link):
    return [Field("u64", "header")] * (HEADER_BYTES[link] // 8)


def _check_ids(found, retired):
    names, ids = set(), {}
    for message in found:
        where = f"messages.toml, {message.name}"
        key = (message.link, message.id)
        gone = retired.get(message.link, [])
        free = max([other.id for other in found if other.link == message.link] + gone) + 1
        if message.id < 1:
            raise SpecError(f"{where}: ids count from 1")
        if (message.link, message.name) in names:
            raise SpecError(f"{where}: the name stands twice")
        if message.id in gone:
            raise SpecError(f"{where}: id {message.id} was another message's, for ever; the next free one is {free}")
        if key in ids:
            raise SpecError(f"{where}: id {message.id} belongs to {ids[key].name} for ever; the next free one is {free}")
        names.add((message.link, message.name))
        ids[key] = message
