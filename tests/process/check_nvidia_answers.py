#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_nvidia_answers.py PROGRAM RECORD
Plays what was recorded of NVIDIA's nvidia-cuda-mps-control (nvidia_answers.json) against ours, from a machine without a daemon to its end. What is
meant to differ is listed, with the reason; anything else that does is a failure. The directories are those of the environment.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import time

PROGRAM, RECORD = sys.argv[1:]
failures, differences = [], []


def run(words=(), text=None):
    return subprocess.run([PROGRAM, *words], input=text, stdin=subprocess.DEVNULL if text is None else None, capture_output=True, text=True, timeout=60)


def hold(what, given, entry):
    """`entry`: its output to the letter, or a pattern."""
    if "pattern" in entry:
        if not re.fullmatch(entry["pattern"], given):
            failures.append(f"{what}: {given!r} is not like {entry['pattern']!r}")
        elif "differs" in entry:
            differences.append(f"{what}: {entry['differs']}")
    elif given != entry["output"]:
        failures.append(f"{what}: {given!r} and not {entry['output']!r}")


def without_daemon(record):
    for line in record["lines"]:
        done = run(text=line + "\n")
        if (done.stdout, done.stderr, done.returncode) != ("", record["errors"], record["status"]):
            failures.append(f"without a daemon, {line!r}: {done.stdout!r}, {done.stderr!r}, status {done.returncode}")


def main():
    record = json.loads(pathlib.Path(RECORD).read_text())
    without_daemon(record["without_daemon"])
    for entry in record["arguments"]:
        done = run(entry["words"])
        what = " ".join(entry["words"])
        hold(what, done.stdout, entry)
        if done.returncode != entry["status"] or done.stderr:
            failures.append(f"{what}: status {done.returncode}, {done.stderr!r}")
    for number, entry in enumerate(record["lines"], 1):
        done = run(text=entry["line"] + "\n")
        what = f"line {number}, {entry['line']!r}"
        hold(what, done.stdout, entry)
        if done.returncode != 0 or done.stderr:
            failures.append(f"{what}: status {done.returncode}, {done.stderr!r}")
    # All of them in one conversation answer the same, but for what was set meanwhile.
    questions = [entry for entry in record["lines"] if not entry["line"].startswith(("set_", "get_default_")) and "pattern" not in entry]
    done = run(text="".join(entry["line"] + "\n" for entry in questions))
    hold("all questions one behind the other", done.stdout, {"output": "".join(entry["output"] for entry in questions)})
    last = record["last"]
    done = run(text=last["line"] + "\n")
    hold(last["line"], done.stdout, last)
    left = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "control.sock")
    end = time.monotonic() + 20
    while left.exists() and time.monotonic() < end:
        time.sleep(0.05)
    if left.exists():
        failures.append("the daemon has not ended")
    without_daemon(record["without_daemon"])
    print("Meant to differ:\n  " + "\n  ".join(differences))
    if failures:
        sys.exit("\n".join(failures))
    print(f"{len(record['lines'])} lines and {len(record['arguments'])} command lines answered as recorded")


if __name__ == "__main__":
    main()
