#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether what documents point at is there: links, sections of other documents, source files, and functions that the walks name.

Records of experiments are dated and stay as they were: of them links alone are looked at.
"""

import pathlib
import re
import sys

SOURCES = {".c", ".cpp", ".cu", ".h", ".hpp", ".map", ".py", ".sh", ".toml"}
FILE_NAME = re.compile(r"[\w.{},*/-]+\.(?:c|cpp|cu|h|hpp|map|py|sh|toml)")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)


def headings(text: str) -> set[str]:
    """Sections and paragraphs that others may name: headings, and bold words that a paragraph begins with."""
    text = without_code(text)
    found = re.findall(r"^#+ (.*)$", text, re.M) + re.findall(r"^(?:- )?\*\*(.+?)\*\*", text, re.M)
    return {name.strip().rstrip(".:") for name in found}


def anchors(text: str) -> set[str]:
    names = re.findall(r"^#+ (.*)$", without_code(text), re.M)
    return {re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name in names}


def spread(name: str) -> list[str]:
    """`a/{b,c}.cpp` is two names."""
    braces = re.search(r"\{([^{}]*)\}", name)
    if not braces:
        return [name]
    return [one for part in braces[1].split(",") for one in spread(name[: braces.start()] + part + name[braces.end() :])]


class Tree:
    def __init__(self, root: pathlib.Path, generated: pathlib.Path | None):
        self.root = root
        folders = [root / name for name in ("broker", "cmake", "examples", "interposer", "proto", "scripts", "tests")]
        if generated is not None:
            folders.append(generated)
        self.files = [path for folder in folders for path in folder.rglob("*") if path.suffix in SOURCES and path.is_file()]
        self.words = set()
        for path in self.files:
            self.words.update(re.findall(r"\w+", path.read_text(errors="replace")))

    def has_file(self, name: str) -> bool:
        return name == "cuda.h" or any(path.match(name) for path in self.files)  # the toolkit's


def check_links(document: pathlib.Path, text: str) -> list[str]:
    wrong = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", without_code(text)):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        linked = document.parent / target if target else document
        if not linked.exists():
            wrong.append(f"the link {target} leads nowhere")
        elif anchor and linked.suffix == ".md" and anchor not in anchors(linked.read_text()):
            wrong.append(f"{target or document.name} has no section #{anchor}")
    return wrong


def check_sections(document: pathlib.Path, text: str) -> list[str]:
    wrong = []
    flat = re.sub(r"\s+", " ", without_code(text))
    name = r"(?:`([\w-]+\.md)`|\[([\w-]+\.md)\]\([\w./-]+\))"
    named = [(a or b, section) for a, b, section in re.findall(name + r", \*([^*]+)\*", flat)]
    named += [(a or b, section) for section, a, b in re.findall(r"(?<!\*)\*([^*]+)\*(?!\*) in " + name, flat)]
    for other, section in named:
        path = document.parent / other
        if path.exists() and section.rstrip(".:") not in headings(path.read_text()):
            wrong.append(f"{other} has nothing called *{section}*")
    for other in re.findall(r"`([\w-]+\.md)`", flat):
        if not any((folder / other).exists() for folder in (document.parent, document.parent / "docs", document.parent.parent)):
            wrong.append(f"there is no {other}")
    return wrong


def check_names(document: pathlib.Path, text: str, tree: Tree) -> list[str]:
    wrong = []
    for quoted in re.findall(r"`([^`\n]+)`", without_code(text)):
        if FILE_NAME.fullmatch(quoted) and not all(tree.has_file(name) for name in spread(quoted)):
            wrong.append(f"there is no source file {quoted}")
        function = re.fullmatch(r"~?(?:\w+::)*~?(\w+)\([^)]*\)", quoted)
        if document.name == "architecture.md" and function:
            wrong += [f"no source has the word {word} of {quoted}" for word in re.findall(r"\w+", quoted) if word not in tree.words]
    return wrong


def main() -> int:
    root = pathlib.Path(sys.argv[1]).resolve()
    tree = Tree(root, pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None)
    documents = sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])
    wrong = []
    for document in documents:
        text = document.read_text()
        found = check_links(document, text)
        if "experiments" not in document.parts:
            found += check_sections(document, text) + check_names(document, text, tree)
        wrong += [f"{document.relative_to(root)}: {what}" for what in found]
    print("\n".join(wrong) or f"{len(documents)} documents point at what is there")
    return 1 if wrong or len(documents) < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
