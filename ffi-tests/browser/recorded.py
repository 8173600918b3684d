"""The history of recorded.c, and what `bfc report` makes of it."""

import json

import programs
from programs import LIB, PREFIX, ROOT

BFC = PREFIX / "bin/bfc"
# As in the program.
DEVICE = 300
HOSTILE = "<img src=x onerror=hacked=1>"


def run_program(folder, *arguments, **variables):
    program = programs.compiled(
        "browser-recorded",
        [ROOT / "ffi-tests/browser/recorded.c"],
        [f"-I{PREFIX}/include"],
        [f"-L{LIB}", "-lbfc", f"-Wl,-rpath,{LIB}"],
        language="c",
    )
    history = folder / "program.history"
    said = programs.run(program, *arguments, env=programs.environment(BFC_HISTORY_FILE=history, **variables))
    lines = [line.split() for line in said.splitlines()]
    marks = {name: (int(requested), int(held)) for name, requested, _, held in lines}
    in_use = {name: int(used) for name, _, used, _ in lines}
    return history, marks, in_use


def reported(history, *, to=None):
    if to is None:
        return json.loads(programs.run(BFC, "report", "--json", history))
    assert programs.run(BFC, "report", history, "-o", to) == ""
    return to
