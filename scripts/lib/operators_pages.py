#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Manual page and completions of a program, of what the program itself says (--describe): so they have the options that it has.

usage: operators_pages.py PROGRAM TEMPLATE VERSION OUT_FOLDER
The template (docs/man/*.1.in) is the page but for its lists of options and commands. Written are OUT_FOLDER/PROGRAM.1, PROGRAM (for bash), _PROGRAM
(for zsh) and PROGRAM.fish.
"""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import completion  # noqa: E402
import completion_fish  # noqa: E402


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def option_entry(option):
    names = ", ".join(f"\\fB{roff(name)}\\fP" for name in option["names"])
    kind, _, allowed = option["type"].partition(":")
    value = ""
    if option["takes_value"]:
        value = f" \\fI{roff({'UINT': 'N', 'INT': 'N'}.get(kind, kind))}\\fP"
    text = option["help"]
    notes = [note for note in (allowed.replace("UINT in [", "").replace("]", "").replace(" - ", " to "), option["default"] and f"default {option['default']}") if note]
    if notes:
        text += f" ({'; '.join(notes)})"
    return [".TP", names + value, roff(text)]


def options_list(described):
    groups = {}
    for option in described["options"]:
        groups.setdefault(option["group"], []).append(option)
    lines = []
    for group, options in groups.items():
        if group != "Options":
            lines.append(f".SS {roff(group)}")
        for option in options:
            lines += option_entry(option)
    return "\n".join(lines)


def commands_list(described):
    lines = []
    for command in described.get("commands", []):
        name, rest = command["name"], command["usage"][len(command["name"]):].lstrip()
        lines += [".TP", f"\\fB{roff(name)}\\fP" + (f" {roff(rest)}" if rest else ""), roff(command["help"]) + "."]
        if any(option["name"] == "--csv" for option in command["options"]):
            lines.append("\\fB\\-\\-format\\fP takes text, json, csv or csv,noheader.")
        elif any(option["name"] == "--json" for option in command["options"]):
            lines.append("\\fB\\-\\-format\\fP takes text or json.")
    return "\n".join(lines)


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    program, template, version, out = sys.argv[1:]
    described = json.loads(subprocess.run([program, "--describe"], check=True, capture_output=True, text=True).stdout)
    name, folder = described["program"], pathlib.Path(out)
    page = pathlib.Path(template).read_text()
    page = page.replace("@OPTIONS@", options_list(described)).replace("@COMMANDS@", commands_list(described))
    page = page.replace("@VERSION@", roff(version)).replace("@PURPOSE@", roff(described["purpose"]))
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in ((f"{name}.1", page), (name, completion.bash(described)), (f"_{name}", completion.zsh(described)),
                       (f"{name}.fish", completion_fish.fish(described))):
        (folder / file).write_text(text)


if __name__ == "__main__":
    main()
