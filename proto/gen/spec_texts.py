# SPDX-License-Identifier: Apache-2.0
"""Small specs for the generator's tests: text of one entry, and what the generator reads of it."""

import tempfile
from pathlib import Path

import load

TYPES = """
[kinds]
values = [
  "int", "unsigned int", "unsigned char", "size_t", "float", "CUdeviceptr", "CUdeviceptr_v1", "CUdevice", "CUstream", "CUevent", "CUgraphNode",
  "CUmode", "CUDA_COPY", "CUhostFn",
]
address_structures = ["CUDA_PLACE"]
opaque = ["void", "char"]
"""


def entry(name="cuThing", id=1, since=2000, arguments=(), **more):
    lines = ["[[function]]", f'name = "{name}"', f"id = {id}", f"since = {since}"]
    lines += [f'{key} = "{value}"' for key, value in more.items()]
    return "\n".join(lines + ["arguments = [" + ", ".join(f'"{argument}"' for argument in arguments) + "]"]) + "\n"


def record(name="Thing", id=0x8001, fields="[]", more=""):
    return f'[[record]]\nname = "{name}"\nid = {id}\norder = "session"\ndoc = "A thing."\nfields = {fields}\n{more}\n'


ENUMS = """
[[enum]]
name = "Place"
type = "u8"
values = [ { name = "here", value = 0 }, { name = "there", value = 1 }, { name = "gone", value = 4 } ]
[[flags]]
name = "Wish"
type = "u32"
values = [ { name = "soon", value = 1 }, { name = "late", value = 4 } ]
"""


def load_text(functions="", records="", types=TYPES, addresses="", enums=ENUMS, messages=""):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("types", types), ("things", functions), ("records", records), ("addresses", addresses), ("enums", enums), ("messages", messages)):
            Path(folder, f"{name}.toml").write_text(text, encoding="utf-8")
        return load.load(Path(folder))
