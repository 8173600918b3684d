"""`bfc top`: its figures are those of bfc_stats in the process, whatever becomes of that process."""

import json
import os
import re
import signal
import subprocess
import time

from conftest import eventually

MIB = 1 << 20


def pool_of(processes, writer):
    """The pool of a process once its statistics are those that bfc_stats has returned."""

    def ask():
        (pool,) = processes()[writer.pid]["pools"]
        return pool if pool["stats"] == writer.stats else None

    return eventually("the statistics are published", ask)


def test_the_figures_are_those_of_bfc_stats(start, top, processes):
    writer = start("weights")
    writer.do(f"alloc 3 {MIB}")
    writer.do("alloc 100 5000 forward")
    writer.do("free 40")
    pool = pool_of(processes, writer)
    stats = pool["stats"]
    assert (pool["name"], pool["backend"], pool["device"], pool["failed"]) == ("weights", "host", 256, False)
    assert pool["overhead"] == stats["pool_bytes"] / stats["bytes_requested"]
    free = stats["pool_bytes"] - stats["bytes_in_use"]
    assert abs(pool["fragmentation"] - (1 - stats["largest_free_block_bytes"] / free)) < 1e-9

    def holders():
        (pool,) = processes()[writer.pid]["pools"]
        found = [(holder["operation"], holder["bytes"], holder["chunks"], holder["last_step"]) for holder in pool["holders"]]
        return found if found == [(None, 3 * MIB, 3, 0), ("forward", 60 * 5120, 60, 7)] else None

    eventually("the holders are summed up", holders)
    text = top("--once")
    line = next(line for line in text.splitlines() if line.split()[0] == str(writer.pid))
    assert line.split()[2:7] == ["256", "weights", "3.29M", "3.29M", "4.00M"] and f"process {writer.pid}, device 256:" in text
    assert line.split()[-1] == "0"
    # Without a terminal it is the same.
    assert top().splitlines()[0] == text.splitlines()[0]
    writer.end()
    assert "no process publishes" in top("--once")


def test_rates_are_those_of_the_program(start, processes):
    writer = start()
    writer.tell("churn 300000")
    rates = eventually("the program allocates", lambda: processes()[writer.pid]["pools"][0]["allocs_per_second"] or None)
    assert rates > 100
    writer.hear()
    pool_of(processes, writer)
    # Twice, as the first reading may be of before.
    assert eventually("it is idle", lambda: processes()[writer.pid]["pools"][0]["allocs_per_second"] == 0 or None)


def test_the_metrics_are_those_of_the_library(start, top, processes):
    writer = start('a "name"\\')
    writer.do("alloc 7 12345")
    pool_of(processes, writer)
    text = top("--openmetrics")
    labels = re.compile(rf'pid="{writer.pid}",program="[^"]*",')
    assert len(labels.findall(text)) == 17
    assert labels.sub("", text) == writer.metrics
    writer.end()
    assert "bfc_allocations_total" not in top("--openmetrics")


def test_a_killed_process_leaves_its_last_state(start, top, processes, folder):
    writer = start()
    writer.do("alloc 5 1000000 layer")
    pool_of(processes, writer)
    writer.process.kill()
    writer.process.wait()
    process = processes()[writer.pid]
    assert process["state"] == "ended" and process["pools"][0]["stats"] == writer.stats
    assert process["pools"][0]["allocs_per_second"] is None
    assert "the process has ended; last statistics" in top("--once")
    assert "bfc_allocations_total" not in top("--openmetrics")
    assert [path.name for path in folder.iterdir()] == [str(writer.pid)]


def test_a_process_that_is_stopped_or_replaced_stalls(start, processes):
    stopped, replaced = start(), start()
    stopped.process.send_signal(signal.SIGSTOP)
    replaced.tell("exec 60")
    for writer in (stopped, replaced):
        eventually("it stalls", lambda: processes()[writer.pid]["state"] == "stalled" or None)
    stopped.process.send_signal(signal.SIGCONT)
    eventually("it goes on", lambda: processes()[stopped.pid]["state"] == "running" or None)


def test_a_hundred_processes(start, processes, top):
    writer = start()
    writer.do("fork 100")

    def ask():
        # A child also has the pool that it has inherited.
        pools = [pool for process in processes().values() for pool in process["pools"] if pool["device"] > 256]
        return pools if len(pools) == 100 else None

    pools = sorted(eventually("all of them publish", ask), key=lambda pool: pool["device"])
    assert [pool["stats"]["bytes_requested"] for pool in pools] == [1000 * (number + 1) for number in range(100)]
    assert [pool["name"] for pool in pools] == [f"child {number}" for number in range(100)]
    assert len(top("--once").splitlines()) == 1 + 1 + 200
    assert len(processes("--pid", str(writer.pid))) == 1


def test_pools_beyond_the_most_are_counted(start, processes):
    writer = start()
    writer.do("pools 40")

    def ask():
        process = processes()[writer.pid]
        return process if process["pools_left_out"] == 9 else None

    pools = eventually("32 of 41 pools are published", ask)["pools"]
    assert [pool["device"] for pool in pools] == list(range(256, 256 + 32))


def test_many_readers_see_whole_statistics(start, command, environment):
    writer = start()
    writer.tell("churn 2000000")
    readers = [
        subprocess.Popen([*command, "--json", "--interval", "0.05"], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(8)
    ]
    seen = set()
    for reader in readers:
        for _ in range(20):
            (process,) = json.loads(reader.stdout.readline())["processes"]
            stats = process["pools"][0]["stats"]
            assert stats["bytes_in_use"] == 4096 * (stats["num_allocs"] - stats["num_frees"])
            assert stats["bytes_requested"] == stats["bytes_in_use"]
            seen.add(stats["num_allocs"])
    assert len(seen) > 1
    for reader in readers:
        # The command ends once nothing reads it.
        reader.stdout.close()
        assert reader.wait(60) == 0


def test_a_process_that_publishes_nothing_is_an_error(top, processes):
    error = top("--once", "--pid", str(os.getpid()), status=1)
    assert error.startswith(f"bfc: process {os.getpid()} publishes no statistics") and "BFC_PUBLISH=1" in error
    assert processes() == {}


def test_it_looks_where_programs_publish(start, prefix, environment, tmp_path):
    writer = start()

    def processes(*arguments):
        command = [prefix / "bin/bfc", "top", "--json", *arguments]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return [process["process"] for process in json.loads(done.stdout)["processes"]]

    # There may be others on this machine.
    assert writer.pid in processes()
    assert processes("--folder", tmp_path / "nonexistent") == []


def test_damaged_files_are_noted_and_the_rest_is_shown(start, top, folder):
    writer = start()
    (folder / "1").write_bytes((folder / str(writer.pid)).read_bytes()[:5000])
    (folder / "no\x1b[2Jtes").write_text("something else")
    command_notes = json.loads(top("--json"))["unreadable"]
    assert sorted(note["reason"] for note in command_notes) == [
        "is damaged: it has 5000 bytes instead of 102400",
        "is not a file of published statistics",
    ]
    assert str(writer.pid) in top("--once")


def test_reading_costs_the_program_nothing_after_the_readers_have_gone(start, top, folder):
    writer = start()
    before = (folder / str(writer.pid)).stat()
    for _ in range(3):
        top("--once")
    time.sleep(0.3)
    after = (folder / str(writer.pid)).stat()
    assert (before.st_size, before.st_ino, before.st_mode) == (after.st_size, after.st_ino, after.st_mode)
    writer.end()
    assert list(folder.iterdir()) == []
