"""`bfc top --openmetrics` as docs/metrics.md shows it: in a real Prometheus server, and in the node exporter's folder."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys

import programs
import server
from pages import Page

PAGE = Page("metrics")
BFC = programs.PREFIX / "bin/bfc"
PUBLISHER = """
import bfc, sys
pool = bfc.Pool("host", limit=2**64 - 1, name='a "name"')
kept = pool.alloc("10MiB")
print(flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def publisher(environment):
    """A program without code for metrics; its process id."""
    command = [sys.executable, "-c", PUBLISHER]
    with subprocess.Popen(command, env=environment | {"BFC_PUBLISH": "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"\n"
        # A thread of its own publishes, a moment later.
        read = [BFC, "top", "--openmetrics", "--folder", published(environment)]
        sample = f'bfc_in_use_bytes{{pid="{process.pid}",'
        server.eventually(lambda: sample in programs.run(*read, env=environment), "it has published")
        yield process.pid
        process.stdin.close()
        assert process.wait(server.SECONDS) == 0


def variables(folder):
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    return {name: value for name, value in os.environ.items() if not name.startswith("BFC_P")} | {"XDG_RUNTIME_DIR": str(runtime)}


def published(environment):
    """Where the programs of a test publish: others on this machine may publish elsewhere."""
    return f"{environment['XDG_RUNTIME_DIR']}/libbfc"


def test_prometheus_scrapes_bfc_top(tmp_path):
    environment = variables(tmp_path)
    program, *options = PAGE.text("sh-1").split()
    assert (program, options[-1]) == ("bfc", "9465")
    command = [BFC, *options[:-1], "0", "--folder", published(environment)]
    with publisher(environment) as pid, subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as top:
        try:
            said = top.stderr.readline()
            address = re.fullmatch(r"bfc: metrics at http://(127\.0\.0\.1:\d+)/metrics\n", said)[1]
            config = PAGE.text("yaml-2").replace("127.0.0.1:9465", address).replace("15s", "200ms")
            with server.running(tmp_path, config) as prometheus:
                found = server.eventually(lambda: prometheus.query("bfc_in_use_bytes"), "a sample")
                assert [value for _, value in found] == [str(10 << 20)]
                labels = {"pid": str(pid), "device": "256", "name": 'a "name"', "backend": "host", "job": "bfc-top", "instance": address}
                assert labels.items() <= found[0][0].items()
                assert [value for _, value in prometheus.query("bfc_limit_bytes")] == ["+Inf"]
                assert [value for _, value in prometheus.query("up")] == ["1"]
        finally:
            top.terminate()
    PAGE.ran("sh-1")
    PAGE.ran("yaml-2")


def test_a_file_for_the_node_exporter_is_there_as_a_whole(tmp_path):
    environment = variables(tmp_path)
    program, *options, shown = PAGE.text("sh-2").split()
    assert (program, options[-3:]) == ("bfc", ["--interval", "15", "--output"])
    once, often = options[:-3], [*options[:-2], "0.1"]
    folder = tmp_path / "textfile"
    folder.mkdir()
    file = folder / "libbfc.prom"
    file.write_text("old")
    before = file.stat().st_ino
    with publisher(environment) as pid:
        umask = os.umask(0o022)
        try:
            programs.run(BFC, *once, "--folder", published(environment), "--output", file, env=environment)
        finally:
            os.umask(umask)
        text = file.read_text()
        assert f'bfc_in_use_bytes{{pid="{pid}",' in text and text.endswith("# EOF\n")
        # It is another file, which others may read, and nothing else is left.
        assert file.stat().st_ino != before and file.stat().st_mode & 0o044 == 0o044
        assert [path.name for path in folder.iterdir()] == ["libbfc.prom"]
        command = [BFC, *often, "--folder", published(environment), "--output", file]
        with subprocess.Popen(command, env=environment) as top:
            try:
                for _ in range(2):
                    before = file.stat().st_ino
                    server.eventually(lambda: file.stat().st_ino != before, "it is written again")
                    assert file.read_text().endswith("# EOF\n")
            finally:
                top.terminate()
    error = programs.run(BFC, *once, "--output", tmp_path / "missing/file", env=environment, status=1)
    assert f"cannot write {tmp_path}/missing/file: " in error
    assert pathlib.Path(shown).name == file.name
    PAGE.ran("sh-2")
