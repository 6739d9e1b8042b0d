#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the spec with a toolkit: every function that its headers declare and every symbol of its stub library is in the spec, with
the arguments, the per-thread variant and the introduction that the headers give it.

The introduction (`since`) comes from the PFN_<name>_v<version> typedefs: sorted descending they pair with the ABI suffixes descending.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import cuda_header
import load
from model import SpecError


def differences(spec, functions):
    known = spec.by_name()
    newest = max(function.since for function in spec.functions)
    for symbol, found in functions.items():
        function = known.get(symbol)
        if function is None:
            if found.since <= newest:
                yield f"{symbol} is declared by the toolkit and missing in the spec: proto/gen/import_header.py writes an entry"
            continue
        types = [argument.type for argument in function.arguments]
        if [cuda_header.normalise_type(text) for text in types] != found.types():
            yield f"{symbol}: the toolkit declares ({', '.join(found.types())}), the spec ({', '.join(types)})"
        if function.per_thread != found.per_thread:
            yield f"{symbol}: per_thread is {found.per_thread!r} in the toolkit, {function.per_thread!r} in the spec"
        if found.since and function.since != found.since:
            yield f"{symbol}: since is {found.since} in the toolkit, {function.since} in the spec"


def missing_symbols(spec, stub):
    listing = subprocess.run(["nm", "-D", "--defined-only", str(stub)], capture_output=True, text=True, check=True).stdout
    exported = {symbol for function in spec.functions for symbol in function.symbols()}
    for line in listing.splitlines():
        symbol = line.split()[-1].partition("@")[0]
        is_driver_call = len(symbol) > 2 and symbol.startswith("cu") and symbol[2].isupper()  # some stubs carry the debugger's cudbg* too
        if is_driver_call and symbol not in exported:
            yield f"{symbol} is in {stub} and would not be exported"


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--cuda-include", type=Path, required=True)
    parser.add_argument("--stub", type=Path, help="the toolkit's stub of libcuda.so")
    options = parser.parse_args(argv)
    try:
        spec = load.load(options.spec)
    except SpecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    functions = cuda_header.read_functions(options.cuda_include)
    wrong = list(differences(spec, functions))
    if options.stub and options.stub.is_file():
        wrong += missing_symbols(spec, options.stub)
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(functions)} functions of {options.cuda_include}, {len(wrong)} differences")
    return 1 if wrong or not functions else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
