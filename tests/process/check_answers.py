#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_answers.py MPSCTL PIPE_DIRECTORY SCHEMA_DOCUMENT NAME_OF_A_CLIENT
Reads what mpsctl answers with parsers that are not ours, and holds the keys against those that docs/service.md promises. With a client whose
program has a name that means harm. A broker with static partitions, which has no clients (--partitions in place of the name), for those questions.
"""
import csv
import io
import json
import pathlib
import re
import subprocess
import sys

MPSCTL, PIPES, DOCUMENT, NAME = sys.argv[1:]


def answer(*words):
    done = subprocess.run([MPSCTL, "--pipe-dir", PIPES, *words], check=True, capture_output=True)
    assert done.stdout.endswith(b"\n"), words
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", done.stdout), f"{words}: a terminal would obey {done.stdout}"
    return done.stdout.decode("utf-8")  # strict


def document(command, *words):
    text = answer(*command.split(), *words, "--json")
    assert text.count("\n") == 1, text
    read = json.loads(text)
    assert read.pop("schema") == "mpsshim." + command.replace(" ", "_") and read.pop("version") == 1, text
    return read


def promised():
    """Keys by command, of the table of the document: the outer ones, and those of a list's objects."""
    section = pathlib.Path(DOCUMENT).read_text().partition("## JSON\n")[2].partition("\n## ")[0]
    found = {}
    for names, cell in re.findall(r"^\| (`[a-z_`, -]+`) \| (.*) \|$", section, re.M):
        keys = re.findall(r"`(\w+)`", cell)
        for name in re.findall(r"`([\w -]+)`", names):
            found[name] = keys
    return found


def check_keys(command, read, keys):
    lists = [value for value in read.values() if isinstance(value, list) and value and isinstance(value[0], dict)]
    has = set(read) | {key for rows in lists for row in rows for key in row}
    wanted = set(keys) - ({"server"} if command.startswith("get_default_") else set())
    assert has == wanted, f"{command}: has {sorted(has - wanted)} besides, lacks {sorted(wanted - has)}"


PARTITION_COMMANDS = {"lspart": "partitions", "sm-partition list": "partitions"}


def check_table(command, rows, varies=()):
    table = list(csv.DictReader(io.StringIO(answer(*command.split(), "--csv"), newline=""), strict=True))
    objects = document(command)[rows]
    assert len(table) == len(objects) > 0, command
    for line, one in zip(table, objects):
        assert list(line) == list(one), (line, one)
        for key, value in one.items():
            shown = "" if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value)
            assert line[key] == shown or key.startswith(varies), (command, key, line[key], shown)


def check_partitions(keys):
    subprocess.run([MPSCTL, "--pipe-dir", PIPES, "sm_partition", "add", "0", "1"], check=True, capture_output=True)
    for command, rows in PARTITION_COMMANDS.items():
        check_keys(command, document(command), keys[command])
        check_table(command, rows)
    print("answers are what is promised")


def main():
    keys = promised()
    if NAME == "--partitions":
        return check_partitions(keys)
    for command in PARTITION_COMMANDS:
        del keys[command]
    subprocess.run([MPSCTL, "--pipe-dir", PIPES, "namespace", "create", "training"], check=True)
    server = str(document("get_server_list")["servers"][0])
    arguments = {"get_server_status": [server], "get_client_list": [server], "get_default_device_pinned_mem_limit": ["0"],
                 "get_device_pinned_mem_limit": [server, "0"], "get_active_thread_percentage": [server], "top": ["-n", "1"]}
    clients = document("ps")["clients"]
    fields = {"client get": [str(clients[0]["pid"]), "pinned-memory-limit"], "server get": [server, "active-thread-percentage"],
              "namespace get": ["training", "client-priority"]}
    for command, words in fields.items():
        field = words[1].replace("-", "_") + ("_bytes" if "memory" in words[1] else "")
        check_keys(command, document(command, *words), keys.pop(command) + [field])
    for command in keys:
        check_keys(command, document(command, *arguments.get(command, [])), keys[command])
    assert len(keys) == 18, keys
    assert document("namespace create", "inference") == {}
    assert len(clients) == 1 and NAME in clients[0]["command"], clients
    for command, rows in (("ps", "clients"), ("servers", "servers"), ("server list", "servers"), ("users", "users"), ("device_query", "devices"), ("namespace list", "namespaces"), ("client list", "clients"), ("device list", "devices")):
        check_table(command, rows, ("host", "device_bytes", "memory", "age", "gpu", "launches", "wait", "in_flight"))  # between two questions
    # What a person sees: the same clients, in lines.
    assert len(answer("ps", "-l").splitlines()) == 2
    print("answers are what is promised")


if __name__ == "__main__":
    main()
