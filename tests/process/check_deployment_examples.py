#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_deployment_examples.py SOURCE_TREE MPSCTL MPSBROKER
Whether the recipes of examples/deployment can be read, and say what the programs say: the same files in a pod as in a container by `mpsctl cdi`, options
that mpsbroker has. Exit status 77: python3-yaml is not installed; the rest has been looked at.
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys

FOLDER, MPSCTL, MPSBROKER = pathlib.Path(sys.argv[1]) / "examples/deployment", sys.argv[2], sys.argv[3]
INSTRUCTIONS = {"FROM", "COPY", "RUN", "ENV", "STOPSIGNAL", "ENTRYPOINT", "CMD", "LABEL", "USER", "VOLUME", "WORKDIR"}


def check_container_file():
    text = re.sub(r"^#.*\n", "", (FOLDER / "Containerfile").read_text(), flags=re.M)
    instructions = [line.split(None, 1) for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]
    assert instructions[0][0] == "FROM" and all(len(words) == 2 and words[0] in INSTRUCTIONS for words in instructions), instructions
    for word, rest in instructions:
        if word == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)
            assert all(shlex.split(part) for part in rest.split("&&")), rest
    command = json.loads(dict(instructions)["ENTRYPOINT"])
    help_text = subprocess.run([MPSBROKER, "--help"], check=True, capture_output=True, text=True).stdout
    for option in command[1:]:
        assert re.search(rf"(^|[ ,]){re.escape(option.split('=')[0])}\b", help_text, re.M), f"mpsbroker has no {option}"


def check_kubernetes():
    try:
        import yaml
    except ImportError:
        print("skipped: python3-yaml is not installed")
        sys.exit(77)
    daemons, pod = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    assert (daemons["apiVersion"], daemons["kind"], pod["apiVersion"], pod["kind"]) == ("apps/v1", "DaemonSet", "v1", "Pod")
    template = daemons["spec"]["template"]
    assert daemons["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    plugin = template["spec"]["containers"][0]
    assert {mount["name"] for mount in plugin["volumeMounts"]} == {volume["name"] for volume in template["spec"]["volumes"]}
    options = dict(zip(plugin["args"][::2], plugin["args"][1::2]))
    device = yaml.safe_load(options["--device"])
    resource = f"{options['--domain']}/{device['name']}"
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {resource: 1}, resource

    written = subprocess.run([MPSCTL, "--pipe-dir", "/run/mpsshim", "cdi", "--output", "-"], check=True, capture_output=True, text=True).stdout
    document = json.loads(written)
    assert document["kind"] == resource, document["kind"]
    edits = document["devices"][0]["containerEdits"]
    paths = device["groups"][0]["paths"]
    assert all(path["type"] == "Mount" and path["readOnly"] for path in paths), paths
    assert {path["mountPath"] for path in paths} == {mount["containerPath"] for mount in edits["mounts"]}
    hosts = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
    seen = [volume["hostPath"]["path"] for volume in template["spec"]["volumes"]]
    for path in paths:
        assert pathlib.Path(path["path"]).name == pathlib.Path(hosts[path["mountPath"]]).name, path
        assert any(path["path"].startswith(folder + "/") for folder in seen), f"the plugin does not see {path['path']}"
    environment = [f"{entry['name']}={entry['value']}" for entry in pod["spec"]["containers"][0]["env"]]
    assert environment == edits["env"], environment


def main():
    check_container_file()
    check_kubernetes()
    print("the recipes can be read, and say what the programs say")


if __name__ == "__main__":
    main()
