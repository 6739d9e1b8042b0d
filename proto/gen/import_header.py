#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds the functions of a newer toolkit to the spec.

    proto/gen/import_header.py --spec proto/spec --cuda-include /usr/local/cuda/include [--write]

Prints an entry for every function that the headers declare and the spec does not have, or with --write appends each to the file of its
group. An entry starts as one that is not supported.
"""

import argparse
import re
import sys
from pathlib import Path

import cuda_header
import load

MODULE_GROUPS = {
    "CUDA_ERROR": "error", "CUDA_INITIALIZE": "initialization", "CUDA_VERSION": "version", "CUDA_DEVICE": "device",
    "CUDA_DEVICE_DEPRECATED": "device", "CUDA_PRIMARY_CTX": "primary_context", "CUDA_CTX": "context", "CUDA_CTX_DEPRECATED": "context",
    "CUDA_MODULE": "module", "CUDA_MODULE_DEPRECATED": "module", "CUDA_LIBRARY": "library", "CUDA_MEM": "memory",
    "CUDA_VA": "virtual_memory", "CUDA_MALLOC_ASYNC": "stream_ordered", "CUDA_MULTICAST": "multicast", "CUDA_UNIFIED": "unified_addressing",
    "CUDA_STREAM": "stream", "CUDA_EVENT": "event", "CUDA_EXTRES_INTEROP": "external_resource", "CUDA_MEMOP": "stream_memory_ops",
    "CUDA_EXEC": "execution", "CUDA_EXEC_DEPRECATED": "execution", "CUDA_GRAPH": "graph", "CUDA_OCCUPANCY": "occupancy",
    "CUDA_TEXREF_DEPRECATED": "texture_reference", "CUDA_SURFREF_DEPRECATED": "surface_reference", "CUDA_TEXOBJECT": "texture",
    "CUDA_SURFOBJECT": "surface", "CUDA_TENSOR_MEMORY": "tensor_map", "CUDA_PEER_ACCESS": "peer", "CUDA_GRAPHICS": "graphics",
    "CUDA_DRIVER_ENTRY_POINT": "entry_point", "CUDA_COREDUMP": "coredump", "CUDA_GREEN_CONTEXTS": "green_context", "CUDA_LOGS": "error_log",
    "CUDA_CHECKPOINT": "checkpoint", "CUDA_PROFILER": "profiler", "CUDA_PROFILER_DEPRECATED": "profiler", "CUDA_GL": "opengl",
    "CUDA_GL_DEPRECATED": "opengl", "CUDA_EGL": "egl", "CUDA_VDPAU": "vdpau",
}
# Where the manual's module holds several subjects, the name decides first.
NAME_GROUPS = (
    (r"cuLink", "link"), (r"cuIpc", "ipc"), (r"cu(Array|MipmappedArray)", "array"), (r"cuMemcpy|cuMemset", "copy"),
    (r"cuUserObject|cuGraph(Retain|Release)UserObject", "user_object"), (r"cuGetExportTable", "entry_point"),
    (r"cuStream(Begin|End|Is|Get|Update)Captur|cuStreamUpdateCapture|cuThreadExchangeStreamCapture", "capture"),
)


def group_of(function):
    for pattern, group in NAME_GROUPS:
        if re.match(pattern, function.symbol):
            return group
    return MODULE_GROUPS.get(function.module, "unsorted")


def entry_text(name, identifier, since, arguments, per_thread="", reason=""):
    lines = ["[[function]]", f'name = "{name}"', f"id = {identifier}", f"since = {since}"]
    lines.append(f'reason = "{reason}"')
    if per_thread:
        lines.append(f'per_thread = "{per_thread}"')
    if not arguments:
        return "\n".join(lines + ["arguments = []", ""])
    return "\n".join(lines + ["arguments = ["] + [f'  "{argument}",' for argument in arguments] + ["]", ""])


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--cuda-include", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(argv)

    spec = load.load(options.spec)
    known = {function.name for function in spec.functions}
    next_id = max((function.id for function in spec.functions), default=0) + 1
    found = [f for f in cuda_header.read_functions(options.cuda_include).values() if f.symbol not in known]
    for function in sorted(found, key=lambda f: (f.since, group_of(f), f.symbol)):
        toolkit = f"{function.since // 1000}.{function.since % 1000 // 10}"
        text = entry_text(function.symbol, next_id, function.since, [f"{a.type} {a.name}" for a in function.arguments],
                          function.per_thread, reason=f"new in CUDA {toolkit}")
        next_id += 1
        if options.write:
            with open(options.spec / f"{group_of(function)}.toml", "a", encoding="utf-8") as out:
                out.write("\n" + text)
        else:
            print(f"# {group_of(function)}.toml\n{text}")
    print(f"{len(found)} functions are new, {len(known)} are in the spec", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
