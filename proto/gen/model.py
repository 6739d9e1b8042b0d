# SPDX-License-Identifier: Apache-2.0
"""What the spec says, as Python objects. load.py makes and checks them, emit_*.py write C++ from them; both sides keep to what is here."""

import re
from dataclasses import dataclass, field

REPEATS = ("harmless", "never")
RECIPES = ("none", "as_made", "restoring")
DIRECTIONS = {"from_client": "client", "to_client": "client", "to_executor": "executor", "from_executor": "executor"}  # and the link
ORDERS = ("stream", "session", "out_of_line")
PER_THREAD = ("", "ptsz", "ptds")
FIRST_RECORD_ID = 0x8000  # below: one id for each API function; from here on: records.toml
OLDEST_TOOLKIT = 12040    # the oldest cuda.h that the project builds with

WIRE_SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i32": 4, "i64": 8, "f32": 4}
UNSIGNED = ("u8", "u16", "u32", "u64")
WIRE_CPP = {"u8": "std::uint8_t", "u16": "std::uint16_t", "u32": "std::uint32_t", "u64": "std::uint64_t",
            "i32": "std::int32_t", "i64": "std::int64_t", "f32": "float"}


class SpecError(Exception):
    """A sentence that names the file, the entry and the remedy."""


@dataclass
class Types:
    values: set[str]              # passed by value, or seen through pointers
    address_structures: set[str]  # with addresses that the driver uses
    opaque: set[str]              # only behind a pointer
    newer: list[dict]             # declarations that an older cuda.h lacks
    foreign: list[dict]           # declarations of headers that need not be installed

    def knows(self, name):
        return any(name in table for table in (self.values, self.address_structures, self.opaque))


@dataclass
class Argument:
    type: str     # as C writes it, stars at the end of the type
    name: str
    is_out: bool  # addresses behind the pointer are the driver's answer

    @property
    def is_pointer(self):
        return self.type.endswith("*")

    @property
    def base(self):
        """The type without const and stars."""
        return re.sub(r"\bconst\b|\*", "", self.type).strip()

    @property
    def depth(self):
        return self.type.count("*")

    def declaration(self):
        return f"{self.type} {self.name}"

    def has_addresses(self, types):
        return self.base in ("CUdeviceptr", "CUdeviceptr_v1") or self.base in types.address_structures

    def is_address(self, types):
        """Whether memory is named by it: a device address, bytes by a pointer, a structure with addresses."""
        return (self.has_addresses(types) and not self.is_out) or (self.base == "void" and self.depth == 1)


@dataclass
class Function:
    name: str
    group: str
    id: int
    since: int        # driver version that has this variant first; the toolkit of that version declares it
    reason: str       # why it is not supported; empty: it is written by hand
    per_thread: str
    arguments: list[Argument]
    same_as: str = ""  # newer variant with the same behaviour, and the same arguments or wider ones
    widens: bool = False

    @property
    def family(self):
        """The name that cuGetProcAddress is asked for."""
        return re.sub(r"_v\d+$", "", self.name)

    @property
    def per_thread_since(self):
        return max(7000, self.since)  # per-thread default streams came with CUDA 7

    @property
    def handler(self):
        """The function of namespace api that does the work."""
        return self.same_as or self.name

    @property
    def is_supported(self):
        return not self.reason

    @property
    def is_hand_written(self):
        return self.is_supported and not self.same_as

    def symbols(self):
        """Exported names: the function and its per-thread variant."""
        return [self.name] + ([f"{self.name}_{self.per_thread}"] if self.per_thread else [])

    def parameters(self):
        return ", ".join(argument.declaration() for argument in self.arguments)

    def parameter_types(self):
        return ", ".join(argument.type for argument in self.arguments)


@dataclass
class Value:
    name: str
    value: int
    doc: str = ""


@dataclass
class Enum:
    name: str
    type: str  # of a field that names it alone
    values: list[Value]
    is_flags: bool
    doc: str = ""


@dataclass
class Field:
    type: str  # u8 ... f32, id:<handle kind>, or one of these with [n]
    name: str
    doc: str = ""
    enum: Enum | None = None          # whose number it is
    is_truth: bool = False            # 0 or 1
    structure: "Structure | None" = None  # of messages.toml
    default: str = ""                 # of a message's
    allowed: list[int] | None = None  # all that it can be; of flags: none, bits are those of the enum
    largest: int | None = None        # where `allowed` is everything up to it

    @property
    def element(self):
        return self.type.partition("[")[0]

    @property
    def is_limited(self):
        return self.allowed is not None or (self.enum is not None and self.enum.is_flags)

    @property
    def count(self):
        return int(self.type.partition("[")[2].rstrip("]") or 1)

    @property
    def is_array(self):
        return "[" in self.type

    @property
    def is_text(self):
        return self.element in ("text", "char")

    @property
    def alignment(self):
        if self.structure:
            return max(field.alignment for field in self.structure.fields)
        if self.is_text:
            return 1
        return 8 if self.element.startswith("id:") else WIRE_SIZES[self.element]

    @property
    def size(self):
        return self.structure.size if self.structure else self.alignment * self.count

    def cpp_type(self):
        if self.structure:
            return f"proto::{self.structure.name}"
        if self.is_text:
            return "char"
        if self.element.startswith("id:"):
            return f"Id<HandleKind::{self.element[3:]}>"
        if self.is_truth:
            return f"Wide<bool, {WIRE_CPP[self.element]}>"
        if self.enum and self.enum.is_flags:
            return f"Flags<{self.enum.name}>"
        if self.enum:
            return self.enum.name if self.enum.type == self.element else f"Wide<{self.enum.name}, {WIRE_CPP[self.element]}>"
        return WIRE_CPP[self.element]


@dataclass
class Structure:
    """What fields of several messages are made of."""
    name: str
    doc: str
    fields: list[Field]
    header: str = ""  # where it is written by hand

    @property
    def size(self):
        return sum(field.size for field in self.fields)


@dataclass
class Descriptor:
    name: str
    kind: str
    is_optional: bool = False


@dataclass
class Message:
    name: str
    id: int
    direction: str
    doc: str
    descriptors: list[Descriptor]
    fields: list[Field]

    @property
    def link(self):
        return DIRECTIONS[self.direction]

    @property
    def enumerator(self):
        return re.sub(r"(?<!^)([A-Z])", r"_\1", self.name).lower()

    @property
    def body_bytes(self):
        return sum(field.size for field in self.fields)

    @property
    def least_descriptors(self):
        return sum(not descriptor.is_optional for descriptor in self.descriptors)


@dataclass
class Record:
    name: str       # LaunchRecord and LaunchReply belong to Launch
    id: int
    order: str
    doc: str
    fields: list[Field]
    trailing: str = ""
    reply: list[Field] | None = None  # none: a post; empty: a call whose reply is its status
    reply_trailing: str = ""
    repeat: str = ""       # of a call
    recipe: str = "none"

    @property
    def is_call(self):
        return self.reply is not None


@dataclass
class AttributeOverride:
    number: int
    name: str    # without CU_DEVICE_ATTRIBUTE_
    value: int
    reason: str


@dataclass
class Spec:
    types: Types
    functions: list[Function]  # by id
    records: list[Record]      # by id
    attribute_overrides: list[AttributeOverride] = field(default_factory=list)  # by number
    enums: list[Enum] = field(default_factory=list)
    structures: list[Structure] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)  # by link and id
    addresses: dict[str, dict[str, str]] = field(default_factory=dict)  # function of the executor's -> address among its parameters -> its rule

    def messages_of(self, link):
        return [message for message in self.messages if message.link == link]

    def by_name(self):
        return {function.name: function for function in self.functions}
