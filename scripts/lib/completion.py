# SPDX-License-Identifier: Apache-2.0
"""Completion of bash and zsh for the programs of operators, made of what a program says of itself (--describe). That of fish: completion_fish.py."""
import re

DIRECTORIES = {"--pipe-dir", "--log-dir"}
FORMATS = "text json csv csv,noheader"
SORT_KEYS = "gpu launches wait in_flight memory age pid user"
WORDS = {"--driver": "auto cuda cpu", "--format": FORMATS}
# A program's own words for what stands on the command line at the moment; kinds of arguments that are not here have no words to offer.
VALUES = {
    "server": "get_server_list",
    "client": "get_client_list",
    "any_client": "ps --format=csv,noheader",
    "device": "device_query --format=csv,noheader",
}


def merged(commands):
    """Commands of two words (client set, client get) as one, of the first word: its first argument is one of the second words."""
    modules = {}
    for command in commands:
        module, _, verb = command["name"].partition(" ")
        if not verb:
            modules[module] = command
            continue
        one = modules.setdefault(module, {"name": module, "help": f"What can be done with one {module}", "options": [], "arguments": [
            {"name": "", "kind": "literal", "required": True}]})
        verbs = one["arguments"][0]
        verbs["name"] = f"{verbs['name']} {verb}".strip()
        one["options"] += [option for option in command["options"] if option["name"] not in {other["name"] for other in one["options"]}]
        one["arguments"] += command["arguments"][len(one["arguments"]) - 1:]
    return list(modules.values())


def brief(text):
    """The beginning of a help, short enough for a list."""
    text = re.split(r"(?<=\w)[:;.](?: |$)|\. | \(", text)[0].strip().rstrip(".")
    return text if len(text) <= 72 else text[:69].rsplit(" ", 1)[0] + "..."


def valued(options):
    return [name for option in options if option["takes_value"] for name in option["names"]]


def all_names(options):
    return [name for option in options for name in option["names"]]


# --- bash ---

BASH_VALUES = r"""
# What a running broker knows: servers, a server's clients, devices.
_mpsctl_values() { # KIND SERVER [--pipe-dir DIR]
    local kind=$1 server=$2
    shift 2
    case $kind in
        server) mpsctl "$@" get_server_list 2>/dev/null ;;
        client) mpsctl "$@" get_client_list "$server" 2>/dev/null ;;
        any_client) mpsctl "$@" ps --format=csv,noheader 2>/dev/null | cut -d, -f1 ;;
        device) mpsctl "$@" device_query --format=csv,noheader 2>/dev/null | cut -d, -f1,3 | tr , '\n' ;;
        format) printf '%s\n' text json csv csv,noheader ;;
        file) compgen -f -- "$cur" ;;
        sort_key) printf '%s\n' gpu launches wait in_flight memory age pid user ;;
        literal) printf '%s\n' "$server" ;;
    esac
}
"""

BASH_COMMANDS = r"""
    # Words of the command: how many of its arguments stand before the one at the cursor, and the last of them.
    local count=0 last='' at skip=
    for ((at = first + 1; at < COMP_CWORD; ++at)); do
        if [[ -n $skip ]]; then
            skip=
        elif [[ ${COMP_WORDS[at]} == -* ]]; then
            case "${COMP_WORDS[first]} ${COMP_WORDS[at]}" in
                @VALUED@) skip=yes ;;
            esac
        else
            count=$((count + 1)) last=${COMP_WORDS[at]}
        fi
    done
    local options='' kind='' word=''
    case ${COMP_WORDS[first]} in
@CASES@
    esac
    if [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$cur"))
    elif [[ -n $kind ]]; then
        [[ $kind == literal ]] || word=$last
        COMPREPLY=($(compgen -W "$(_mpsctl_values "$kind" "$word" "${place[@]}")" -- "$cur"))
    fi
"""


def bash_kinds(command):
    """Lines that set `kind` for the word at the cursor: after an option, else by the arguments before it."""
    lines = []
    for option in command["options"]:
        if option["value"]:
            lines.append(f"                {option['name']}) kind={option['value']['kind']} ;;")
    places = []
    for place, argument in enumerate(command["arguments"]):
        word = f" word='{argument['name']}'" if argument["kind"] == "literal" else ""
        places.append(f"{place}) kind={argument['kind']}{word} ;;")
    lines.append("                *)" + (" case $count in " + " ".join(places) + " esac" if places else "") + " ;;")
    return lines


def bash(described):
    program, options = described["program"], described["options"]
    function = f"_{program}"
    commands = merged(described.get("commands", []))
    text = [f"# bash completion for {program}; generated, not to be edited."]
    if commands:
        text.append(BASH_VALUES.strip("\n"))
    text += [f"{function}() {{", "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} first=1", "    local -a place=()", "    COMPREPLY=()"]
    # The first word that is no option, and no option's value.
    text += ["    while ((first < COMP_CWORD)) && [[ ${COMP_WORDS[first]} == -* ]]; do", "        case ${COMP_WORDS[first]} in"]
    if commands:
        text.append("            --pipe-dir) place=(--pipe-dir \"${COMP_WORDS[first + 1]}\"); first=$((first + 2)) ;;")
    others = [name for name in valued(options) if not (commands and name == "--pipe-dir")]
    if others:
        text.append(f"            {'|'.join(others)}) first=$((first + 2)) ;;")
    text += ["            *) first=$((first + 1)) ;;", "        esac", "    done"]
    text += ["    if ((first >= COMP_CWORD)); then", "        case $prev in"]
    for name in valued(options):
        if name in DIRECTORIES:
            text.append(f"            {name}) COMPREPLY=($(compgen -d -- \"$cur\")); return ;;")
        elif name in WORDS:
            files = "$(compgen -f -- \"$cur\")" if name == "--driver" else ""
            text.append(f"            {name}) COMPREPLY=($(compgen -W '{WORDS[name]}' -- \"$cur\") {files}); return ;;")
        elif name == "--user":
            text.append(f"            {name}) COMPREPLY=($(compgen -u -- \"$cur\")); return ;;")
        else:
            text.append(f"            {name}) return ;;")
    text.append("        esac")
    words = " ".join(all_names(options))
    other = ""
    if commands:
        other = f"compgen -W '{' '.join(command['name'] for command in commands)}' -- \"$cur\""
    elif program == "mpsrun":
        other = "compgen -c -- \"$cur\""
    text += ["        if [[ $cur == -* ]]; then", f"            COMPREPLY=($(compgen -W '{words}' -- \"$cur\"))"]
    if other:
        text += ["        else", f"            COMPREPLY=($({other}))"]
    text += ["        fi", "        return", "    fi"]
    if commands:
        cases, with_value = [], []
        for command in commands:
            names = " ".join(option["name"] for option in command["options"])
            cases += [f"        {command['name']})", f"            options='{names}'", "            case $prev in", *bash_kinds(command), "            esac", "            ;;"]
            with_value += [f"'{command['name']} {option['name']}'" for option in command["options"] if option["value"]]
        text.append(BASH_COMMANDS.strip("\n").replace("@CASES@", "\n".join(cases)).replace("@VALUED@", " | ".join(with_value)))
    elif program == "mpsrun":
        # What follows is the program's, and completed as that one's is where bash-completion is loaded.
        text.append("    if declare -F _command_offset >/dev/null; then _command_offset $first; else COMPREPLY=($(compgen -f -- \"$cur\")); fi")
    text += ["}", f"complete -F {function} {program}"]
    return "\n".join(text) + "\n"


# --- zsh ---

ZSH_VALUES = r"""
# What a running broker knows: servers, a server's clients, devices.
_mpsctl_values() { # KIND
    local -a found
    case $1 in
        server) found=(${(f)"$(mpsctl $mpsctl_place get_server_list 2>/dev/null)"}) ;;
        client) found=(${(f)"$(mpsctl $mpsctl_place get_client_list ${words[CURRENT - 1]} 2>/dev/null)"}) ;;
        any_client) found=(${(f)"$(mpsctl $mpsctl_place ps --format=csv,noheader 2>/dev/null | cut -d, -f1)"}) ;;
        device) found=(${(f)"$(mpsctl $mpsctl_place device_query --format=csv,noheader 2>/dev/null | cut -d, -f1,3 | tr , '\n')"}) ;;
    esac
    compadd -a found
}
"""


def zsh_quoted(text):
    return text.replace("\\", "\\\\").replace("'", "'\\''").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")


def zsh_values(name, kind):
    """What _arguments is to offer for a value: of an option of a program, or of a kind."""
    if name in DIRECTORIES:
        return "directory:_files -/"
    if name == "--driver":
        return "driver:{ compadd auto cuda cpu; _files }"
    if name == "--user":
        return "user:_users"
    if kind in VALUES:
        return f"{kind}:_mpsctl_values {kind}"
    if kind == "format" or name == "--format":
        return f"format:({FORMATS})"
    if kind == "file":
        return "file:_files"
    if kind == "sort_key":
        return f"key:({SORT_KEYS})"
    return f"{kind or 'value'}: "


def zsh(described):
    program, options = described["program"], described["options"]
    text = [f"#compdef {program}", f"# zsh completion for {program}; generated, not to be edited."]
    if described.get("commands"):
        text.append(ZSH_VALUES.strip("\n"))
    text += [f"_{program}() {{", "    local context state state_descr line", "    typeset -A opt_args", "    _arguments -C -S \\" if program != "mpsrun" else "    _arguments -C -S -A '-*' \\"]
    for option in options:
        names, value = option["names"], ""
        if option["takes_value"]:
            value = ":" + zsh_values(names[-1], "")
        exclusive = f"({' '.join(names)})"
        for name in names:
            equals = "=" if option["takes_value"] and name.startswith("--") else ""
            text.append(f"        '{exclusive}{name}{equals}[{zsh_quoted(brief(option['help']))}]{value}' \\")
    if described.get("commands"):
        text += ["        '1:command:->command' '*::argument:->arguments'", "    local -a mpsctl_place=()",
                 "    [[ -n ${opt_args[--pipe-dir]} ]] && mpsctl_place=(--pipe-dir ${opt_args[--pipe-dir]})", "    case $state in", "        command)", "            local -a commands=("]
        text += [f"                '{command['name']}:{zsh_quoted(brief(command['help']))}'" for command in merged(described["commands"])]
        text += ["            )", "            _describe command commands", "            ;;", "        arguments)", "            case $words[1] in"]
        for command in merged(described["commands"]):
            specs = []
            for option in command["options"]:
                value = ":" + zsh_values("", option["value"]["kind"]) if option["value"] else ""
                equals = "=" if value and option["name"].startswith("--") else ""
                specs.append(f"'{option['name']}{equals}[]{value}'" if value else f"'{option['name']}'")
            for place, argument in enumerate(command["arguments"], 1):
                colon = ":" if argument["required"] else "::"
                offer = f"word:({argument['name']})" if argument["kind"] == "literal" else zsh_values("", argument["kind"])
                specs.append(f"'{place}{colon}{offer}'")
            text.append(f"                {command['name']}) _arguments {' '.join(specs) or ':'} ;;")
        text += ["            esac", "            ;;", "    esac"]
    elif program == "mpsrun":
        text.append("        '(-)1:program: _command_names -e' '*::argument: _normal'")
    else:
        text[-1] = text[-1].removesuffix(" \\")
    text += ["}", f"_{program} \"$@\""]
    return "\n".join(text) + "\n"
