# SPDX-License-Identifier: Apache-2.0
"""One run of one program: in a folder of its own where it needs one, as a process group, with limits, and what came of it."""
import collections
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time

WORDS = re.compile(r"\b(pass(ed)?|fail(ed|ures?|s)?|success(ful(ly)?)?|waiv(ed|ing)|errors?|(in)?correct|mismatch(es)?|(in)?valid|ok)\b",
                   re.IGNORECASE)
SAYS_FAILED = re.compile(r"\bFAIL(ED|URE)?\b|\b[Tt]est [Ff]ailed\b")
NUMBER = re.compile(r"((?<![\w.])[-+])?(0x[0-9a-fA-F]+|\d+(\.\d*)?([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?)")
OURS = re.compile(r"mpsshim\[\d+\]: ")
MISSING = re.compile(r"error while loading shared libraries: ([^:\s]+):")
LARGEST_OUTPUT = 16 << 20
LARGEST_COPY = 16 << 20
TAIL_LINES = 15


class Stopped(Exception):
    """The run was not begun, or not finished, because Runner.stop() came."""


def verdict_lines(text, patterns=(), folder=None):
    """The lines of a text that say how a program fared, without what no two runs share: numbers, and the folder it ran in.

    What the client library says on standard error is not the program's. Each is counted: {line: how often}. The order is left out,
    since threads and child processes take turns.
    """
    own = [re.compile(pattern) for pattern in patterns]
    lines = collections.Counter()
    for line in re.split(r"[\r\n]+", text.replace(str(folder), ".") if folder else text):
        if OURS.match(line):
            continue
        if any(pattern.search(line) for pattern in own):
            lines[" ".join(line.split())] += 1
        elif WORDS.search(line):
            lines[" ".join(NUMBER.sub("#", line).split())] += 1
    return dict(lines)


def outcome_of(status, text, program, limit_s, cut):
    """(kind, words): passed, waived, failed, crashed, late or lacking, and the same for people."""
    if cut:
        return "failed", f"printed more than {LARGEST_OUTPUT >> 20} MiB"
    if status is None:
        return "late", f"ran past {limit_s:g} s"
    missing = MISSING.search(text)
    if status == 127 and missing:
        return "lacking", f"lacks {missing[1]}"
    if status < 0:
        try:
            return "crashed", signal.Signals(-status).name
        except ValueError:
            return "crashed", f"signal {-status}"
    if status == program.waived_status:
        return "waived", "waived"
    if status:
        return "failed", f"exit status {status}"
    if any(SAYS_FAILED.search(line) for line in text.splitlines()):
        return "failed", "exit status 0, but says FAILED"
    return "passed", "passed"


def _fill(folder, sources):
    """Folders and programs are linked, files copied: what a run writes is its own. The first source that has a name provides it."""
    for source in sources:
        for path in sorted(source.iterdir()):
            target = folder / path.name
            if target.exists() or path.name == "CMakeFiles" or path.suffix == ".o":
                continue
            if path.is_file() and not os.access(path, os.X_OK) and path.stat().st_size <= LARGEST_COPY:
                shutil.copy(path, target)
            else:
                target.symlink_to(path)


class Group:
    """A program as the leader of a process group, which ends as a whole: with its leader, at its limit, or when we are interrupted."""

    def __init__(self, program, environment, folder, output):
        self.output = output
        self.process = subprocess.Popen(program.command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                        stderr=subprocess.STDOUT, start_new_session=True)
        self.pidfd = os.pidfd_open(self.process.pid)

    def kill(self):
        # The leader is not waited for before this, so its number is nobody else's.
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def wait(self, limit_s):
        """(exit status or None at the limit, whether too much was printed)."""
        poll, deadline, cut, ended = select.poll(), time.monotonic() + limit_s, False, False
        poll.register(self.pidfd, select.POLLIN)
        while not ended and not cut and (left_s := deadline - time.monotonic()) > 0:
            ended = bool(poll.poll(min(left_s, 0.5) * 1000))
            cut = os.fstat(self.output.fileno()).st_size > LARGEST_OUTPUT
        self.kill()
        os.close(self.pidfd)
        status = self.process.wait()
        return (status if ended else None), cut


class Runner:
    """Runs programs, several at a time if asked from several threads; stop() ends those under way, and no further one starts."""

    def __init__(self, timeout_s):
        self.timeout_s = timeout_s
        self._groups, self._lock, self.stopped = set(), threading.Lock(), False

    def stop(self):
        with self._lock:
            self.stopped = True
            for group in self._groups:
                group.kill()

    def _started(self, program, environment, folder, output):
        with self._lock:
            if self.stopped:
                raise Stopped
            group = Group(program, environment, folder, output)
            self._groups.add(group)
            return group

    def run(self, program, environment, output_path):
        """The record of one run. Raises Stopped where stop() came first or meanwhile."""
        limit_s = program.timeout_s or self.timeout_s
        environment = dict(environment, **dict(program.environment))
        folder, private = program.folder, None
        started = time.monotonic()
        try:
            if program.copied:
                folder = private = pathlib.Path(tempfile.mkdtemp(prefix="mpsshim-sample-"))
                _fill(private, program.copied)
            started = time.monotonic()
            status, cut, failure = self._wait(program, environment, folder, output_path, limit_s)
        finally:
            seconds = time.monotonic() - started
            if private:
                shutil.rmtree(private, ignore_errors=True)
        text = "" if cut else output_path.read_text("utf-8", errors="replace")
        kind, words = ("failed", failure) if failure else outcome_of(status, text, program, limit_s, cut)
        return {"outcome": kind, "words": words, "status": status, "seconds": round(seconds, 3), "output": output_path.name,
                "verdicts": verdict_lines(text, program.verdicts, folder if private else None), "tail": text.splitlines()[-TAIL_LINES:]}

    def _wait(self, program, environment, folder, output_path, limit_s):
        with open(output_path, "wb") as output:
            try:
                group = self._started(program, environment, folder, output)
            except OSError as error:
                return None, False, f"cannot be started: {error.strerror}"
            status, cut = group.wait(limit_s)
        with self._lock:
            self._groups.discard(group)
            if self.stopped:
                raise Stopped
        return status, cut, ""
