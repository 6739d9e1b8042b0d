#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_container.py BUILD_TREE DRIVER
Whether what `mpsctl cdi` writes is a file of the Container Device Interface, and whether a container that is made by it is a client and no more: its
edits are made as an engine makes them, by bind mounts into a small root of its own, where an unprivileged example finds the library by its loader alone.
Exit status 77: no such root can be made here, with the reason; the file has been looked at all the same.
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading

try:
    import jsonschema
except ImportError:
    jsonschema = None

BUILD, DRIVER = pathlib.Path(sys.argv[1]), sys.argv[2]
MPSBROKER, MPSCTL, PROGRAM = BUILD / "bin/mpsbroker", BUILD / "bin/mpsctl", BUILD / "bin/process1"
MANAGED = BUILD / "bin/nvml_client"
LIBRARY = BUILD / "lib/libmpsshim.so"
NOBODY = 65534

# After the text of the specification, version 0.5.0, "CDI JSON Specification". That paths are absolute and devices have edits is in its text.
PATH = {"type": "string", "pattern": "^/"}
STRINGS = {"type": "array", "items": {"type": "string"}}
ENV = {"type": "array", "items": {"type": "string", "pattern": "^[^=]+="}}
EDITS = {
    "type": "object",
    "additionalProperties": False,
    "minProperties": 1,
    "properties": {
        "env": ENV,
        "deviceNodes": {"type": "array", "items": {
            "type": "object", "required": ["path"], "additionalProperties": False,
            "properties": {"path": PATH, "hostPath": PATH, "type": {"enum": ["b", "c", "u", "p"]}, "major": {"type": "integer"}, "minor": {"type": "integer"},
                           "fileMode": {"type": "integer"}, "permissions": {"type": "string", "pattern": "^[rwm]+$"}, "uid": {"type": "integer"},
                           "gid": {"type": "integer"}}}},
        "mounts": {"type": "array", "items": {
            "type": "object", "required": ["hostPath", "containerPath"], "additionalProperties": False,
            "properties": {"hostPath": PATH, "containerPath": PATH, "type": {"type": "string"}, "options": STRINGS}}},
        "hooks": {"type": "array", "items": {
            "type": "object", "required": ["hookName", "path"], "additionalProperties": False,
            "properties": {"hookName": {"enum": ["createRuntime", "createContainer", "startContainer", "poststart", "poststop"]}, "path": PATH,
                           "args": STRINGS, "env": ENV, "timeout": {"type": "integer", "minimum": 1}}}},
    },
}
NAME = r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"
SCHEMA = {
    "type": "object",
    "required": ["cdiVersion", "kind", "devices"],
    "additionalProperties": False,
    "properties": {
        "cdiVersion": {"enum": ["0.5.0", "0.6.0", "0.7.0", "0.8.0"]},
        # A vendor, which begins with a letter, and a class.
        "kind": {"type": "string", "pattern": r"^[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?$"},
        "devices": {"type": "array", "minItems": 1, "items": {
            "type": "object", "required": ["name", "containerEdits"], "additionalProperties": False,
            "properties": {"name": {"type": "string", "pattern": f"^{NAME}$"}, "containerEdits": EDITS}}},
        "containerEdits": EDITS,
    },
}


def ctl(pipe, *words, **more):
    environment = {key: value for key, value in os.environ.items() if key not in ("CUDA_MPS_PIPE_DIRECTORY", "LD_PRELOAD")}
    return subprocess.run([MPSCTL, *(["--pipe-dir", pipe] if pipe else []), "cdi", *words], capture_output=True, text=True, check=False, env=environment,
                          **more)


def check_file(folder, pipe):
    """The file itself, and how it is written. Returns its edits."""
    path = folder / "etc-cdi/mpsshim.json"  # its folder is made
    done = ctl(pipe, "--output", path)
    assert done.returncode == 0 and done.stdout == "", done
    told = f"there is no socket {pipe}/mpsshim.sock yet"
    assert told in done.stderr and done.stderr.count("\n") == 1, done
    document = json.loads(path.read_text())
    if jsonschema is None:
        print("python3-jsonschema is not installed: the file was not held against the schema")
    else:
        jsonschema.validate(document, SCHEMA)
    assert document["kind"] == "mpsshim.dev/gpu" and [device["name"] for device in document["devices"]] == ["shared"], document
    edits = document["devices"][0]["containerEdits"]
    assert not edits.get("deviceNodes") and not edits.get("hooks"), edits
    assert path.stat().st_mode & 0o777 == 0o644, oct(path.stat().st_mode)
    for mount in edits["mounts"]:
        assert "/dev" not in mount["hostPath"] and {"ro", "nosuid", "nodev"} <= set(mount["options"]), mount

    again = ctl(pipe, "--output", "-")
    assert again.returncode == 0 and json.loads(again.stdout) == document and again.stderr == "", again
    relative = ctl("here", "--output", "-", cwd=folder)
    assert f"{folder}/here/mpsshim.sock" in relative.stdout, relative
    if os.geteuid() == 0:
        assert '"/run/mpsshim/mpsshim.sock","containerPath"' in ctl(None, "--output", "-").stdout

    # Whoever reads it meanwhile has a whole one.
    torn, is_over = [], threading.Event()

    def read():
        while not is_over.is_set():
            try:
                json.loads(path.read_text())
            except (ValueError, OSError) as error:
                torn.append(error)
    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(50):
        assert ctl(pipe, "--output", path).returncode == 0
    is_over.set()
    reader.join()
    assert not torn, torn
    assert [entry.name for entry in path.parent.iterdir()] == ["mpsshim.json"], list(path.parent.iterdir())

    for words, status, told in ((("--output", folder / "not/there/at/all"), 1, "cannot be made (No such file or directory)"),
                                (("--output", "/proc/mpsshim.json"), 1, "cannot be made"), (("--output",), 1, "--output needs a value"),
                                (("now",), 1, "one word too many")):
        done = ctl(pipe, *words)
        assert done.returncode == status and told in done.stderr and done.stderr.count("\n") == 1 and done.stdout == "", done
    return edits


def make_root(root):
    """What an image has that knows nothing of us: the program and its libraries, and a shell."""
    for folder in ("usr/bin", "usr/lib/x86_64-linux-gnu", "usr/lib64", "proc", "dev", "tmp", "run", "etc"):
        (root / folder).mkdir(parents=True)
    for link in ("bin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    (root / "dev/null").touch()
    programs = {PROGRAM: "usr/bin/app", MANAGED: "usr/bin/managed", pathlib.Path("/bin/sh"): "usr/bin/sh", pathlib.Path("/bin/ls"): "usr/bin/ls", pathlib.Path("/usr/bin/env"): "usr/bin/env"}
    for program, name in programs.items():
        shutil.copy(program, root / name)
    for program in (*programs, LIBRARY):  # of the C library, which every image has whole
        for library in re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout):
            folder = "usr/lib64" if "/lib64/" in library else "usr/lib/x86_64-linux-gnu"
            if not (root / folder / pathlib.Path(library).name).exists():
                shutil.copy(library, root / folder)


def in_container(root, edits, command, own_users=False):
    """As an engine does it: mounts into the root, then the environment over the image's, then the program, without any right. `own_users`: in a user
    namespace, whose root is somebody unprivileged outside."""
    place = shlex.quote(str(root))
    lines = ["set -e", "mount --make-rprivate /", f"mount --rbind {place} {place}"]
    for mount in edits.get("mounts", []):
        target = root / mount["containerPath"].lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
        options = ",".join(option for option in mount["options"] if option not in ("bind", "rbind"))
        lines += [f"mount --bind {shlex.quote(mount['hostPath'])} {shlex.quote(str(target))}", f"mount -o remount,bind,{options} {shlex.quote(str(target))}"]
    lines += [f"mount -t proc proc {place}/proc", f"mount --bind /dev/null {place}/dev/null"]
    image = {"PATH": "/usr/bin", "LD_PRELOAD": "/usr/lib/of-the-image.so", "LD_LIBRARY_PATH": "/opt/of-the-image/lib"}
    environment = [f"{key}={value}" for key, value in image.items()] + edits.get("env", [])
    becomes_somebody = os.geteuid() == 0 and not own_users
    user = [f"--userspec={NOBODY}:{NOBODY}", "--groups="] if becomes_somebody else []
    lines.append(f"exec {shlex.join(['chroot', *user, str(root), '/usr/bin/env', '-i', *environment, *command])}")
    spaces = ["unshare", "--mount", "--pid", "--fork", "--ipc", "--net", "--kill-child"]
    if not becomes_somebody:
        spaces += ["--user", "--map-root-user"]
    if own_users and os.geteuid() == 0:
        spaces = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *spaces]
    return subprocess.run([*spaces, "sh", "-c", "\n".join(lines)], capture_output=True, text=True, check=False, timeout=120)


def check_clients(folder, pipe, edits):
    root = folder / "root"
    make_root(root)
    nothing = {"mounts": [], "env": []}
    tried = in_container(root, nothing, ["/usr/bin/ls", "/"])
    if tried.returncode != 0:
        print(f"skipped: no container's root can be made here ({tried.stderr.strip()})")
        sys.exit(77)
    alone = in_container(root, nothing, ["/usr/bin/app"])
    assert alone.returncode != 0 and "done" not in alone.stdout, f"a client without a library: {alone}"

    for own_users in (False, True) if os.geteuid() == 0 else (True,):
        done = in_container(root, edits, ["/usr/bin/app"], own_users)
        assert done.returncode == 0 and "Process 1 done." in done.stdout, f"own users: {own_users}: {done}"
    told = in_container(root, edits, ["/usr/bin/managed", "--cuda", "64", "init", "count", "first", "name", "memory"])
    assert told.stdout.startswith("init 0 \ncount 0 1\nfirst 0 \nname 0 ") and "\nmemory 0 " in told.stdout, told

    # One of the two folders is a default of this machine's loader, and suffices.
    sufficient = []
    for folder_of_loader in ("/usr/lib64", "/usr/lib/x86_64-linux-gnu"):
        for mount in edits["mounts"]:
            (root / mount["containerPath"].lstrip("/")).unlink(missing_ok=True)
        fewer = {**edits, "mounts": [mount for mount in edits["mounts"] if mount["containerPath"].startswith((folder_of_loader, "/run"))]}
        if "Process 1 done." in in_container(root, fewer, ["/usr/bin/app"]).stdout:
            sufficient.append(folder_of_loader)
    assert len(sufficient) == 1, sufficient

    # What is there besides: the one socket, and no device of NVIDIA's.
    seen = in_container(root, edits, ["/usr/bin/ls", "/run/mpsshim", "/dev"]).stdout
    assert seen == "/dev:\nnull\n\n/run/mpsshim:\nmpsshim.sock\n", seen
    before = LIBRARY.read_bytes()
    for path in ("/usr/lib64/libcuda.so.1", "/run/mpsshim/mpsshim.sock"):
        changed = in_container(root, edits, ["/bin/sh", "-c", f"echo x >> {path}"])
        assert changed.returncode != 0, f"a container writes to {path}"
    assert LIBRARY.read_bytes() == before
    assert not subprocess.run([MPSCTL, "--pipe-dir", pipe, "get_server_list"], check=True, capture_output=True).stderr


def main():
    with tempfile.TemporaryDirectory(prefix="mpsshim-container.") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        pipe = folder / "pipe"
        edits = check_file(folder, pipe)
        words = [MPSBROKER, "-d", "--driver", DRIVER, "--pipe-dir", pipe, "--log-dir", folder / "log", "--multiuser-server"]
        subprocess.run(words, check=True)
        try:
            check_clients(folder, pipe, edits)
        finally:
            subprocess.run([MPSCTL, "--pipe-dir", pipe, "quit", "--now"], check=False)
    print("a container by this file is a client, and no more")


if __name__ == "__main__":
    main()
