#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the tables of docs/reliability.md from the lines that tests/reliability/main.cpp prints.

usage: report.py FILE...    one file, SIDE.tsv, for each table
"""
import pathlib
import re
import sys

NAMES = {"native": "Natively", "mps": "Under NVIDIA MPS", "ours": "Through mpsshim"}
# In this order, whatever comes first in the files.
BYSTANDERS = ["", "idle with everything", "memory", "pinned memory", "streams, events", "variables", "function pointers", "timed events",
              "device heap", "busy", "in a wait", "attaching"]


def cell(row):
    """What became of it, in a few characters: milliseconds, or the error."""
    answer, time_ms, went_on, repeats, verdict = row
    error = re.match(r"(\d+) CUDA_ERROR_\w+", answer)
    if answer == "ok":
        text = f"{float(time_ms):.0f} ms"
    elif error:
        text = f"error {error[1]}"
    else:
        text = re.split("[:,]", answer)[0]
    if answer != "ok" and int(went_on) > 0:
        text += f" ({went_on} of {repeats}: {float(time_ms):.0f} ms)"
    return text + (" **broken**" if verdict == "broken" else "")


def table(path):
    faults, cells, side = [], {}, ""
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        side, fault, bystander, *row = line.split("\t")
        if fault not in faults:
            faults.append(fault)
        cells[fault, bystander] = cell(row)
    known = {bystander for _, bystander in cells}
    columns = [name for name in BYSTANDERS if name in known] + sorted(known.difference(BYSTANDERS))
    print(f"\n**{NAMES.get(side, side)}**\n")
    print("| fault | " + " | ".join(name or "the guilty client" for name in columns) + " |")
    print("| --- " * (1 + len(columns)) + "|")
    for fault in faults:
        print(f"| {fault} | " + " | ".join(cells.get((fault, name), "") for name in columns) + " |")


if __name__ == "__main__":
    for file in sys.argv[1:]:
        table(file)
