# SPDX-License-Identifier: Apache-2.0
"""What clang-tidy finds (.clang-tidy) in lines that changed; with --all in all sources, which takes long."""
import concurrent.futures
import json
import os
import re
import subprocess
import time

import compile_commands

FOLDERS = ('proto', 'interposer', 'broker')
FINDING = re.compile(r'^(/\S+?:\d+):\d+: (?:warning|error): (.*)$')
CHANGED_FILE = re.compile(r'^\+\+\+ b/(.*)$')
CHANGED_LINES = re.compile(r'^@@ -\S+ \+(\d+)(?:,(\d+))? @@')


def changed_lines(root, base):
    """{path: [[first, last], ...]} of what differs from the commit `base`."""
    shown = subprocess.run(['git', 'diff', '--unified=0', '--no-color', base], cwd=root, capture_output=True, text=True, check=True)
    changed, current = {}, None
    for line in shown.stdout.splitlines():
        if match := CHANGED_FILE.match(line):
            current = changed.setdefault(root / match[1], [])
        elif (match := CHANGED_LINES.match(line)) and current is not None and match[2] != '0':
            current.append([int(match[1]), int(match[1]) + int(match[2] or 1) - 1])
    return {path: lines for path, lines in changed.items() if lines}


def tidied(root, source, arguments, lines, until):
    if until is not None and time.monotonic() > until:
        return None
    words = ['clang-tidy', '--quiet']
    if lines is not None:
        words.append('--line-filter=' + json.dumps([{'name': str(path), 'lines': spans} for path, spans in lines.items()]))
    done = subprocess.run([*words, str(source), '--', *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout


def looked_at(root, options, files, look, finding, name):
    """What `look(file, until)` prints of each of these files, as long as there is time: each finding once."""
    until = None if options.seconds is None else time.monotonic() + options.seconds
    found = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        jobs = [threads.submit(look, file, until) for file in files]
        for job in jobs:
            for line in (job.result() or '').splitlines():
                if match := finding.match(line):
                    found.setdefault(f'{match[1].removeprefix(f"{root}/")}: {match[2]}')
    if left := sum(job.result() is None for job in jobs):
        print(f'    {left} of {len(files)} changed files left out, the time is over: scripts/lint {name}')
    return found


def findings(root, options):
    commands = compile_commands.load(root, options.tree, FOLDERS)
    lines = None if options.all else changed_lines(root, options.base)
    wanted = sorted(source for source in commands if lines is None or source in lines)
    yield from looked_at(root, options, wanted, lambda source, until: tidied(root, source, commands[source], lines, until), FINDING, 'tidy')
