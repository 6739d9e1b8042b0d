# SPDX-License-Identifier: Apache-2.0
"""Completion of fish for the programs of operators, as completion.py makes that of bash and zsh."""
from completion import DIRECTORIES, FORMATS, SORT_KEYS, VALUES, brief, merged, valued

FISH_VALUES = r"""
function __mpsctl_words
    # The words before the cursor without options of mpsctl itself, and what follows those.
    set -l tokens (commandline -opc)
    set -e tokens[1]
    while set -q tokens[1]
        switch $tokens[1]
            case --pipe-dir --format
                set -e tokens[1]
                set -q tokens[1]; and set -e tokens[1]
            case '-*'
                set -e tokens[1]
            case '*'
                break
        end
    end
    set -q tokens[1]; and printf '%s\n' $tokens
end
function __mpsctl_no_command
    test -z "$(__mpsctl_words)"
end
function __mpsctl_command
    set -l words (__mpsctl_words)
    set -q words[1]; and test $words[1] = $argv[1]
end
# Whether so many arguments stand behind the command; options that take a value are the others.
function __mpsctl_place
    set -l count 0
    set -l skip no
    for word in (__mpsctl_words)[2..]
        if test $skip = yes
            set skip no
        else if contains -- $word $argv[2..]
            set skip yes
        else if not string match -q -- '-*' $word
            set count (math $count + 1)
        end
    end
    test $skip = no; and test $count -eq $argv[1]
end
function __mpsctl_ask
    set -l tokens (commandline -opc)
    set -l place
    if set -l at (contains -i -- --pipe-dir $tokens)
        set place --pipe-dir $tokens[(math $at + 1)]
    end
    mpsctl $place $argv 2>/dev/null
end
function __mpsctl_server
    __mpsctl_ask get_server_list
end
function __mpsctl_client
    __mpsctl_ask get_client_list (__mpsctl_words)[-1]
end
function __mpsctl_any_client
    __mpsctl_ask ps --format=csv,noheader | cut -d, -f1
end
function __mpsctl_device
    __mpsctl_ask device_query --format=csv,noheader | cut -d, -f1,3 | string split ,
end
"""


def fish_quoted(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish_option(name):
    if name.startswith("--"):
        return f"-l {name[2:]}"
    return f"-s {name[1:]}" if len(name) == 2 else f"-o {name[1:]}"


def fish_values(name, kind):
    if name in DIRECTORIES:
        return " -x -a '(__fish_complete_directories)'"
    if name == "--driver":
        return " -r -a 'auto cuda cpu'"
    if name == "--user":
        return " -x -a '(__fish_complete_users)'"
    if kind in VALUES:
        return f" -x -a '(__mpsctl_{kind})'"
    if kind == "format" or name == "--format":
        return f" -x -a {fish_quoted(FORMATS)}"
    if kind == "file":
        return " -r -F"
    if kind == "sort_key":
        return f" -x -a {fish_quoted(SORT_KEYS)}"
    return " -x"


def fish(described):
    program, options, commands = described["program"], described["options"], merged(described.get("commands", []))
    text = [f"# fish completion for {program}; generated, not to be edited."]
    if commands:
        text.append(FISH_VALUES.strip("\n"))
    condition = " -n __mpsctl_no_command" if commands else ""
    if program == "mpsrun":
        valued_words = " ".join(valued(options))
        text += ["function __mpsrun_has_program", "    set -l tokens (commandline -opc)", "    set -e tokens[1]", "    set -l skip no", "    for word in $tokens",
                 "        if test $skip = yes", "            set skip no", f"        else if contains -- $word {valued_words}", "            set skip yes",
                 "        else if not string match -q -- '-*' $word", "            return 0", "        end", "    end", "    return 1", "end"]
        condition = " -n 'not __mpsrun_has_program'"
        text.append(f"complete -c {program} -x -a '(__fish_complete_subcommand --fcs-skip=1)'")
    else:
        text.append(f"complete -c {program} -f")
    for option in options:
        names = " ".join(fish_option(name) for name in option["names"])
        value = fish_values(option["names"][-1], "") if option["takes_value"] else ""
        text.append(f"complete -c {program}{condition} {names}{value} -d {fish_quoted(brief(option['help']))}")
    for command in commands or []:
        name = command["name"]
        text.append(f"complete -c {program}{condition} -a {name} -d {fish_quoted(brief(command['help']))}")
        with_value = " ".join(option["name"] for option in command["options"] if option["value"])
        for option in command["options"]:
            value = fish_values("", option["value"]["kind"]) if option["value"] else ""
            text.append(f"complete -c {program} -n '__mpsctl_command {name}' {fish_option(option['name'])}{value}")
        for place, argument in enumerate(command["arguments"]):
            offer = fish_quoted(argument["name"]) if argument["kind"] == "literal" else f"'(__mpsctl_{argument['kind']})'" if argument["kind"] in VALUES else ""
            if offer:
                text.append(f"complete -c {program} -n '__mpsctl_command {name}; and __mpsctl_place {place} {with_value}' -a {offer}")
    return "\n".join(text) + "\n"
