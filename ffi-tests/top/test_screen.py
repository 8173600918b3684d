"""The screen of `bfc top`, in a terminal."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import pyte
import pytest

from conftest import eventually

COLUMNS, LINES = 140, 40


class Screen:
    """`bfc top` in a terminal, which is drawn in memory."""

    def __init__(self, command, environment):
        self.terminal, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.before = termios.tcgetattr(inner)
        self.inner = inner
        self.screen = pyte.Screen(COLUMNS, LINES)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.process = subprocess.Popen(command, env=environment | {"TERM": "xterm"}, stdin=inner, stdout=inner, stderr=inner)

    def text(self):
        while select.select([self.terminal], [], [], 0.05)[0]:
            read = os.read(self.terminal, 1 << 16)
            self.raw += read
            self.stream.feed(read)
        return "\n".join(line.rstrip() for line in self.screen.display)

    def press(self, keys):
        os.write(self.terminal, keys)

    def resize(self, lines, columns):
        self.screen.resize(lines, columns)
        fcntl.ioctl(self.inner, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def shows(self, *words):
        def ask():
            text = self.text()
            return text if all(word in text for word in words) else None

        try:
            return eventually(f"it shows {words}", ask)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None

    def ended(self, status=0):
        # Its last words have to be read, or it waits.
        end = time.monotonic() + 30
        while self.process.poll() is None and time.monotonic() < end:
            self.text()
        self.text()
        assert self.process.returncode == status
        assert termios.tcgetattr(self.inner) == self.before, "the terminal is not as it was"
        assert self.raw.count(b"\x1b[?1049h") == self.raw.count(b"\x1b[?1049l") == 1
        assert self.raw.rindex(b"\x1b[?25h") > self.raw.index(b"\x1b[?1049h"), "the cursor is hidden"

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.terminal)
        os.close(self.inner)


@pytest.fixture
def screen(command, environment):
    opened = []

    def screen(*arguments):
        opened.append(Screen([*command, "--interval", "0.1", *arguments], environment))
        return opened[-1]

    yield screen
    for one in opened:
        one.close()


def test_it_shows_the_figures_follows_them_and_obeys_keys(start, screen):
    writer = start("weights")
    writer.do("alloc 3 1048576 attention")
    top = screen()
    text = top.shows(str(writer.pid), "weights", "3.00M", "attention", "in use 3.00M")
    assert "1 pool" in text and "sorted by in use" in text
    writer.do("alloc 2 1048576")
    top.shows("in use 5.00M", "(no operation)")
    assert "5.00M" in top.shows("allocations             5")

    other = start("second")
    other.do("alloc 1 9000000")
    top.shows("2 pools", f"process {other.pid} python")
    top.press(b"\x1b[B")
    top.shows(f"process {writer.pid} python")
    top.press(b"s")
    top.shows("sorted by held", f"process {writer.pid} python")
    top.press(b"p")
    top.shows("PAUSED")
    writer.do("free 5")
    time.sleep(0.6)
    assert "5.00M" in top.text()
    top.press(b"p")
    top.shows("0B")
    top.press(b"?")
    top.shows("Keys and columns")
    top.press(b"?")

    other.process.kill()
    other.process.wait()
    # What it had is in no sum.
    top.shows("the process has ended", "1 pool   in use 0B")
    top.resize(12, 70)
    top.shows("bfc top", "q quit")
    top.press(b"q")
    top.ended()


def test_hostile_names_reach_no_terminal(start, screen):
    # A terminal reacts to what is below 0x20, and to what is between 0x80 and 0xa0.
    writer = start("\x1b]0;owned\x07\u009b31m\u202eevil")
    writer.do("alloc 1 5000 \x1b[2Jscope\x07")
    top = screen()
    top.shows("]0;owned", "scope")
    top.press(b"q")
    top.ended()
    for bad in (b"\x1b]0;", b"\x07", "\u009b".encode(), "\u202e".encode()):
        assert bad not in top.raw


@pytest.mark.parametrize("how", ["interrupt", "terminate", "hang up", "nothing publishes"])
def test_the_terminal_is_left_as_it_was(start, screen, how):
    if how != "nothing publishes":
        start()
    top = screen()
    top.shows("bfc top", "q quit")
    if how == "interrupt":
        top.press(b"\x03")
    elif how == "nothing publishes":
        top.shows("no process publishes its statistics")
        top.press(b"q")
    else:
        top.process.send_signal(signal.SIGTERM if how == "terminate" else signal.SIGHUP)
    top.ended()
