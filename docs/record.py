#!/usr/bin/env python3
"""Records a run of a program on a terminal as an SVG that plays it, for the pages.

    docs/record.py docs/src/images/demo.svg target/release/cake-master demo

The program runs on a terminal of its own; what is seen there is drawn line by line, for as long as each line stands. Pauses
are shortened and the whole is played in 20 seconds, whatever the machine, so that two recordings differ in little but
measured numbers. Needs nothing but Python, and a machine that does nothing else.
"""

import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from xml.sax.saxutils import escape

COLUMNS, ROWS = 100, 34
LENGTH, PAUSE, END = 17.0, 0.8, 3.0  # Seconds: of the play, of a pause, that the last picture stands.
LINE, CHARACTER = 17, 7.83  # Pixels.
NO_BREAK = "\u00a0"  # Of other spaces a picture shows one where there are several.
SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b.")


class Screen:
    """Just as much of a terminal as our programs use: lines, carriage returns, cursor up, erasing."""

    def __init__(self):
        self.lines, self.row, self.column = [""], 0, 0

    def feed(self, text):
        at = 0
        while at < len(text):
            found = SEQUENCE.match(text, at)
            if found:
                self.obey(found)
                at = found.end()
                continue
            self.put(text[at])
            at += 1

    def put(self, character):
        if character == "\n":
            self.row += 1
            if self.row == len(self.lines):
                self.lines.append("")
        elif character == "\r":
            self.column = 0
        elif character >= " ":
            if self.column >= COLUMNS:
                self.put("\n")
                self.column = 0
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1

    def obey(self, found):
        numbers, what = found.group(1), found.group(2)
        count = int(numbers) if numbers and numbers.isdigit() else 0
        if what == "A":
            self.row = max(0, self.row - max(1, count))
        elif what == "B":
            self.row = min(len(self.lines) - 1, self.row + max(1, count))
        elif what == "C":
            self.column += max(1, count)
        elif what == "D":
            self.column = max(0, self.column - max(1, count))
        elif what == "G":
            self.column = max(0, count - 1)
        elif what == "K":
            line = self.lines[self.row]
            self.lines[self.row] = "" if count == 2 else line[: self.column]
        elif what == "J":
            self.lines[self.row] = self.lines[self.row][: self.column]
            del self.lines[self.row + 1 :]

    def shown(self):
        """The last lines, as they are seen."""
        return [line.rstrip() for line in self.lines[-ROWS:]]


def recorded(command):
    """What is seen, with when it came: [(seconds, lines)]."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    screen, frames, began, rest = Screen(), [], time.monotonic(), b""
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # The other side is closed.
            break
        if not data:
            break
        data = rest + data
        text = data.decode("utf-8", "ignore")
        rest = data[len(text.encode()) :][:3]
        screen.feed(text)
        frames.append((time.monotonic() - began, screen.shown()))
    if process.wait() != 0:
        sys.exit("\n".join(screen.shown()) + f"\n{' '.join(command)} failed")
    return frames


def paced(frames):
    """The same with short pauses, in the time of the play."""
    now, last, paced = 0.3, 0.0, []
    for at, lines in frames:
        now += min(at - last, PAUSE)
        last = at
        paced.append((now, lines))
    scale = LENGTH / now
    return [(at * scale, lines) for at, lines in paced]


def stretches(frames, end):
    """Each line of text with its row, and from when until when it stands there."""
    standing, drawn = {}, []
    for at, lines in frames + [(end, None)]:
        for row in range(ROWS):
            text = lines[row] if lines is not None and row < len(lines) else ""
            known = standing.get(row)
            if known and (lines is None or known[0] != text):
                drawn.append((row, known[0], known[1], at))
                del standing[row]
                known = None
            if text and not known and lines is not None:
                standing[row] = (text, at)
    # What stands for less than a twentieth of a second nobody sees.
    return [one for one in drawn if one[3] - one[2] >= 0.05]


def drawn(command, frames):
    end = frames[-1][0] + END
    rows = max(len(lines) for _, lines in frames) + 1
    width, height = round(COLUMNS * CHARACTER) + 24, (rows + 1) * LINE + 12
    body = []
    for row, text, start, stop in sorted(stretches(frames, end)):
        y = (row + 2) * LINE + 8
        stop = "t.end" if stop >= end - 1e-6 else f"t.begin+{stop:.2f}s"
        body.append(
            f'<text x="12" y="{y}" visibility="hidden">{escape(text).replace(" ", NO_BREAK)}'
            f'<set attributeName="visibility" to="visible" begin="t.begin+{start:.2f}s" end="{stop}"/></text>'
        )
    typed = escape("$ " + " ".join([os.path.basename(command[0]), *command[1:]]))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"
  font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13" fill="#d8dee9">
<rect width="{width}" height="{height}" rx="8" fill="#20242c"><animate id="t" attributeName="rx" values="8;8" dur="{end:.2f}s" begin="0s;t.end"/></rect>
<text x="12" y="{LINE + 8}" fill="#8fbc8f">{typed}</text>
{chr(10).join(body)}
</svg>
"""


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out, command = sys.argv[1], sys.argv[2:]
    with open(out, "w", encoding="utf-8") as file:
        file.write(drawn(command, paced(recorded(command))))


if __name__ == "__main__":
    main()
