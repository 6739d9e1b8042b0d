#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the table of docs/reliability.md from the lines that tests/reliability/main.cpp prints.

usage: report.py FILE...    one file a column: SIDE.tsv
"""
import pathlib
import re
import sys

NAMES = {"native": "native", "mps": "NVIDIA MPS", "ours": "mpsshim"}


def cell(row):
    """What became of a bystander, in a few characters: 'goes on, 230 ms', or the error."""
    answer, time_ms, went_on, repeats, verdict = row
    error = re.match(r"(\d+) (CUDA_ERROR_\w+)", answer)
    if answer == "ok":
        text = "goes on" + (f", {float(time_ms):.0f} ms" if float(time_ms) >= 0 else "")
    elif error:
        text = f"`{error[2].removeprefix('CUDA_ERROR_')}`"
    else:
        text = answer.split(":")[0].split(",")[0]
    if answer != "ok" and int(went_on) > 0:
        text += f" ({went_on} of {repeats} went on, {float(time_ms):.0f} ms)"
    return text + (" **broken**" if verdict == "broken" else "")


def main(paths):
    sides, faults, bystanders, cells = [], [], [], {}
    for path in paths:
        for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
            side, fault, bystander, *row = line.split("\t")
            for known, value in ((sides, side), (faults, fault), (bystanders, bystander)):
                if value not in known:
                    known.append(value)
            cells[fault, bystander, side] = cell(row)
    bystanders.sort()
    print("| fault | who | " + " | ".join(NAMES[side] for side in sides) + " |")
    print("| --- " * (2 + len(sides)) + "|")
    for fault in faults:
        first = fault
        for bystander in bystanders:
            row = [cells.get((fault, bystander, side)) for side in sides]
            if not any(row):
                continue
            who = bystander or "the guilty client"
            print(f"| {first} | {who} | " + " | ".join(text or "—" for text in row) + " |")
            first = ""


if __name__ == "__main__":
    main(sys.argv[1:])
