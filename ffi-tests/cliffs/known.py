"""benches/cliffs/known.txt: programs with the cost of their worst call of a kind, one a line."""

from typing import NamedTuple

from calls import Program
from programs import ROOT

FILE = ROOT / "benches/cliffs/known.txt"
# Chunks at which the figures of the file are measured.
SCALE = 10_000


def bound(scale):
    """A kind of call may take one instruction for each chunk, and 10,000 in a small pool."""
    return max(scale, SCALE)


# Instructions of a call at most, on average over a program whose requests ask for no alignment.
MEAN = 6000


class Row(NamedTuple):
    instructions: int
    kind: str
    program: Program
    why: str

    @classmethod
    def parse(cls, line):
        instructions, kind, program, why = (column.strip() for column in line.split("|", 3))
        return cls(int(instructions), kind, Program.parse(program), why)

    def __str__(self):
        return " | ".join(map(str, self))


def has_alignment(program):
    """Whether a request asks for one. Then there may be many candidates to try and to refuse, again and again."""
    return any(step.values.get("align") for step in program.steps)


def parsed(text):
    """The comments at the top, and the rows."""
    lines = text.splitlines()
    rows = [line for line in lines if line and not line.startswith("#")]
    return lines[: lines.index(rows[0])] if rows else lines, [Row.parse(row) for row in rows]


def read():
    return parsed(FILE.read_text())[1]


def text(head, rows):
    return "".join(f"{line}\n" for line in [*head, *map(str, rows)])


def write(rows):
    FILE.write_text(text(parsed(FILE.read_text())[0], rows))


def most(rows, kind):
    """The largest figure of a kind of call; 0 if it has no row."""
    return max((row.instructions for row in rows if row.kind == kind), default=0)
