# SPDX-License-Identifier: Apache-2.0
"""Automatic calls (modes post and call): from a function's arguments to its record, its reply and one descriptor for each argument.

The descriptors are types of proto/arguments.hpp; the templates that marshal by them are the behaviour, this only says which is which.
"""

import re
from dataclasses import dataclass

from model import Field, Record, SpecError


@dataclass
class Descriptor:
    argument: object
    kind: str          # name of the template in proto/arguments.hpp
    parameters: list   # its template arguments, as C++


def record_name(function):
    return f"C{function.name[1:]}"


def record_of(function, types):
    """The record of an automatic call; raises SpecError where an argument has no automatic form."""
    fields, reply = [], []
    order = function.order or ("stream" if any(a.type == "CUstream" for a in function.arguments) else "session")
    for argument in function.arguments:
        _check(function, argument, types)
        fields += _record_fields(argument, function, types)
        reply += _reply_fields(argument, types)
    trailing = ", ".join(a.name for a in function.arguments if a.direction in ("in", "inout") and a.length and a.is_pointer)
    reply_trailing = ", ".join(a.name for a in function.arguments if a.direction in ("out", "inout") and a.length and a.is_pointer)
    return Record(record_name(function), function.id, function.mode, order, f"{function.name}.", _laid_out(fields), trailing,
                  _laid_out(reply), reply_trailing, function)


def _check(function, argument, types):
    where = f"{function.group}.toml, {function.name}, {argument.name}"
    if function.mode == "post" and argument.direction in ("out", "inout") and not is_new_handle(argument, types):
        raise SpecError(f"{where}: a post has no reply, so it cannot give back a value: make the function a call")
    refusals = (
        (argument.direction == "address", "an address of the client means nothing to the broker"),
        (argument.base in types.callbacks, "a function of the client cannot be called from the broker"),
        (argument.base in types.structures, "a structure may hold pointers"),
        (argument.depth > 1, "a pointer to pointers has no automatic form"),
        (argument.base in ("CUdevice", "CUcontext"), "devices and contexts are the client's own numbering"),
        (argument.base == "CUdeviceptr" and argument.is_pointer and argument.direction != "out", "addresses behind a pointer cannot be checked"),
        (argument.base == "CUdeviceptr" and not argument.is_pointer and not argument.length,
         "a device address needs the length of what is used there, as in `in CUdeviceptr dst[ByteCount]`, so that the broker can check it"),
        (argument.optional and not _may_be_null(argument, types), "a null pointer here has no automatic form"),
        (argument.length.startswith("*") and argument.direction == "in", "a length behind a pointer serves out arrays only"),
    )
    for refused, why in refusals:
        if refused:
            raise SpecError(f"{where}: {why}: mark the function manual and write it by hand")


def _may_be_null(argument, types):
    if argument.length:
        return argument.length != "string"
    return argument.direction == "out" and not is_new_handle(argument, types)


def is_new_handle(argument, types):
    return argument.direction == "out" and argument.base in types.handles and not argument.length


def is_header_stream(argument, function):
    """The first stream goes in the record's header: it is the one whose order the record keeps."""
    return argument.type == "CUstream" and argument is next(a for a in function.arguments if a.type == "CUstream")


def _record_fields(argument, function, types):
    wire = types.wire(argument.base)
    if not argument.is_pointer:
        return [] if is_header_stream(argument, function) else [Field(wire, argument.name)]
    if is_new_handle(argument, types):
        return [Field(wire, argument.name)]
    if argument.length == "string":
        return [Field("u32", f"{argument.name}_bytes")]
    if argument.direction == "inout" and not argument.length:
        return [Field(wire, argument.name)]
    if argument.length and argument.optional:
        return [Field("u32", f"{argument.name}_present")]
    if argument.direction == "in" and not argument.length:
        return [Field(wire, argument.name)]
    return []


def _reply_fields(argument, types):
    if argument.direction not in ("out", "inout") or argument.length or is_new_handle(argument, types):
        return []
    return [Field(types.wire(argument.base), argument.name)]


def _laid_out(fields):
    """Largest first, so that there are no holes; the tail is written out."""
    fields = sorted(fields, key=lambda item: -item.alignment)
    end = sum(item.size for item in fields)
    tail = -end % max((item.alignment for item in fields), default=1)
    return fields + ([Field(f"u8[{tail}]", "reserved")] if tail else [])


def count_expression(length):
    """A length as C++ inside the record: `*n` is the record's copy of what n points to. A product must not wrap to something small; where
    a difference wraps, it is too large for everything."""
    terms = [term if term in ("-", "*") else f"std::uint64_t{{{term}}}" for term in length.lstrip("*").split()]
    if terms[1:2] == ["*"]:
        return f"saturated_product({terms[0]}, {terms[2]})"
    return " ".join(terms)


def counts(record):
    """(argument, C++ expression) for each length that the record can compute."""
    arguments = record.function.arguments if record.function else []
    return [(a, count_expression(a.length)) for a in arguments if a.length and a.length != "string"]


def descriptors(record, types):
    """One Descriptor an argument, in the function's order."""
    return [_descriptor(argument, record, types) for argument in record.function.arguments]


def _descriptor(argument, record, types):
    own, reply = f"&{record.name}Record::{argument.name}", f"&{record.name}Reply::{argument.name}"
    count = f"&{record.name}Record::count_of_{argument.name}"
    present = [f"&{record.name}Record::{argument.name}_present"] if argument.optional and argument.length and argument.is_pointer else []
    if not argument.is_pointer:
        if is_header_stream(argument, record.function):
            return Descriptor(argument, "InStream", [])
        if argument.base in types.handles:
            return Descriptor(argument, "InHandle", [own])
        return Descriptor(argument, "InRange", [own, count]) if argument.length else Descriptor(argument, "InValue", [own])
    if is_new_handle(argument, types):
        return Descriptor(argument, "NewHandle", [own])
    if argument.length == "string":
        return Descriptor(argument, "InString", [f"{own}_bytes"])
    element = Field(types.wire(argument.base) or "u8", argument.name).cpp_type()
    if argument.length:
        kind = {"in": "InArray", "out": "OutArray", "inout": "InOutArray"}[argument.direction]
        return Descriptor(argument, kind, [element, count] + present)
    if argument.direction == "in":
        return Descriptor(argument, "InPointee", [own])
    if argument.direction == "inout":
        return Descriptor(argument, "InOutValue", [own, reply])
    return Descriptor(argument, "OutValue", [reply])
