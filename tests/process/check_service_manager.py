#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_service_manager.py BUILD_TREE DRIVER
Plays systemd for an mpsbroker: passes it the socket of clients (sd_listen_fds(3)), and listens to what it says (sd_notify(3)). Then it looks whether
what systemd would rely on holds: who connects before the broker is there is served, a loop that hangs gives no sign of life, the socket outlives every
broker, and a restart goes on in the same process with the same socket.
"""
import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time

BUILD, DRIVER = pathlib.Path(sys.argv[1]), sys.argv[2]
MPSBROKER, MPSCTL, PROGRAM = BUILD / "bin/mpsbroker", BUILD / "bin/mpsctl", BUILD / "bin/process1"
LIBRARY = BUILD / "lib/libmpsshim.so"
LIMIT_S = 60  # for what should come at once, on a loaded machine


def eventually(condition, limit=LIMIT_S):
    until = time.monotonic() + limit
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


class Service:
    """A service with its directory, the socket that its manager holds, and the one where it is listened to."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.pipe = self.root / "pipe"
        self.pipe.mkdir(mode=0o700)
        self.path = self.pipe / "mpsshim.sock"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.path))
        self.listener.listen(64)
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(self.root / "notify"))
        self.notify.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.said = []
        self.pid = None
        self.errors = None

    def start(self, mode="-f", driver=DRIVER, environment=None, fds=None, pipe=None, stderr=None):
        """As systemd does it: descriptors from 3 on, and the child's own pid in its environment."""
        fds = [self.listener.fileno()] if fds is None else fds
        self.errors = open(self.root / "errors", "w+b")
        stderr = self.errors.fileno() if stderr is None else stderr
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(OSError):
                os.setsid()  # no terminal, at whose end SIGHUP would mean another thing
                me = str(os.getpid())
                more = {"LISTEN_PID": me, "LISTEN_FDS": str(len(fds)), "LISTEN_FDNAMES": ":".join(["clients"] * len(fds)),
                        "NOTIFY_SOCKET": str(self.root / "notify"), "WATCHDOG_PID": me}
                more.update({key: value.replace("PID", me) for key, value in (environment or {}).items()})
                kept = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_", "LD_", "MPSSHIM_", "LISTEN_"))}
                copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in fds]
                stderr = fcntl.fcntl(stderr, fcntl.F_DUPFD, 100)
                os.closerange(3, 100)
                for number, copy in enumerate(copies, 3):
                    os.dup2(copy, number)
                os.dup2(stderr, 2)
                os.closerange(3 + len(fds), 200)
                words = [MPSBROKER, mode, "--driver", driver, "--pipe-dir", pipe or self.pipe, "--log-dir", self.root / "log"]
                os.execve(MPSBROKER, [str(word) for word in words], {**kept, **more})
            os._exit(127)
        self.pid = pid
        self.said = []

    def listen(self, limit):
        """Takes what comes within `limit` seconds, at least what is there."""
        until = time.monotonic() + limit
        while True:
            self.notify.settimeout(max(until - time.monotonic(), 0.001))
            try:
                text, control, _, _ = self.notify.recvmsg(4096, socket.CMSG_SPACE(12))
            except TimeoutError:
                return
            sender = int.from_bytes(control[0][2][:4], sys.byteorder)
            assert sender == self.pid, f"{text} comes from pid {sender}, and only the main process ({self.pid}) is heard"
            self.said.append(text.decode())
            if time.monotonic() > until:
                return

    def hears(self, line, limit=LIMIT_S):
        until = time.monotonic() + limit
        while not any(line in state.split("\n") for state in self.said):
            if time.monotonic() > until:
                return False
            self.listen(0.05)
        return True

    def expect(self, line):
        assert self.hears(line), f"{line} did not come: {self.said}; {self.complaint()}"

    def complaint(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def end(self):
        assert eventually(lambda: self.has_ended()), "the broker does not end"
        return self.status

    def has_ended(self):
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        self.status = os.waitstatus_to_exitcode(status) if pid else None
        return pid != 0

    def client(self):
        environment = {**os.environ, "LD_PRELOAD": str(LIBRARY), "MPSSHIM_REQUIRE": "1", "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe)}
        return subprocess.Popen([PROGRAM], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def is_served(self, client):
        output, _ = client.communicate(timeout=LIMIT_S)
        assert client.returncode == 0 and "Process 1 done." in output, output

    def ctl(self, *words, status=0):
        done = subprocess.run([MPSCTL, "--pipe-dir", self.pipe, *words], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == status, f"mpsctl {words}: {done}"
        return done.stdout + done.stderr


@contextlib.contextmanager
def service():
    root = tempfile.mkdtemp(prefix="mpsshim-manager.")
    one = Service(root)
    try:
        yield one
    finally:
        if one.pid is not None:
            with contextlib.suppress(ChildProcessError):
                if not one.has_ended():
                    os.kill(one.pid, signal.SIGKILL)
                    os.waitpid(one.pid, 0)
        one.listener.close()
        one.notify.close()
        shutil.rmtree(root)


def bytes_in(pipe):
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def variables(pid):
    return {entry.split(b"=")[0].decode() for entry in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if entry}


def check_life():
    with service() as one:
        waiting = one.client()  # before there is a broker
        time.sleep(0.2)
        assert waiting.poll() is None, waiting.communicate()
        one.start()
        one.expect("READY=1")
        assert any("STATUS=Serves uid" in state for state in one.said), one.said
        one.is_served(waiting)
        assert not any("WATCHDOG" in state for state in one.said), "a sign of life that nobody asked for"
        executor = int(one.ctl("get_server_list"))
        if os.geteuid() == 0:  # a process that gives up rights can be looked into by root alone
            assert not variables(executor) & {"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_PID"}, variables(executor)

        inode = one.path.stat().st_ino
        one.said = []
        one.ctl("restart")
        one.expect("READY=1")
        assert one.said[0].startswith("RELOADING=1\nMONOTONIC_USEC="), one.said
        if os.geteuid() == 0:
            now = variables(one.pid)
            assert "NOTIFY_SOCKET" in now and not any(name.startswith("LISTEN_") for name in now), now
        one.is_served(one.client())

        one.said = []
        os.kill(one.pid, signal.SIGHUP)
        one.expect("READY=1")
        assert one.said[0].startswith("RELOADING=1\n"), one.said

        one.said = []
        one.ctl("quit")
        assert one.end() == 0
        one.expect("STOPPING=1")
        assert one.path.stat().st_ino == inode, "the socket is not what it was"
        assert not (one.pipe / "control.sock").exists()
        assert "no broker serves" in one.ctl("get_server_list", status=2)  # a question starts nothing

        # Of those that come when there is none the next broker serves all; restarts with clients of either socket are over.
        late = [one.client(), one.client()]
        time.sleep(0.2)
        one.start()
        for client in late:
            one.is_served(client)
        os.kill(one.pid, signal.SIGTERM)
        assert one.end() == 0
        one.expect("STOPPING=1")
        assert one.path.exists()


def check_watchdog():
    """The loop is made to hang by a reader of its standard error that does not read."""
    with service() as one:
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        one.start(environment={"WATCHDOG_USEC": "400000"}, stderr=writer)
        os.close(writer)
        one.expect("READY=1")
        one.said = []
        until = time.monotonic() + LIMIT_S
        while one.said.count("WATCHDOG=1") < 5:
            assert time.monotonic() < until, f"{one.said}, and a sign of life is due every 0.2 s"
            one.listen(0.2)
        # A line of the log is longer than what the pipe has left when it is full.
        until, heard = time.monotonic() + LIMIT_S, time.monotonic()
        while time.monotonic() < heard + 1 or bytes_in(reader) < 3900:
            assert time.monotonic() < until, "the loop does not hang"
            one.said = []
            os.kill(one.pid, signal.SIGHUP)  # a line each
            one.listen(0.005)
            if one.said:
                heard = time.monotonic()
        one.said = []
        one.listen(3)
        assert one.said == [], f"the loop hangs, and says {one.said}"
        os.set_blocking(reader, False)
        until = time.monotonic() + LIMIT_S
        while "WATCHDOG=1" not in one.said and time.monotonic() < until:
            with contextlib.suppress(BlockingIOError):
                os.read(reader, 65536)
            one.listen(0.05)
        assert "WATCHDOG=1" in one.said, "the loop goes on, and gives no sign of life"
        os.close(reader)

    with service() as one:
        one.start(environment={"WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"})
        one.expect("READY=1")
        one.listen(1)
        assert "WATCHDOG=1" not in one.said, "the watchdog is for another process"


def check_driver_that_is_not_there():
    with service() as one:
        one.start(driver="/nonexistent/libcuda.so.1")
        assert one.end() == 1
        assert one.hears("STOPPING=1"), one.said
        assert not one.hears("READY=1", 0.2), one.said
        assert any(state.startswith("STATUS=No driver serves: ") for state in one.said), one.said
        assert one.path.exists()


def check_what_is_refused():
    def refused(words, status=1, **how):
        with service() as one:
            one.start(**how)
            assert one.end() == status, one.complaint()
            complaint = one.complaint()
            assert words in complaint and complaint.count("\n") == 1, complaint
            assert one.path.exists(), "a socket was removed that is not the broker's"

    with tempfile.TemporaryDirectory() as folder:
        refused("listens at", pipe=pathlib.Path(folder) / "other")
    refused('1 socket "commands" was passed', environment={"LISTEN_FDNAMES": "commands"})
    refused('1 socket "a\\x0ab" was passed', environment={"LISTEN_FDNAMES": "a\nb"})
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        refused("is not a listening Unix socket of packets", fds=[stream.fileno()])
    with open("/dev/null") as null:
        refused("is not a listening Unix socket of packets", fds=[null.fileno()])
        refused('2 sockets "clients:clients" were passed', fds=[null.fileno(), null.fileno()])
    # For another process: then the place is somebody else's.
    refused("Address already in use", environment={"LISTEN_PID": "1"})
    refused("-d leaves the sockets behind", status=2, mode="-d")


def main():
    check_life()
    check_watchdog()
    check_driver_that_is_not_there()
    check_what_is_refused()
    print("a service manager can rely on what it is told")


if __name__ == "__main__":
    main()
