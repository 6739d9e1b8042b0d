#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_pages.py PAGES PROGRAM...
Whether manual pages and completions have each option and command that --help has, and none besides; and whether shells offer them. What needs a
shell, or a formatter of pages, that is not installed is left out, with a line.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

FAULTS = []
# What a broker answers that is not there: the completion asks mpsctl.
FAKE_MPSCTL = """#!/bin/sh
case "$*" in
    *'get_server_list') printf '4711\\n4812\\n' ;;
    *'get_client_list 4711') printf '100\\n200\\n' ;;
    *'ps --format=csv,noheader') printf '100,7\\n300,8\\n' ;;
    *'device_query --format=csv,noheader') printf '0,0000:01:00.0,GPU-aa,1,2,9.0,"a, b"\\n1,0000:02:00.0,GPU-bb,1,2,9.0,c\\n' ;;
esac
"""


def said(*words, **more):
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


def options_in_help(text):
    """Of lines that begin with options: "  -h,--help   ..."."""
    found = set()
    for line in text.split("\nCommands:\n")[0].splitlines():
        if match := re.match(r"  ((?:--?[\w-]+,)*--?[\w-]+)(?=\s|$)", line):
            found.update(match[1].split(","))
    return found


def options_in(usage):
    return set(re.findall(r"(?<![\w-])--?[a-z]+(?:-[a-z]+)*", usage))


def commands_in_help(text):
    """Each with its options: "  ps [-l] [-p PID]". Those of two words count as one, of the first: completion has their options together."""
    found, name = {}, ""
    for line in text.partition("\nCommands:\n")[2].splitlines():
        if match := re.match(r"  (\w[\w-]*)(.*)", line):
            name = match[1]
            found[name] = found.get(name, set()) | options_in(match[2])
        elif re.match(r"  [^ ]", line):  # what did not fit into the line before
            found[name] |= options_in(line)
        if name and "--json" in found[name]:
            found[name].add("--format")  # a line behind the commands says so of all
    return found


def section(page, title):
    return re.split(r"^\.SH ", page.partition(f".SH {title}\n")[2], maxsplit=1, flags=re.M)[0]


def entries(text):
    return [line.replace("\\-", "-") for line in re.findall(r"^\.TP\n(.*)$", text, re.M)]


def expect(what, found, wanted):
    if found != wanted:
        FAULTS.append(f"{what}: lacks {sorted(wanted - found)}, has besides {sorted(found - wanted)}")


def check_page(path, program, options, commands):
    page = path.read_text()
    in_page = set()
    for line in entries(section(page, "OPTIONS")):
        in_page.update(re.findall(r"\\fB(-[\w-]+)\\fP", line))
    expect(f"options in {path.name}", in_page, options)
    in_page = {}
    for line in entries(section(page, "COMMANDS")):
        in_page.setdefault(re.match(r"\\fB(\w[\w-]*)", line)[1], set()).update(options_in(line))
    expect(f"commands in {path.name}", set(in_page), set(commands))
    for name, its_options in commands.items():
        expect(f"{name} in {path.name}", in_page.get(name, set()) | {"--format"}, its_options | {"--format"})
    for title in ("NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "ENVIRONMENT", "EXAMPLES", "SEE ALSO"):
        if not section(page, title).strip():
            FAULTS.append(f"{path.name} has no section {title}")
    if re.search(r"@[A-Z]+@", page):
        FAULTS.append(f"{path.name} has a place that nothing was put into")
    if shutil.which("groff"):
        told = subprocess.run(["groff", "-ww", "-man", "-Tutf8", "-z", str(path)], capture_output=True, text=True, check=False).stderr
        if told:
            FAULTS.append(f"groff says of {path.name}: {told}")
    else:
        print("groff is not installed: pages are not formatted")


class Bash:
    name = "bash"

    @staticmethod
    def offers(pages, program, line, environment):
        words = line.split(" ")
        script = (f"source {pages}/{program}; COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}; "
                  f"_{program}; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
        return set(said("bash", "--norc", "-c", script, env=environment).split("\n")) - {""}


class Fish:
    name = "fish"

    @staticmethod
    def offers(pages, program, line, environment):
        script = f"complete -e -c {program}; source {pages}/{program}.fish; complete -C {line!r}"
        return {offer.split("\t")[0] for offer in said("fish", "--no-config", "-c", script, env=environment).split("\n")} - {""}


class Zsh:
    """What the completion hands to zsh's own functions, which are played here: they would need a terminal."""
    name = "zsh"
    STUBS = r"""
_arguments() {
    if [[ $1 == -C ]]; then
        state=$stub_state
        [[ -n $state ]] && return
        print -rl -- "$@" | sed -n 's/^([^)]*)\(-[^=[]*\).*/\1/p'
    elif [[ $stub_word == -* ]]; then
        print -rl -- "$@" | sed -n 's/^\(-[^:=[]*\).*/\1/p'
    else
        print -rl -- "$@" | sed -n "s/^$stub_place:*[^:]*:\(.*\)/\1/p" | while IFS= read -r offer; do
            case $offer in
                '('*) print -rl -- ${=${offer//[()]/}} ;;
                _*) ${=offer} ;;
            esac
        done
    fi
}
_describe() { print -rl -- ${${(P)2}%%:*}; }
compadd() { shift; print -rl -- ${(P)1}; }
"""

    @classmethod
    def offers(cls, pages, program, line, environment):
        said("zsh", "-n", f"{pages}/_{program}")
        words = re.sub(r" (--pipe-dir \S+|--json)(?= )", "", line).split(" ")[1:]
        at_command = len(words) == 1
        if at_command:
            state = "" if words[0].startswith("-") else "command"
        else:
            state = "arguments"
        # The place: behind an option its value, else the number of words that are no options.
        place = words[-2] if len(words) > 2 and words[-2] in ("-p", "--format", "--sort") else 1 + len([word for word in words[1:-1] if word[0] != "-" and word != "5"])
        place = f"{place}=*\\[\\]" if str(place).startswith("-") else place
        script = (f"{cls.STUBS}\nstub_state={state!r} stub_word={words[-1]!r} stub_place='{place}'\nwords=({' '.join(map(repr, words))}) CURRENT={len(words)}\n"
                  f"source {pages}/_{program}")
        return set(said("zsh", "-f", "-c", script, env=environment).split("\n")) - {""}


def check_offers(shell, pages, program, options, commands, environment):
    def offered(line):
        return shell.offers(pages, program, f"{program} {line}", environment)

    # Fish offers long options only where two dashes are typed.
    found = offered("-") | offered("--")
    expect(f"{shell.name}: options of {program}", {word.rstrip("=") for word in found}, options)
    if not commands:
        return
    expect(f"{shell.name}: commands of {program}", offered(""), set(commands))
    expect(f"{shell.name}: commands behind options", offered("--json --pipe-dir /tmp "), set(commands))
    for name, its_options in commands.items():
        found = offered(f"{name} -") | offered(f"{name} --")
        expect(f"{shell.name}: options of {name}", {word.rstrip("=") for word in found if word.startswith("-")}, its_options)
    expect(f"{shell.name}: servers", offered("get_client_list "), {"4711", "4812"})
    expect(f"{shell.name}: servers behind an option", offered("ps -l -p "), {"4711", "4812"})
    expect(f"{shell.name}: clients of a server", offered("terminate_client 4711 "), {"100", "200"})
    expect(f"{shell.name}: devices", offered("set_device_pinned_mem_limit 4711 "), {"0", "1", "GPU-aa", "GPU-bb"})
    expect(f"{shell.name}: formats", offered("ps --format "), {"text", "json", "csv", "csv,noheader"})
    expect(f"{shell.name}: what top sorts by", offered("top --sort "), {"gpu", "launches", "wait", "in_flight", "memory", "age", "pid", "user"})
    expect(f"{shell.name}: verbs", offered("client "), {"list", "get", "terminate", "set"})
    expect(f"{shell.name}: other verbs", offered("namespace "), {"list", "get", "create", "set", "delete"})
    expect(f"{shell.name}: clients of all servers", offered("client set "), {"100", "300"})
    expect(f"{shell.name}: a word that is itself", offered("restart -t 5 "), {"executors"})


def main():
    pages, programs = pathlib.Path(sys.argv[1]).resolve(), [pathlib.Path(program) for program in sys.argv[2:]]
    helps = {program.name: said(program, "--help") for program in programs}
    with tempfile.TemporaryDirectory() as home:
        fake = pathlib.Path(home) / "mpsctl"
        fake.write_text(FAKE_MPSCTL)
        fake.chmod(0o755)
        environment = {"PATH": f"{home}:{os.environ['PATH']}", "HOME": home, "TERM": "dumb", "LC_ALL": "C.UTF-8"}
        for name, text in helps.items():
            options, commands = options_in_help(text), commands_in_help(text)
            if len(options) < 5 or (name == "mpsctl" and len(commands) < 10):
                FAULTS.append(f"{name} --help was not understood: {options} {commands}")
            check_page(pages / f"{name}.1", name, options, commands)
            for shell in (Bash, Fish, Zsh):
                if shutil.which(shell.name):
                    check_offers(shell, pages, name, options, commands, environment)
                else:
                    print(f"{shell.name} is not installed: its completion of {name} was not tried")
    print("\n".join(FAULTS) or "pages and completions have what the programs have")
    return 1 if FAULTS else 0


if __name__ == "__main__":
    sys.exit(main())
