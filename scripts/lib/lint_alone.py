# SPDX-License-Identifier: Apache-2.0
"""Changed sources and headers compile by themselves: what they use they include. Builds that precompile headers, or compile
several sources as one, do not notice; with --all every source and header, which takes long."""
import re
import subprocess
import time

import compile_commands
from lint_tidy import looked_at

FOLDERS = ('proto', 'interposer', 'broker', 'tests', 'examples')
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
FINDING = re.compile(r'^(?:In file included from )?(\S+?:\d+):\d+: (?:error|fatal error): (.*?)(?: \[-W[\w,-]+\])?$')


def alone(root, source, arguments, until):
    """What the compiler says of it; None: there was no time."""
    if until is not None and time.monotonic() > until:
        return None
    language = 'c++-header' if source.suffix == '.hpp' else 'c++'
    done = subprocess.run(['c++', *arguments, '-fsyntax-only', '-w', '-x', language, str(source)], cwd=root, capture_output=True, text=True, check=False)
    failed = done.returncode != 0 and not any(FINDING.match(line) for line in done.stderr.splitlines())
    return done.stderr + (f'{source}:1:1: error: the compiler ends with {done.returncode}\n' if failed else '')


def changed_files(root, base):
    """Those in which lines were only taken out, too."""
    named = subprocess.run(['git', 'diff', '--name-only', '--relative', base], cwd=root, capture_output=True, text=True, check=True)
    return {root / name for name in named.stdout.splitlines()}


def includers(root, commands):
    """{header: arguments}: those of the first source that includes it."""
    found = {}
    for source, arguments in sorted(commands.items()):
        if not source.is_file():  # configured once, and gone
            continue
        for name in INCLUDE.findall(source.read_text(errors='replace')):
            for folder in (source.parent, root):
                found.setdefault((folder / name).resolve(), arguments)
    return found


def of_headers(root, commands):
    """{header: arguments}: those of a source that includes it, or of one in its folder, or in a folder below or above that."""
    tracked = subprocess.run(['git', 'ls-files', '*.hpp'], cwd=root, capture_output=True, text=True, check=True)
    by_folder = {}
    for source, arguments in sorted(commands.items()):
        for folder in (source.parent, *source.parent.parents):
            by_folder.setdefault(folder, arguments)
    by_include = includers(root, commands)
    headers = {}
    for name in tracked.stdout.splitlines():
        header = root / name
        if header.is_file() and name.split('/')[0] in FOLDERS:
            headers[header] = by_include.get(header) or next(by_folder[folder] for folder in header.parents if folder in by_folder)
    return headers


def findings(root, options):
    commands = compile_commands.load(root, options.tree, FOLDERS)
    commands |= of_headers(root, commands)
    changed = None if options.all else changed_files(root, options.base)
    wanted = sorted(source for source in commands if changed is None or source in changed)
    yield from looked_at(root, options, wanted, lambda source, until: alone(root, source, commands[source], until), FINDING, 'alone')
