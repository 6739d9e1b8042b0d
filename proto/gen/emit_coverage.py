# SPDX-License-Identifier: Apache-2.0
"""docs/coverage.md: every driver function, and what becomes of it."""

from collections import Counter

STATES = {"local": "answered in the client", "post": "sent, no reply", "call": "sent, waits for the reply", "manual": "implemented",
          "unsupported": "not supported"}


def coverage(spec):
    counts = Counter(function.mode for function in spec.functions)
    total = len(spec.functions)
    done = total - counts["unsupported"]
    text = ("# Coverage of the driver API\n\nWritten by `proto/gen/generate.py --coverage` from `proto/spec`: change it there.\n\n"
            f"{total} functions (all ABI versions; per-thread variants counted with their function), {done} work, {counts['unsupported']} return "
            "`CUDA_ERROR_NOT_SUPPORTED`. In pass-through every function is the real driver's.\n\n| state | functions |\n| --- | --- |\n")
    text += "".join(f"| {STATES[mode]} (`{mode}`) | {counts[mode]} |\n" for mode in STATES)
    text += "\n| function | group | state | reason |\n| --- | --- | --- | --- |\n"
    for function in sorted(spec.functions, key=lambda f: (f.group, f.id)):
        state = f"as {function.same_as}" if function.same_as else STATES[function.mode]
        text += f"| {function.name} | {function.group} | {state} | {function.reason} |\n"
    return text
