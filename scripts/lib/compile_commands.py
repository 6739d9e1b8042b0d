# SPDX-License-Identifier: Apache-2.0
"""How the build compiles each source, for tools of clang: from compile_commands.json of a configured tree."""
import json
import pathlib
import re
import shlex

WITH_VALUE = {'-I', '-isystem', '-D', '-U'}
INCLUDED = re.compile(r'^#include "(/[^"]+)"', re.MULTILINE)


class Unconfigured(Exception):
    pass


def kept(command):
    """Of a compiler's arguments those that say what the source means; g++'s own, and what is precompiled, are left out."""
    words = iter(shlex.split(command)[1:])
    for word in words:
        if word in WITH_VALUE:
            yield from (word, next(words))
        elif word == '-include':
            next(words)
        elif word.startswith(('-I', '-D', '-U', '-isystem', '-std=')):
            yield word


def sources_of(path):
    """A file that CMake has made of several sources stands for those."""
    if path.name.startswith('unity_') and path.is_file():
        return [pathlib.Path(name) for name in INCLUDED.findall(path.read_text())]
    return [path]


def load(root, tree, folders):
    """{source: arguments} of the C++ sources below these folders of the project; of several ways to compile one, the first."""
    listed = tree / 'compile_commands.json'
    if not listed.is_file():
        raise Unconfigured(f'{listed} is not there: configure the tree first (scripts/test does)')
    commands = {}
    for entry in json.loads(listed.read_text()):
        arguments = tuple(kept(entry['command']))
        for source in sources_of(pathlib.Path(entry['directory'], entry['file']).resolve()):
            inside = source.is_relative_to(root) and source.relative_to(root).parts[0] in folders
            if inside and source.suffix == '.cpp':
                commands.setdefault(source, arguments)
    if not commands:
        raise Unconfigured(f'{listed} names no source of {root}: it is of another tree')
    return commands
