#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_metrics.py ADDRESS DOCUMENT NAME_OF_A_CLIENT
Asks a broker for its figures by HTTP (ADDRESS: HOST:PORT, or the path of a Unix socket) and reads them by the letter of Prometheus' text format,
version 0.0.4. The names of families are held against the table in DOCUMENT. Where promtool or Python's prometheus_client is installed, they read it,
too.
"""
import http.client
import pathlib
import re
import shutil
import socket
import subprocess
import sys

ADDRESS, DOCUMENT, NAME = sys.argv[1:]
METRIC = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*'
VALUE = r"(?:\d+(?:\.\d+)?)"
LABELS = re.compile(rf'({LABEL})="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(,|$)')


class UnixConnection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(ADDRESS)


def connection():
    return UnixConnection("localhost", timeout=20) if ADDRESS.startswith("/") else http.client.HTTPConnection(ADDRESS, timeout=20)


def fetch(method="GET", path="/metrics"):
    caller = connection()
    caller.request(method, path)
    answer = caller.getresponse()
    return answer, answer.read()


def read_labels(text, line):
    found, at = {}, 0
    while at < len(text):
        match = LABELS.match(text, at)
        assert match, f"labels: {line}"
        name, value, _ = match.groups()
        assert name not in found and not name.startswith("__"), line
        found[name] = re.sub(r"\\(.)", lambda escape: {"n": "\n"}.get(escape[1], escape[1]), value)
        at = match.end()
    assert not text.endswith(","), line
    return found


def parse(text):
    """Families: type and samples, each a pair of labels and value."""
    assert text.endswith("\n") and "\r" not in text and not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
    families, current, helped = {}, None, None
    for line in text[:-1].split("\n"):
        if match := re.fullmatch(rf"# HELP ({METRIC}) (.+)", line):
            assert match[1] not in families, f"twice: {line}"
            helped = match[1]
        elif match := re.fullmatch(rf"# TYPE ({METRIC}) (counter|gauge)", line):
            assert match[1] == helped, line
            current = families[match[1]] = {"type": match[2], "samples": []}
            assert (match[2] == "counter") == match[1].endswith("_total"), line
        else:
            match = re.fullmatch(rf"({METRIC})(?:\{{(.+)\}})? ({VALUE})", line)
            assert match and match[1] == helped and current is families.get(match[1]), line
            labels = read_labels(match[2] or "", line)
            assert labels not in [sample[0] for sample in current["samples"]], f"twice: {line}"
            current["samples"].append((labels, float(match[3])))
    return families


def promised():
    section = pathlib.Path(DOCUMENT).read_text().partition("## Prometheus\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(mpsshim_\w+)` \| (counter|gauge) \|", section, re.M))


def main():
    answer, body = fetch()
    assert answer.status == 200, answer.status
    assert answer.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    text = body.decode("utf-8")  # strict
    families = parse(text)
    has = {name: family["type"] for name, family in families.items()}
    assert has == promised(), f"{set(has.items()) ^ set(promised().items())}"
    clients = families["mpsshim_client_info"]["samples"]
    assert len(clients) == 1 and NAME in clients[0][0]["command"], clients
    session = clients[0][0]["session"]
    for name in ("mpsshim_client_gpu_seconds_total", "mpsshim_client_launches_total", "mpsshim_client_age_seconds"):
        labels, value = families[name]["samples"][0]
        assert labels["session"] == session and value > 0, (name, labels, value)
    head, nothing = fetch("HEAD")
    assert head.status == 200 and nothing == b""
    assert fetch(path="/")[0].status == 404
    assert fetch("DELETE")[0].status == 405
    if shutil.which("promtool"):
        subprocess.run(["promtool", "check", "metrics"], input=body, check=True)
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        print("prometheus_client is not installed: it has not read the figures")
    else:
        theirs = sum(len(family.samples) for family in text_string_to_metric_families(text))
        assert theirs == sum(len(family["samples"]) for family in families.values())
    print("figures are what is promised")


if __name__ == "__main__":
    main()
