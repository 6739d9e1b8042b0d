#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_nvidia_answers.py PROGRAM RECORD [FIRST SECOND]
Plays what was recorded of NVIDIA's nvidia-cuda-mps-control against ours: from a machine without a daemon to its end (nvidia_answers.json), or, where
FIRST and SECOND are clients of a daemon that runs, with them (nvidia_answers_of_a_server.json; the first one is ended). What is meant to differ is
listed, with the reason; anything else that does is a failure. The directories are those of the environment.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

PROGRAM, RECORD, *CLIENTS = sys.argv[1:]
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


def wait_for(is_so):
    end = time.monotonic() + 20
    while not is_so() and time.monotonic() < end:
        time.sleep(0.05)


def report(what):
    print("Meant to differ:\n  " + "\n  ".join(dict.fromkeys(differences)))
    if failures:
        sys.exit("\n".join(failures))
    print(f"{what} answered as recorded")


def with_clients(record):
    names = dict(zip(("first", "second"), CLIENTS), server=run(text="get_server_list\n").stdout.strip())

    def filled(text):
        for name, value in names.items():
            text = text.replace("{" + name + "}", value)
        return text

    for number, entry in enumerate(record["lines"], 1):
        entry = {key: filled(value) for key, value in entry.items()}
        done = run(text=entry["line"] + "\n")
        what = f"line {number}, {entry['line']!r}"
        hold(what, done.stdout, entry)
        if done.returncode != 0 or done.stderr:
            failures.append(f"{what}: status {done.returncode}, {done.stderr!r}")
        if "then" in entry:  # the client that was ended has heard of it, and is gone
            pid = names[entry["then"]]
            os.kill(int(pid), signal.SIGKILL)
            wait_for(lambda: not any(line.split()[:1] == [pid] for line in run(text="ps\n").stdout.splitlines()))
    report(f"{len(record['lines'])} lines")


def main():
    record = json.loads(pathlib.Path(RECORD).read_text())
    if CLIENTS:
        return with_clients(record)
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
    wait_for(lambda: not left.exists())
    if left.exists():
        failures.append("the daemon has not ended")
    without_daemon(record["without_daemon"])
    report(f"{len(record['lines'])} lines and {len(record['arguments'])} command lines")


if __name__ == "__main__":
    main()
