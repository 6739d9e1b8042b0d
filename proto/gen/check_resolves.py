#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the cuGetProcAddress table with the look-ups that a CUDA 13.0 runtime makes (tests/data/cudart13_resolves.tsv).

Columns of that file: order, name, version, flags (0: default stream, 2: per-thread default stream), symbol.
"""

import argparse
import sys
from pathlib import Path

import emit_proc_address
import load
from model import SpecError


def expected_rows(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        columns = line.split("\t")
        if len(columns) == 5 and columns[0].isdigit() and columns[4] != "-":
            yield columns[1], int(columns[2]), columns[3] == "2", columns[4]


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--expected", type=Path, required=True)
    options = parser.parse_args(argv)
    try:
        table = emit_proc_address.rows(load.load(options.spec))
    except SpecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rows = list(expected_rows(options.expected))
    wrong = 0
    for name, version, per_thread, symbol in rows:
        answer = emit_proc_address.resolve(table, name, version, per_thread)
        if answer != symbol:
            wrong += 1
            print(f"{name} at {version}{' per thread' if per_thread else ''}: {answer}, a CUDA 13.0 driver gives {symbol}", file=sys.stderr)
    print(f"{len(rows) - wrong} of {len(rows)} look-ups agree")
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
