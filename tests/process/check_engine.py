#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_engine.py BUILD_TREE DRIVER
Whether a container engine (podman) makes a client of a container by the file that `mpsctl cdi` writes: --device mpsshim.dev/gpu=shared, as nobody and
without any capability. What is in the file, and what else a container sees of it, is in check_container.py.
Exit status 77: there is no engine that runs containers here, with the reason.
"""
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

import check_container

DEVICE = ("--device", "mpsshim.dev/gpu=shared")
PLACE_OF_FILES = pathlib.Path("/run/cdi")  # one of the two places where engines look


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


class Engine:
    """Its containers have `root` as their root. What it stores is in `folder`, and the files of devices are `files` to it alone."""

    def __init__(self, folder, root, files):
        runtime = next((name for name in ("runc", "crun") if shutil.which(name)), None)
        if shutil.which("podman") is None or runtime is None:
            skip("podman and runc or crun are not installed")
        self.root, self.files = root, files
        # Limits and the cgroup are what the test has: a machine may not let it have others.
        self.words = ["podman", "--root", folder / "storage", "--runroot", folder / "state", "--runtime", runtime, "run", "--rm", "--network=none",
                      "--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000", "--cgroupns=host"]

    def run(self, *command, options=(), user=check_container.NOBODY):
        rights = [f"--user={user}:{user}", "--cap-drop=all", "--security-opt=no-new-privileges"]
        words = shlex.join(map(str, [*self.words, *rights, *options, "--rootfs", self.root, *command]))
        script = f"mount --bind {shlex.quote(str(self.files))} {PLACE_OF_FILES} && exec {words}"
        return subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=120)


def check(engine, pipe):
    alone = engine.run("/usr/bin/app")
    assert alone.returncode != 0 and "done" not in alone.stdout, f"a client without a library: {alone}"
    for user in (check_container.NOBODY, 0):
        done = engine.run("/usr/bin/app", options=DEVICE, user=user)
        assert done.returncode == 0 and "Process 1 done." in done.stdout, f"user {user}: {done}"
    done = engine.run("/usr/bin/app", options=(*DEVICE, "--env=LD_PRELOAD=/usr/lib/of-the-image.so", "--env=LD_LIBRARY_PATH=/opt/of-the-image/lib"))
    assert done.returncode == 0 and "Process 1 done." in done.stdout, done
    seen = engine.run("/usr/bin/ls", "/run/mpsshim", options=DEVICE).stdout
    assert seen == "mpsshim.sock\n", seen
    assert "nvidia" not in engine.run("/usr/bin/ls", "/dev", options=DEVICE).stdout
    # Of a group, by its directory: with the group's limit, whatever the container says.
    ctl = [check_container.MPSCTL, "--pipe-dir"]
    subprocess.run([*ctl, pipe, "namespace", "create", "--uid", str(check_container.NOBODY), "batch"], check=True)
    subprocess.run([*ctl, pipe, "namespace", "set", "--uid", str(check_container.NOBODY), "batch", "--pinned-memory-limit", "512M"], check=True)
    subprocess.run([*ctl, pipe / "batch", "cdi", "--output", engine.files / "mpsshim-batch.json"], check=True)
    asks = ("/usr/bin/managed", "--cuda", "64", "init", "first", "memory")
    for device, has_limit in (("batch", True), ("shared", False)):
        told = engine.run(*asks, options=("--device", f"mpsshim.dev/gpu={device}", "--env=MPSSHIM_GROUP=other"))
        assert told.returncode == 0 and (str(512 << 20) in told.stdout) == has_limit, (device, told)
    refused = engine.run("/usr/bin/app", options=("--device", "mpsshim.dev/gpu=other"))
    assert refused.returncode != 0, refused


def main():
    with tempfile.TemporaryDirectory(prefix="mpsshim-engine.") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        pipe, root, files = folder / "pipe", folder / "root", folder / "cdi"
        files.mkdir()
        check_container.make_root(root)
        engine = Engine(folder, root, files)
        is_new = not PLACE_OF_FILES.exists()
        try:
            PLACE_OF_FILES.mkdir(exist_ok=True)
        except OSError as error:
            skip(f"{PLACE_OF_FILES} cannot be made ({error.strerror}): run this as root")
        try:
            tried = engine.run("/usr/bin/ls", "/")
            if tried.returncode != 0:
                skip(f"podman runs no container here ({tried.stderr.strip()})")
            words = [check_container.MPSBROKER, "-d", "--driver", check_container.DRIVER, "--pipe-dir", pipe, "--log-dir", folder / "log", "--multiuser-server"]
            subprocess.run(words, check=True)
            try:
                subprocess.run([check_container.MPSCTL, "--pipe-dir", pipe, "cdi", "--output", files / "mpsshim.json"], check=True)
                check(engine, pipe)
            finally:
                subprocess.run([check_container.MPSCTL, "--pipe-dir", pipe, "quit", "--now"], check=False)
        finally:
            if is_new:
                PLACE_OF_FILES.rmdir()
    print("podman makes clients of containers")


if __name__ == "__main__":
    main()
