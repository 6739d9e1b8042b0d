# SPDX-License-Identifier: Apache-2.0
"""What comments and documents name exists.

A name is `like_this()` or `like_this` between backquotes; in comments also like_this() without. It exists where the code of
the project has it, or CUDA's headers, or scripts/lib/names_from_elsewhere.txt. A file or folder between backquotes is there."""
import pathlib
import re

import cxx_text

CODE = {'.cpp', '.hpp', '.h', '.c', '.cu', '.inc', '.S'}
OTHER = {'.py', '.toml', '.cmake', '.sh', '.txt', '.json', '.ptx', '.map', '.in', '.tsv', '.supp'}
NAME = re.compile(r'[A-Za-z_]\w*')
CALLED = re.compile(r'(?<![\w./:-])((?:[A-Za-z_]\w*::)*~?[A-Za-z_]\w*)\(\)')
QUOTED = re.compile(r'`([^`\n]+)`')
ONE_NAME = re.compile(r'((?:[A-Za-z_]\w*(?:::|\.|->))*[A-Za-z_]\w*)(?:\(\))?$')
FILE = re.compile(r'[\w./+-]*\w\.(?:cpp|hpp|md|py|toml|cu|sh|cmake|tsv|txt|h)$|[\w.-]+(?:/[\w.-]+)+/?$')
GENERATED = ('gen/', 'build/')
TOOLKIT = ('cuda.h', 'cuda_runtime_api.h', 'driver_types.h', 'cuda_device_runtime_api.h', 'cuda_runtime.h', 'fatbinary_section.h', 'nvml.h')


def words_of(path):
    text = path.read_text(errors='replace')
    if path.suffix not in CODE:
        return NAME.findall(text)
    # Inside literals, too: names of variables of the environment, of records, of functions that are looked up.
    without_comments = cxx_text.TOKENS.sub(lambda match: ' ' if match['comment'] else match[0], text)
    return NAME.findall(without_comments)


def known_names(root, toolkit, elsewhere):
    known = set()
    for path in project_files(root):
        if path.suffix in CODE | OTHER or path.name == 'CMakeLists.txt' or not path.suffix and path.parent.name in ('scripts', '.ci'):
            known.add(path.stem)
            if path != elsewhere:
                known.update(words_of(path))
    for name in TOOLKIT:
        for header in toolkit.rglob(name) if toolkit else ():
            known.update(NAME.findall(header.read_text(errors='replace')))
    return known | names_from_elsewhere(elsewhere)


def names_from_elsewhere(path):
    """Each line: names, two blanks or more, why they are good."""
    names = set()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line and not line.startswith('#'):
            listed, _, why = line.partition('  ')
            if not why.strip():
                raise ValueError(f'{path.name}:{number}: no reason is given')
            names.update(listed.split())
    return names


def project_files(root):
    for entry in sorted(root.iterdir()):
        if entry.name not in ('build', '.git'):
            yield from (path for path in (sorted(entry.rglob('*')) if entry.is_dir() else [entry]) if path.is_file() and '__pycache__' not in path.parts)


def passages(path):
    """(line number, text, whether it is a comment) of what a file says in words."""
    if path.suffix == '.md':
        fenced = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            fenced ^= line.lstrip().startswith('```')
            if not fenced:
                yield number, line, False
    else:
        yield from ((number, comment, True) for number, comment in cxx_text.comments_of(path.read_text()))


def names_in(text, is_comment):
    for quoted in QUOTED.findall(text):
        if match := ONE_NAME.match(quoted):
            yield quoted, re.split(r'::|\.|->', match[1])
    if is_comment:
        for name in CALLED.findall(text):
            yield name + '()', name.replace('~', '').split('::')


def is_there(name, places):
    """A file by its path, or the end of its path, or the beginning of that (`token.*` stands for both of its sources)."""
    name = name.rstrip('/')
    return name.startswith(GENERATED) or any(place == name or place.endswith('/' + name) for place in places)


def findings(root, options):
    files = list(project_files(root))
    elsewhere = root / 'scripts/lib/names_from_elsewhere.txt'
    known = known_names(root, options.toolkit, elsewhere)
    places = {str(path.relative_to(root)) for path in files}
    places |= {str(pathlib.PurePath(*pathlib.PurePath(place).parts[:depth])) for place in places for depth in range(1, place.count('/') + 1)}
    places |= names_from_elsewhere(elsewhere)
    for path in files:
        inside = path.relative_to(root)
        is_document = path.suffix == '.md' and 'experiments' not in inside.parts and inside.name != 'CHANGELOG.md'
        if not is_document and path.suffix not in CODE:
            continue
        for number, text, is_comment in passages(path):
            for shown, parts in names_in(text, is_comment):
                unknown = [part for part in parts if part not in known]
                if unknown and not (FILE.match(shown) and is_there(shown, places)):
                    yield f'{inside}:{number}: {shown} is nowhere in the code'
            if not is_comment:
                for shown in QUOTED.findall(text):
                    if FILE.match(shown) and '/' in shown and not shown.startswith('/') and not is_there(shown, places):
                        yield f'{inside}:{number}: there is no file or folder {shown}'
