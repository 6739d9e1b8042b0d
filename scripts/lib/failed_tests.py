#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the tests that failed in CTest's last run have printed, the end of each: for the end of a long log.

usage: failed_tests.py BUILD_TREE
"""
import pathlib
import re
import sys

TESTS = 8  # told of
LINES = 60  # of each


def failed_numbers(folder: pathlib.Path) -> list[str]:
    """CTest's numbers of them, in its order; none where all have passed."""
    log = folder / "LastTestsFailed.log"
    if not log.exists():
        return []
    return [line.split(":", 1)[0] for line in log.read_text(errors="replace").splitlines() if ":" in line]


def outputs(log: pathlib.Path) -> dict[str, tuple[str, list[str]]]:
    """Name and output by number."""
    found: dict[str, tuple[str, list[str]]] = {}
    number, lines = "", []
    for line in log.read_text(errors="replace").splitlines():
        begin = re.match(r"(\d+)/\d+ Test(?:ing)?: (.*)", line)
        if begin and begin.group(1) != number:
            number, lines = begin.group(1), []
            found[number] = (begin.group(2), lines)
        elif number:
            lines.append(line)
    return found


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    folder = pathlib.Path(arguments[0]) / "Testing" / "Temporary"
    numbers = failed_numbers(folder)
    if not numbers:
        return 0
    known = outputs(folder / "LastTest.log")
    for number in numbers[:TESTS]:
        name, lines = known.get(number, ("(no output is kept)", []))
        print(f"==> Test {number}: {name}")
        print("\n".join(lines[-LINES:]))
    if len(numbers) > TESTS:
        print(f"==> {len(numbers) - TESTS} more have failed.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
