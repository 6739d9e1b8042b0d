# SPDX-License-Identifier: Apache-2.0
"""docs/coverage.md: every driver function, what becomes of it and which test calls it; device attributes that are overridden."""

import re

# Where a function's test is looked for, best first: the same body runs on the real driver, through the broker and on the CPU driver.
TEST_FOLDERS = ("conformance", "gpu", "wire", "process", "unit")


def tests_by_function(folder):
    """Function names, as the tests write them, and the first file that names each. A member of a driver's table is no call of the function."""
    found = {}
    for kind in TEST_FOLDERS:
        for path in sorted((folder / kind).glob("*.[ch]pp")) + sorted((folder / kind).glob("*.cu")):
            for name in re.findall(r"(?<!Table::)\bcu[A-Z]\w*", path.read_text(encoding="utf-8")):
                found.setdefault(name, f"{kind}/{path.name}")
    return found


def _test_of(function, newest, tests):
    """A test names the newest variant of a function as cuda.h lets programs name it, without its version."""
    names = [function.name] + ([function.family] if newest[function.family] is function else [])
    return next((tests[name] for name in names if name in tests), "")


def coverage(spec, tests_folder):
    tests = tests_by_function(tests_folder)
    newest = {}
    for function in spec.functions:
        if function.family not in newest or newest[function.family].since <= function.since:
            newest[function.family] = function
    total = len(spec.functions)
    done = sum(function.is_supported for function in spec.functions)
    text = ("# Coverage of the driver API\n\nWritten by `proto/gen/generate.py --coverage` from `proto/spec` and `tests`: change it there.\n\n"
            f"{total} functions (all ABI versions; per-thread variants counted with their function), {done} work, {total - done} return "
            "`CUDA_ERROR_NOT_SUPPORTED`. In pass-through every function is the real driver's.\n")
    text += ("\n## Device attributes\n\nAll others are what the GPU's driver says.\n\n| attribute | value | reason |\n| --- | --- | --- |\n"
             + "".join(f"| {row.number} {row.name} | {row.value} | {row.reason} |\n" for row in spec.attribute_overrides))
    text += ("\n## Functions\n\nThe test is the first of `tests` that calls the function, by the name that `cuda.h` gives programs.\n\n"
             "| function | group | state | test, or why not |\n| --- | --- | --- | --- |\n")
    for function in sorted(spec.functions, key=lambda f: (f.group, f.id)):
        state = f"as {function.same_as}" if function.same_as else "implemented" if function.is_supported else "not supported"
        last = function.reason or _test_of(function, newest, tests)
        text += f"| {function.name} | {function.group} | {state} | {last} |\n"
    return text
