# SPDX-License-Identifier: Apache-2.0
"""Which programs scripts/run-samples runs: those of a manifest, or the executables of a build tree of NVIDIA's cuda-samples."""
import dataclasses
import json
import os
import pathlib
import re
import shutil
import tomllib

MANIFESTS = ("samples.toml", "samples.json")
ARGUMENTS = "test_args.json"
NOT_OF_THE_BUILD = {"CMakeFiles", ".git", ".cmake", "_deps"}
ELF = b"\x7fELF"


class BadManifest(Exception):
    """What is wrong with a manifest or a file of arguments, in one sentence."""


@dataclasses.dataclass(frozen=True)
class Program:
    """One program with its arguments. `folder` is where it runs; `copied` are folders to make a private one of instead."""

    name: str
    command: tuple
    folder: pathlib.Path
    copied: tuple = ()
    timeout_s: float | None = None
    environment: tuple = ()
    verdicts: tuple = ()
    waived_status: int = 2
    gpus: int = 1
    aside: bool = False
    skip: str = ""


def _texts(value):
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


KEYS = {
    "name": (lambda value: isinstance(value, str) and value != "", "a text"),
    "command": (lambda value: _texts(value) and value, "a list of texts, the program first"),
    "folder": (lambda value: isinstance(value, str), "a folder"),
    "timeout_s": (lambda value: _number(value) and value > 0, "a number of seconds above 0"),
    "environment": (lambda value: isinstance(value, dict) and _texts(list(value.values())), "a table of texts"),
    "verdicts": (_texts, "a list of regular expressions"),
    "waived_status": (lambda value: isinstance(value, int) and 0 < value < 256, "an exit status from 1 to 255"),
    "gpus": (lambda value: isinstance(value, int) and value > 0, "a number from 1"),
    "aside": (lambda value: isinstance(value, bool), "true or false"),
    "skip": (lambda value: isinstance(value, str), "a reason"),
}


def _checked(entry, where):
    for key, value in entry.items():
        if key not in KEYS:
            raise BadManifest(f"{where}: unknown key '{key}' (there are {', '.join(KEYS)})")
        is_right, shape = KEYS[key]
        if not is_right(value):
            raise BadManifest(f"{where}: '{key}' must be {shape}, not {value!r}")
    for pattern in entry.get("verdicts", []):
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadManifest(f"{where}: '{pattern}' is no regular expression: {error}") from error
    return entry


def _resolved(word, folder):
    """A program as the manifest names it: a path relative to the manifest, or a name to look up in PATH."""
    if "/" in word:
        return str(folder / word)
    return shutil.which(word) or word


def from_manifest(path):
    """The programs of a manifest, in its order."""
    try:
        content = tomllib.loads(path.read_text("utf-8")) if path.suffix == ".toml" else json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadManifest(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("program"), list):
        raise BadManifest(f"{path} has no list 'program'")
    folder, programs, names = path.parent.resolve(), [], set()
    defaults = _checked(content.get("defaults", {}), f"{path}, defaults")
    for number, entry in enumerate(content["program"], 1):
        where = f"{path}, program {number}"
        entry = defaults | _checked(entry, where)
        for needed in ("name", "command"):
            if needed not in entry:
                raise BadManifest(f"{where} has no '{needed}'")
        if entry["name"] in names:
            raise BadManifest(f"{where}: the name '{entry['name']}' is another's already")
        names.add(entry["name"])
        rest = {key: entry[key] for key in ("name", "timeout_s", "waived_status", "gpus", "aside", "skip") if key in entry}
        programs.append(Program(command=(_resolved(entry["command"][0], folder), *entry["command"][1:]),
                                folder=folder / entry.get("folder", "."), verdicts=tuple(entry.get("verdicts", ())),
                                environment=tuple(sorted(entry.get("environment", {}).items())), **rest))
    return programs


def _is_program(path):
    if path.is_symlink() or not path.is_file() or not os.access(path, os.X_OK) or re.search(r"\.so(\.|$)", path.name):
        return False
    with open(path, "rb") as file:
        return file.read(4) == ELF


def _executables(root):
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in NOT_OF_THE_BUILD)
        yield from (path for path in (pathlib.Path(folder) / name for name in sorted(files)) if _is_program(path))


def _source_of(tree):
    """The folder of the sources that a CMake tree was configured from, where it is still there."""
    try:
        cache = (tree / "CMakeCache.txt").read_text("utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", cache, re.MULTILINE)
    return pathlib.Path(found[1]) if found and pathlib.Path(found[1]).is_dir() else None


def _arguments(path):
    """What test_args.json says: for some programs arguments of one run or several, a number of GPUs, or to leave them out."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadManifest(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(entry, dict) for entry in content.values()):
        raise BadManifest(f"{path} is not an object of objects")
    for name, entry in content.items():
        for run in [entry, *entry.get("runs", [])]:
            if not isinstance(run, dict) or not _texts(run.get("args", [])):
                raise BadManifest(f"{path}: the arguments of {name} are not a list of texts")
    return content


def _runs(entry):
    """[(suffix of the name, arguments, whether it is left out)] of one program's entry."""
    runs = entry.get("runs")
    if not runs:
        return [("", entry.get("args", []), entry.get("skip", False))]
    left_out = entry.get("skip", False)
    return [(f" {number}", run.get("args", []), left_out or run.get("skip", False)) for number, run in enumerate(runs, 1)]


def from_tree(tree, arguments=None):
    """The executables below a build tree. Each runs in a folder of its own that has what its build and source folders have."""
    tree = tree.resolve()
    source = _source_of(tree)
    candidates = [tree / ARGUMENTS, tree.parent / ARGUMENTS] + ([source / ARGUMENTS] if source else [])
    arguments = arguments or next((path for path in candidates if path.is_file()), None)
    entries = _arguments(arguments) if arguments else {}
    paths = list(_executables(tree))
    stems = [path.name for path in paths]
    programs = []
    for path in paths:
        below = path.relative_to(tree)
        name = path.name if stems.count(path.name) == 1 else str(below)
        folders = [path.parent] + ([source / below.parent] if source and (source / below.parent).is_dir() else [])
        entry = entries.get(path.name, {})
        for suffix, words, left_out in _runs(entry):
            programs.append(Program(name=name + suffix, command=(f"./{path.name}", *words), folder=path.parent, copied=tuple(folders),
                                    gpus=entry.get("min_gpus", 1), skip=f"left out by {arguments.name}" if left_out else ""))
    return programs


def find(folder, arguments=None):
    """The programs of a folder, by its manifest where it has one. Raises BadManifest."""
    if folder.is_file():
        return from_manifest(folder)
    for name in MANIFESTS:
        if (folder / name).is_file():
            return from_manifest(folder / name)
    return from_tree(folder, arguments)
