# SPDX-License-Identifier: Apache-2.0
"""Changed lines are laid out as .clang-format says; with --all every line of the tree. Others are left as they are."""
import re
import subprocess

ENDINGS = ('c', 'h', 'cpp', 'hpp')
HUNK = re.compile(r'^@@ -(\d+)')


def findings(root, options):
    if options.all:
        files = subprocess.run(['git', 'ls-files', *(f'*.{ending}' for ending in ENDINGS)], cwd=root, capture_output=True, text=True, check=True)
        done = subprocess.run(['clang-format', '--dry-run', '--Werror', *files.stdout.split()], cwd=root, capture_output=True, text=True, check=False)
        yield from sorted({line.split(': error:')[0].rsplit(':', 1)[0] + ': not as .clang-format says'
                           for line in done.stderr.splitlines() if ': error:' in line})
        return
    done = subprocess.run(['git', 'clang-format', '--diff', '--quiet', '--extensions', ','.join(ENDINGS), options.base], cwd=root,
                          capture_output=True, text=True, check=False)
    if done.stderr:
        raise RuntimeError(done.stderr)
    name = ''
    for line in done.stdout.splitlines():
        if line.startswith('--- a/'):
            name = line[len('--- a/'):]
        elif match := HUNK.match(line):
            yield f'{name}:{match[1]}: about here, not as .clang-format says: git clang-format {options.base}'
