# SPDX-License-Identifier: Apache-2.0
"""Locks are held where the annotations say so (proto/thread_annotations.hpp): clang's thread-safety analysis over all sources.

Most of what clang does for a source is reading headers, so it gets several sources of a folder as one, as CMake's unity
builds do; where these do not go together, each by itself."""
import concurrent.futures
import os
import re
import subprocess

import compile_commands

FOLDERS = ('proto', 'interposer', 'broker')
SOURCES_AT_ONCE = 12
ANALYSIS = ('-fsyntax-only', '-Wno-everything', '-Wthread-safety', '-ferror-limit=0', '-fno-caret-diagnostics')
FINDING = re.compile(r'^(/\S+?:\d+):\d+: (?:warning|error|fatal error): (.*?)(?: \[-W[\w,-]+\])?$')
# What these declare of the driver is not what cuda.h does: never beside other sources.
ALONE = {'proc_address_table.cpp', 'old_names.cpp', 'exports.cpp'}


def batches(root, commands):
    together = {}
    for source, arguments in sorted(commands.items()):
        parts = source.relative_to(root).parts
        together.setdefault((arguments, parts[:2], source.name if source.name in ALONE else ''), []).append(source)
    for (arguments, _, _), sources in together.items():
        for start in range(0, len(sources), SOURCES_AT_ONCE):
            yield arguments, sources[start:start + SOURCES_AT_ONCE]


def analysed(clang, root, arguments, sources):
    text = ''.join(f'#include "{source}"\n' for source in sources)
    done = subprocess.run([clang, *arguments, *ANALYSIS, '-x', 'c++', '-'], cwd=root, input=text, capture_output=True, text=True, check=False)
    if done.returncode == 0 or len(sources) == 1:
        return done.stderr
    return ''.join(analysed(clang, root, arguments, [source]) for source in sources)


def findings(root, options):
    commands = compile_commands.load(root, options.tree, FOLDERS)
    found = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        jobs = [threads.submit(analysed, options.clang, root, *batch) for batch in batches(root, commands)]
        for job in jobs:
            for line in job.result().splitlines():
                if match := FINDING.match(line):
                    found.setdefault(f'{match[1].removeprefix(f"{root}/")}: {match[2]}')
    yield from found
