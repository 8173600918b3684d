"""What `bfc report --advice` says of a program that `bfc run` has started: options of `bfc run`, and what they do."""

import json

import pytest

from stage import BFC, INTERPOSER, LIB, compile, environment, run

LIMIT = "56MiB"


@pytest.fixture
def refusals():
    return compile("refusals", "refusals.c")


def recorded(program, history, *options):
    """Runs the program with options. Returns its history, and how many of its requests failed by its own count."""
    said = run(BFC, "run", "--preload", INTERPOSER, "--history", history, *options, "--", program, env=environment())
    return history, number_in(said)


def number_in(said):
    """The number that the program prints: beside it there is only the line that names `bfc report`."""
    [number] = [line for line in said.splitlines() if not line.startswith("libbfc: ")]
    return int(number)


def advised(history):
    document = json.loads(run(BFC, "report", "--library", LIB, "--advice", "--json", history, env=environment()))
    (pool,), (advice,) = document["pools"], document["advice"]["pools"]
    return pool, advice


def test_an_option_does_in_a_run_what_it_did_in_the_replay(refusals, tmp_path):
    history, failed = recorded(refusals, tmp_path / "history", "--limit", LIMIT)
    pool, advice = advised(history)
    assert (pool["failed"], advice["recorded"]["failed"], advice["is_reproduced"]) == (failed, failed, True) and failed > 100
    baseline, *changes = advice["changes"]
    assert baseline["failed"] == failed
    # Nothing else has an effect on such a pool.
    settings = {change["set"]["run"].split()[0]: change for change in changes}
    assert {"--backend", "--growth", "--free", "--limit"} == set(settings)
    assert not [change for change in changes if change["set"]["variable"] or change["set"]["option"] or change["error"]]
    for option, change in settings.items():
        limit = [] if option == "--limit" else ["--limit", LIMIT]
        again, now = recorded(refusals, tmp_path / f"history{option}", *limit, *change["set"]["run"].split())
        if option == "--limit":
            # It is the lowest that sufficed. The driver places regions elsewhere, so a run with it may need a little more.
            assert (change["out_of_memory"], change["failed"]) == ("none-in-replay", 0) and now < failed / 10
            continue
        assert (change["out_of_memory"], change["failed"]) == ("remains", now), option
        # The replay of that run repeats it too, also where cudaFree synchronized.
        _, advice = advised(again)
        assert (advice["is_reproduced"], advice["recorded"]["failed"]) == (True, now), option
        assert change["set"]["run"] not in [other["set"]["run"] for other in advice["changes"]], option


def test_the_advice_names_the_options_of_bfc_run(refusals, tmp_path):
    history, _ = recorded(refusals, tmp_path / "history", "--limit", LIMIT)
    text = run(BFC, "report", "--library", LIB, "--advice", history, env=environment())
    (row,) = [line for line in text.splitlines() if line.startswith("  a limit of ")]
    assert "  none in the replay  " in row and row.split("  ")[-1].startswith("--limit ")
    assert "BFC_" not in text.split("what would have helped")[1] and "avoided" not in text


def test_a_device_that_is_full_has_no_higher_limit(refusals, tmp_path):
    def advice_at(limit):
        command = [BFC, "run", "--preload", INTERPOSER, "--history", tmp_path / "history", "--limit", limit, "--", refusals]
        assert number_in(run(*command, env=environment(SIMCUDA_MEMORY=str(80 << 20)))) > 0
        _, advice = advised(tmp_path / "history")
        settings = [change["set"]["run"].split()[0] for change in advice["changes"][1:]]
        return settings, "; ".join(advice["notes"])

    settings, notes = advice_at("1GiB")
    assert "--backend" in settings and "--limit" not in settings and "the device had no more" in notes
    settings, notes = advice_at(LIMIT)
    assert "--limit" in settings and "a higher limit has an effect only on a device with that much memory" in notes
