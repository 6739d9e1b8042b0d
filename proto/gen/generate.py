#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the declarations that follow from proto/spec.

    proto/gen/generate.py --spec proto/spec --out build/generated [--cuda-include /usr/local/cuda/include]
    proto/gen/generate.py --spec proto/spec --coverage docs/coverage.md [--check]
    proto/gen/generate.py --spec proto/spec --messages docs/messages.md [--check]

Files appear as OUT/gen/*. A file whose content stays the same is not touched, so nothing that includes it is built again.
"""

import argparse
import re
import sys
from pathlib import Path

import emit_addresses
import emit_api
import emit_coverage
import emit_enums
import emit_exports
import emit_messages
import emit_proc_address
import emit_records
import load
from model import OLDEST_TOOLKIT, SpecError

TESTS = Path(__file__).resolve().parent.parent.parent / "tests"
OUTPUTS = {
    "address_rows.hpp": emit_addresses.address_rows,
    "api_declarations.hpp": emit_exports.api_declarations,
    "api_ids.hpp": emit_api.api_ids,
    "checked_driver.hpp": emit_addresses.checked_driver,
    "checks.cpp": emit_api.checks,
    "client_messages.hpp": emit_messages.client_messages,
    "cuda_api.hpp": emit_api.cuda_api,
    "device_attributes.inc": emit_api.device_attributes,
    "driver_table.hpp": emit_api.driver_table,
    "enums.hpp": emit_enums.enums,
    "executor_messages.hpp": emit_messages.executor_messages,
    "exports.cpp": emit_exports.exports,
    "exports.map": emit_exports.version_script,
    "fuzz.dict": emit_records.fuzz_dictionary,
    "kept_recipes.inc": emit_records.kept_recipes,
    "message_names.inc": emit_messages.message_names,
    "proc_address.inc": emit_proc_address.proc_address,
    "protocol_hash.hpp": emit_records.protocol_hash,
    "ranges.inc": emit_records.ranges,
    "record_names.inc": emit_records.record_names,
    "records.hpp": emit_records.records,
}


def is_current(path, text):
    return path.exists() and path.read_text(encoding="utf-8") == text


def write_if_changed(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not is_current(path, text):
        path.write_text(text, encoding="utf-8")


def toolkit_version(include_dir):
    match = re.search(r"^#define CUDA_VERSION (\d+)", (include_dir / "cuda.h").read_text(encoding="utf-8", errors="replace"), flags=re.M)
    if not match:
        raise SpecError(f"{include_dir}/cuda.h has no CUDA_VERSION: name the toolkit's include folder with --cuda-include")
    return int(match[1])


def check_toolkit(include_dir, spec):
    version = toolkit_version(include_dir)
    if version < OLDEST_TOOLKIT:
        raise SpecError(f"{include_dir}/cuda.h is version {version}, {OLDEST_TOOLKIT} or newer is needed")
    newest = max(function.since for function in spec.functions)
    if version // 10 > newest // 10:
        print(f"cuda.h is version {version}, the spec ends with {newest}: functions that came since are not exported; "
              "proto/gen/import_header.py adds them", file=sys.stderr)


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, required=True, help="folder of the spec")
    parser.add_argument("--out", type=Path, help="where the folder gen/ is written")
    parser.add_argument("--cuda-include", type=Path, help="the toolkit's include folder, to compare its version")
    parser.add_argument("--coverage", type=Path, help="write the table for the documentation here")
    parser.add_argument("--messages", type=Path, help="write the tables of messages for the documentation here")
    parser.add_argument("--check", action="store_true", help="with --coverage and --messages: write nothing, fail if the file is not current")
    parser.add_argument("--list-outputs", action="store_true", help="print the names of the files, for CMake")
    options = parser.parse_args(argv)
    if options.list_outputs:
        print(";".join(sorted(OUTPUTS)))
        return 0
    try:
        spec = load.load(options.spec)
        if options.cuda_include:
            check_toolkit(options.cuda_include, spec)
    except SpecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.out:
        for name, emit in OUTPUTS.items():
            write_if_changed(options.out / "gen" / name, emit(spec))
    for option, path, text in (("coverage", options.coverage, lambda: emit_coverage.coverage(spec, TESTS)),
                               ("messages", options.messages, lambda: emit_messages.documentation(spec))):
        if path and not options.check:
            write_if_changed(path, text())
        elif path and not is_current(path, text()):
            print(f"error: {path} is not what the spec says: run generate.py --spec {options.spec} --{option} {path}", file=sys.stderr)
            return 1
    print(f"{len(spec.functions)} functions, {sum(f.is_supported for f in spec.functions)} of them supported; {len(spec.records)} records, "
          f"{len(spec.messages)} messages")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
