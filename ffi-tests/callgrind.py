"""Instructions counted by callgrind. They do not depend on what else the machine does."""

import pathlib
import re
import tempfile

import programs


def run(command, options=(), **variables):
    """The output file of callgrind for a program, without the settings of the user."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "callgrind.out"
        # Another seed changes the lengths of hash chains.
        settings = {"SIMCUDA_DEVICES": None, "VALGRIND_OPTS": None, "BFC_HASH_SEED": 1}
        environment = programs.environment(**settings | variables)
        programs.run("valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={file}", *options, *command, env=environment)
        return file.read_text()


def own(text):
    """The instructions of libbfc.so alone, without those of the functions that it calls in other objects."""
    libbfc, is_own, is_call, total = None, False, False, 0
    for line in text.splitlines():
        if found := re.match(r"(c?)ob=(\(\d+\))(.*)", line):
            is_callee, number, name = found.groups()
            # A name is spelled out only where it comes first.
            libbfc = number if "/libbfc.so" in name else libbfc
            is_own = is_own if is_callee else number == libbfc
        elif line.startswith("calls="):
            # The next line is the cost of the call.
            is_call = True
        elif re.match(r"[\d+*-]", line):
            total += int(line.split()[1]) if is_own and not is_call else 0
            is_call = False
    assert total, "callgrind saw nothing of libbfc"
    return total


def total(text):
    """All instructions that were collected."""
    return int(re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)[1])


def mean(text, call):
    """The instructions of a function with all that it calls, per call; for an output that was collected in it only."""
    numbers = "|".join(re.findall(rf"^c?fn=\((\d+)\) {call}$", text, re.MULTILINE))
    calls = re.findall(rf"^cfn=\((?:{numbers})\).*\ncalls=(\d+)", text, re.MULTILINE)
    assert calls, f"callgrind saw no call of {call}"
    return total(text) / sum(map(int, calls))
