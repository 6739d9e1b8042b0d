#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_top.py MPSCTL PIPE_DIRECTORY PID_AT_WORK PID_AT_REST [--without-screen]
mpsctl top, as text and on a terminal of its own (pty), whose screen is drawn here as a terminal would. The broker is told to quit at the end.
"""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

MPSCTL, PIPES, AT_WORK, AT_REST = sys.argv[1:5]
LIMIT_S = 20
STARTED = []  # none is to be left


def command(*words):
    return [MPSCTL, "--pipe-dir", PIPES, "top", *words]


def share(line):
    """-1: the line is not all there, or says that nothing is known."""
    words = line.split()
    return float(words[9]) if len(words) > 13 and words[9] != "-" else -1


class Terminal:
    """A VT100 as far as ncurses makes use of one, with mpsctl on it."""

    def __init__(self, *words, kind="vt100", size=(24, 120), controls=True):
        self.size, self.raw, self.row, self.column, self.ended = size, b"", 0, 0, None
        self.is_settled = True
        self.cells = [[" "] * size[1] for _ in range(size[0])]
        ours, theirs = pty.openpty()
        self.fd = ours
        self.resize(*size, tells=False)
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs  # held, or what it is set to would be lost with the last who has it

        def begin():
            os.setsid()
            if controls:
                fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

        environment = dict(os.environ, TERM=kind, LC_ALL="C.UTF-8")
        for name in ("LINES", "COLUMNS", "LD_PRELOAD"):
            environment.pop(name, None)
        self.program = subprocess.Popen(command(*words), stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=begin, env=environment)
        STARTED.append(self.program)

    def resize(self, rows, columns, tells=True):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.size = (rows, columns)
        if tells:
            self.cells = [[" "] * columns for _ in range(rows)]
            self.row, self.column, self.is_settled = 0, 0, False

    def read(self, limit_s=0.1):
        if select.select([self.fd], [], [], limit_s)[0]:
            self.raw += os.read(self.fd, 65536)
            self.draw()

    def draw(self):
        rows, columns = self.size
        text = self.raw.decode("utf-8", "surrogateescape")
        at = 0
        while at < len(text):
            match = re.compile(r"\x1b\[([?>]?[\d;]*)([A-Za-z@`])|\x1b[()][A-Z0-2]|\x1b[=>78M]").match(text, at)
            if match:
                self.obey(match[1] or "", match[2])
                at = match.end()
                continue
            c = text[at]
            if c == "\x1b":
                break  # the rest of it is still to come
            at += 1
            if c == "\r":
                self.column = 0
            elif c == "\n":
                self.row = min(self.row + 1, rows - 1)
            elif c == "\b":
                self.column = max(self.column - 1, 0)
            elif c >= " ":
                self.cells[self.row][self.column] = c
                self.column = min(self.column + 1, columns - 1)
        self.raw = text[at:].encode("utf-8", "surrogateescape")

    def obey(self, numbers, final):
        rows, columns = self.size
        values = [int(value) if value.isdigit() else 0 for value in numbers.split(";")]
        first = max(values[0], 1)
        if final == "H":
            second = max(values[1], 1) if len(values) > 1 else 1
            # What was on its way while the size changed is of the other one, until all is drawn anew.
            assert not self.is_settled or (first <= rows and second <= columns), f"goes beside the screen: {first}, {second}"
            self.row, self.column = min(first, rows) - 1, min(second, columns) - 1
        elif final == "J":
            if values[0] == 0:
                self.is_settled = self.is_settled or (self.row, self.column) == (0, 0)
                self.erase_line()
                for row in range(self.row + 1, rows):
                    self.cells[row] = [" "] * columns
            else:
                self.cells = [[" "] * columns for _ in range(rows)]
        elif final == "K":
            if values[0] == 1:
                self.cells[self.row][: self.column + 1] = [" "] * (self.column + 1)
            else:
                self.erase_line()
        elif final == "A":
            self.row = max(self.row - first, 0)
        elif final == "B":
            self.row = min(self.row + first, rows - 1)
        elif final == "C":
            self.column = min(self.column + first, columns - 1)
        elif final == "D":
            self.column = max(self.column - first, 0)

    def erase_line(self):
        self.cells[self.row][self.column:] = [" "] * (self.size[1] - self.column)

    def lines(self):
        return ["".join(row).rstrip() for row in self.cells]

    def await_screen(self, what, shows):
        end = time.monotonic() + LIMIT_S
        while not shows(self.lines()):
            assert time.monotonic() < end and self.program.poll() is None, f"{what}: {self.lines()}"
            self.read()

    def type(self, text):
        os.write(self.fd, text.encode())

    def hang_up(self):
        os.close(self.theirs)
        os.close(self.fd)
        return self.program.wait(LIMIT_S)

    def await_end(self):
        end = time.monotonic() + LIMIT_S
        while self.program.poll() is None:
            assert time.monotonic() < end, f"it does not end: {self.lines()}"
            self.read()
        self.read(0)
        assert termios.tcgetattr(self.theirs) == self.before, "the terminal is not as it was"
        os.close(self.theirs)
        os.close(self.fd)
        return self.program.returncode


def pages(text):
    return text.split("\n\n")


def check_text():
    done = subprocess.run(command("-b", "-n", "3", "--interval", "0.4"), capture_output=True, text=True, timeout=LIMIT_S, check=True)
    found = pages(done.stdout)
    assert len(found) == 3 and not done.stderr, done
    for page in found:
        title, headings, *clients = page.strip("\n").split("\n")
        assert re.match(r"mpsshim \d\d:\d\d:\d\d  2 clients  ", title), title
        assert headings.split() == ["PID", "USER", "SERVER", "DEV", "STATE", "AGE", "SM%", "PRIO", "MEMORY", "GPU%", "LAUNCH/S", "WAIT%", "WAIT/S", "IN-FLIGHT", "GPU-TIME", "COMMAND"]
        shown = [line.split()[0] for line in clients]
        # The first page is of all the time since they began, and they are young.
        assert sorted(shown) == sorted([AT_WORK, AT_REST]) and (page is found[0] or shown == [AT_WORK, AT_REST]), clients
    last = found[-1].strip("\n").split("\n")
    assert share(last[2]) > 90 and 0 <= share(last[3]) < 5, last
    by_pid = subprocess.run(command("--batch", "-n", "1", "--sort", "pid"), capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    assert [int(line.split()[0]) for line in by_pid.strip("\n").split("\n")[2:]] == sorted([int(AT_WORK), int(AT_REST)]), by_pid
    wrong = subprocess.run(command("-b", "-n", "1", "-p", "1"), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert wrong.returncode == 1 and wrong.stderr.startswith("mpsctl: there is no server with pid 1"), wrong
    mistake = subprocess.run(command("--sort", "colour"), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert mistake.returncode == 1 and "nothing to sort by" in mistake.stderr and mistake.stderr.count("\n") == 1, mistake
    for words, environment in ((command(), None), (command("-n", "1"), {"TERM": "dumb"})):
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, timeout=LIMIT_S, check=False)
        assert done.returncode == 1 and done.stderr.startswith("mpsctl: top needs a terminal") and done.stderr.count("\n") == 1, done
    full = subprocess.run(command("-b", "-n", "1"), stdout=open("/dev/full", "w"), stderr=subprocess.PIPE, timeout=LIMIT_S, check=False)
    assert full.returncode == 1, full


def shows_clients(lines):
    return lines[0].startswith("mpsshim ") and [line.split()[:1] for line in lines[1:4]] == [["PID"], [AT_WORK], [AT_REST]]


def check_screen():
    terminal = Terminal("--interval", "0.3")
    terminal.await_screen("two clients", shows_clients)
    terminal.await_screen("work", lambda lines: share(lines[2]) > 90 and 0 <= share(lines[3]) < 5)
    assert "  by gpu  " in terminal.lines()[0]
    terminal.type("m")
    terminal.await_screen("a key", lambda lines: "  by memory  " in lines[0])
    terminal.type("xg\x1b[A")
    terminal.await_screen("another key", lambda lines: "  by gpu  " in lines[0] and shows_clients(lines))
    for rows, columns in ((10, 40), (3, 20), (1, 1), (50, 200)):
        terminal.resize(rows, columns)
        # On a small one nothing is beside it (obey), and it goes on.
        terminal.await_screen(f"{rows} x {columns}", lambda lines: terminal.is_settled and (any(lines) or terminal.size == (1, 1)))
        for _ in range(8):
            terminal.read()
    terminal.await_screen("the whole screen again", shows_clients)
    terminal.type("q")
    assert terminal.await_end() == 0

    for number, typed in ((signal.SIGINT, "\x03"), (signal.SIGTERM, None), (signal.SIGHUP, None)):
        terminal = Terminal("--interval", "100")
        terminal.await_screen("two clients", shows_clients)
        if typed:
            terminal.type(typed)
        else:
            terminal.program.send_signal(number)
        assert terminal.await_end() == -number, number

    # The terminal goes away: told by a signal to whom it belongs, else seen.
    for controls, ends in ((True, -signal.SIGHUP), (False, 1)):
        terminal = Terminal("--interval", "100", controls=controls)
        terminal.await_screen("two clients", shows_clients)
        assert terminal.hang_up() == ends, controls

    terminal = Terminal("-n", "2", "--interval", "0.2", kind="xterm")
    assert terminal.await_end() == 0
    terminal = Terminal("-n", "1", kind="no-such-terminal")
    assert terminal.await_end() == 1


def check_lost_broker(has_screen):
    terminal = Terminal("--interval", "0.3") if has_screen else None
    if terminal:
        terminal.await_screen("two clients", shows_clients)
    text = subprocess.Popen(command("-b", "--interval", "0.3"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    STARTED.append(text)
    assert text.stdout.readline().startswith("mpsshim ")
    subprocess.run([MPSCTL, "--pipe-dir", PIPES, "quit", "--now"], check=True, timeout=LIMIT_S)
    _, told = text.communicate(timeout=LIMIT_S)
    assert text.returncode == 2 and told.startswith("mpsctl: no broker serves ") and told.count("\n") == 1, (text.returncode, told)
    if terminal:
        terminal.await_screen("no broker", lambda lines: lines[0].startswith("mpsctl: no broker serves "))
        terminal.type("q")
        assert terminal.await_end() == 0


def main():
    has_screen = sys.argv[5:] != ["--without-screen"]
    check_text()
    if has_screen:
        check_screen()
    check_lost_broker(has_screen)
    print("top shows what it is to show")


if __name__ == "__main__":
    try:
        main()
    finally:
        for program in STARTED:
            program.kill()
