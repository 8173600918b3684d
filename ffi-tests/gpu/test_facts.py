"""Facts of pack/probes whose answers on the simulated driver are known. test_pack.py runs all of them."""

import json
import sys

import programs
from programs import ROOT, SIMULATION

PROBE = ROOT / "ffi-tests/gpu/pack/probes/probe.py"
MIB = 1 << 20


def observed(name):
    env = programs.environment(LD_LIBRARY_PATH=SIMULATION, SIMCUDA_DEVICES="1")
    said = programs.run(sys.executable, PROBE, "facts", name, env=env)
    return json.loads(said.splitlines()[-1])["observed"]


def test_alignment_and_granularity():
    found = observed("alignment")
    assert [found[size]["alignment"] for size in ["1", "512", str(MIB), str(64 * MIB)]] == [512, 512, 1 << 16, 1 << 16]
    assert all(each["bytes taken by each"] >= int(size) for size, each in found.items()), found
    sizes = observed("granularity")["cuMemGetAllocationGranularity"]
    assert sizes["plain"] == {"minimum": 2 * MIB, "recommended": 2 * MIB, "cuMemCreate of 2 MiB": "SUCCESS"}
    assert sizes["fabric"]["minimum"] == "INVALID_VALUE"


def test_calls_during_a_capture():
    found = observed("captures")
    assert found["cuEventRecord on another stream"] == "SUCCESS, ACTIVE, SUCCESS"
    refused = "STREAM_CAPTURE_UNSUPPORTED, INVALIDATED, STREAM_CAPTURE_INVALIDATED"
    assert found["cuStreamGetCtx_v2 of another stream"][refused] == ["global", "global, other thread", "thread-local"]


def test_waits():
    for times in list(observed("free-waits").values())[1:]:
        assert not any(time.get("kernel still running") for time in times.values()), times
    times = observed("unmap-waits")
    assert all(time["kernel still running"] for time in times["kernel that uses no memory"].values()), times
    found = observed("granules-move")
    assert found["moves that ended while the kernels on granule 0 ran"] > 0
    assert found["wrong words in granule 0"] == found["wrong words in the moved granule"] == 0


def test_what_a_reset_leaves():
    found = observed("reset-survivors")
    assert found["before a new retain"]["primary context"] == "inactive"
    assert found["handle after a new retain"] == "the same" and found["id after a new retain"] == "another"
    assert found["cuMemCreate memory, mapped"]["cuMemcpyDtoH_v2"] == "SUCCESS, contents kept"
    assert set(observed("reset-stale-handles").values()) == {"INVALID_HANDLE"}
