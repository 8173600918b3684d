"""The probes of pack/probes cover the simulated driver's rules that NVIDIA does not document. test_pack.py runs all of them on
the simulated driver, which has to do what they expect."""

import json
import pathlib
import re
import sys

import pytest

import programs
from programs import ROOT, SIMULATION

PROBES = pathlib.Path(__file__).parent / "pack/probes"
# Before the folder of the tests of PyTorch, which has another module of facts.
sys.path.insert(0, str(PROBES))

import probe
from driver import SIGNATURES
from registry import NOT_PROBED, RULES

probe.load()


def rows():
    """The rules of the simulated driver's README, with their bases."""
    section = (ROOT / "crates/simcuda/README.md").read_text().split("\n## Rules\n")[1].split("\n## ")[0]
    tables = re.findall(r"^\| rule \| basis \| source \|\n\|[-|]+\n((?:\|.*\n)+)", section, re.MULTILINE)
    lines = [line.strip("|").strip() for table in tables for line in table.splitlines()]
    return dict(line.split(" | ")[:2] for line in lines)


def matching(beginning):
    return [rule for rule in rows() if rule.startswith(beginning)]


def test_every_rule_that_is_believed_or_relied_on_is_probed():
    unsure = {rule for rule, basis in rows().items() if "believed" in basis or "relied on" in basis}
    assert len(unsure) > 30
    beginnings = [*(each.row for each in RULES.values()), *NOT_PROBED]
    missing = {rule for rule in unsure if not any(rule.startswith(beginning) for beginning in beginnings)}
    assert not missing


@pytest.mark.parametrize("beginning", sorted({each.row for each in RULES.values()} | NOT_PROBED.keys()))
def test_a_row_is_one_of_the_table(beginning):
    assert len(matching(beginning)) == 1


def test_no_row_is_both_probed_and_not():
    probed = {rule for each in RULES.values() for rule in matching(each.row)}
    assert not probed & {rule for beginning in NOT_PROBED for rule in matching(beginning)}


def letter_of(parameter):
    """The letter of driver.TYPES for a parameter of a function of cuda-sys."""
    kind = parameter.partition(": ")[2]
    known = {"c_uchar": "B", "CUipcMemHandle": "h", "c_int": "i", "CUdevice": "i", "CUresult": "i"}
    known |= dict.fromkeys(["usize", "c_ulonglong", "CUdeviceptr", "CUmemGenericAllocationHandle"], "u")
    handles = r"CU(context|devResourceDesc|event|function|graph|greenCtx|memoryPool|module|stream)"
    if kind.startswith("*") or re.fullmatch(handles, kind):
        return "p"
    # Enumerations are unsigned.
    return known.get(kind, "I")


def test_the_signatures_are_those_of_cuda_sys():
    files = [ROOT / "crates/cuda-sys/src/functions.rs", *ROOT.glob("crates/cuda-sys/src/functions/*.rs")]
    text = "".join(file.read_text() for file in files)
    declared = re.findall(r"fn (cu\w+) as \"\w+\" since [^(]*\(([^)]*)\)", text)
    parameters = {name: re.findall(r"\w+: [^,]+", arguments) for name, arguments in declared}
    found = {name: "".join(letter_of(" ".join(one.split())) for one in parameters[name]) for name in SIGNATURES}
    assert found == SIGNATURES and len(found) > 75


def test_the_list_needs_no_driver():
    listed = programs.run(sys.executable, PROBES / "probe.py", "--list", env=programs.environment(LD_LIBRARY_PATH=None))
    assert json.loads(listed)["rules"] == {name: each.row for name, each in RULES.items()}


# Options of the simulated driver that make it break a rule.
OTHER_DRIVERS = {
    "capture-stream-get-ctx-captured": "SIMCUDA_CAPTURED_STREAMS_HIDE",
    "reset-leaves-virtual-memory": "SIMCUDA_RESET_ENDS",
}


@pytest.mark.parametrize("name", OTHER_DRIVERS)
def test_another_driver_differs(name):
    env = programs.environment(LD_LIBRARY_PATH=SIMULATION, SIMCUDA_DEVICES="1", **{OTHER_DRIVERS[name]: "1"})
    result = json.loads(programs.run(sys.executable, PROBES / "probe.py", "rules", name, env=env).splitlines()[-1])
    assert result["observed"] != result["expected"]
