"""What docs/metrics.md says, without a Prometheus server."""

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

import bfc
import bfc.prometheus
import debian
import prometheus_client
import programs
import server
from pages import Page

PAGE = Page("metrics")


def test_the_list_is_that_of_the_library():
    rows = re.findall(r"^\| `(bfc_\w+)` \| (\w+) \| [^|]*\| (.+) \|$", (programs.ROOT / PAGE.path).read_text(), re.MULTILINE)
    text = bfc.metrics()
    found = re.findall(r"^# TYPE (\w+) (\w+)\n(?:# UNIT .*\n)?# HELP \w+ (.*)$", text, re.MULTILINE)
    assert found == [(name.removesuffix("_total"), kind, help) for name, kind, help in rows]
    assert len(found) == text.count("# HELP ") == 18


def test_the_program_in_c_writes_a_file_for_the_node_exporter(tmp_path):
    """Its collector reads the older format, so that only the values are the same."""
    exporter = debian.executable("prometheus-node-exporter", "prometheus-node-exporter")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", programs.PREFIX / "include"]
    libraries = ["-L", programs.LIB, "-lbfc", f"-Wl,-rpath,{programs.LIB}"]
    built = programs.compiled("metrics-page", [PAGE.file("c-1")], flags, libraries, language="c")
    subprocess.run([built], cwd=tmp_path, check=True, env=programs.environment())
    assert [file.name for file in tmp_path.iterdir()] == ["libbfc.prom"]
    text = (tmp_path / "libbfc.prom").read_text()
    assert text.endswith("# EOF\n")

    command = [exporter, "--collector.disable-defaults", "--collector.textfile", f"--collector.textfile.directory={tmp_path}"]
    log = tmp_path / "log"
    with (
        log.open("w") as out,
        subprocess.Popen([*command, "--web.listen-address=127.0.0.1:0"], stdin=subprocess.DEVNULL, stdout=out, stderr=out) as process,
    ):
        try:
            address = lambda: re.search(r'msg="Listening on" address=(\S+)', log.read_text())
            read = server.get(f"http://{server.eventually(address, 'the address in the log')[1]}/metrics")
        finally:
            process.terminate()
    assert "node_textfile_scrape_error 0" in read.splitlines()
    samples = lambda lines: {name: float(value) for name, value in re.findall(r"^(bfc_\w+)(?:{.*})? (\S+)$", lines, re.MULTILINE)}
    assert samples(read) == samples(text) and len(samples(text)) == 18
    assert "# TYPE bfc_allocations_total untyped" in read and "# TYPE bfc_held_bytes gauge" in read
    assert "Successful allocations" not in read and "Bytes held from the backend" in read
    PAGE.ran("c-1")


@pytest.fixture
def exporter():
    registry = prometheus_client.CollectorRegistry(auto_describe=True)
    registry.register(bfc.prometheus.Collector())
    running, thread = prometheus_client.start_http_server(0, addr="127.0.0.1", registry=registry)
    yield f"http://127.0.0.1:{running.server_port}/metrics"
    running.shutdown()
    thread.join()
    running.server_close()


def test_a_collector_is_registered_before_an_allocator_exists(exporter):
    assert "bfc_poisoned_allocators 0.0" in server.get(exporter)
    assert "bfc_held_bytes{" not in server.get(exporter)
    with bfc.Pool(301, backend="host", limit="1MiB", name="late"):
        # A scrape of single metrics finds them by the names of the time of registration.
        assert 'bfc_limit_bytes{backend="host",device="301",name="late"} 1.048576e+06' in server.get(f"{exporter}?name[]=bfc_limit_bytes")
    assert "bfc_held_bytes{" not in server.get(exporter)


def test_a_failure_is_the_status_500(exporter, monkeypatch):
    def failing():
        raise bfc.Error("out of host memory", bfc.Status.OUT_OF_MEMORY)

    monkeypatch.setattr(bfc.prometheus, "metrics", failing)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(exporter, timeout=server.SECONDS)
    assert caught.value.code == 500


def test_the_multiprocess_mode_does_not_read_the_collector(tmp_path):
    """Its collector reads files, and a registry with both would have the metrics of one process only."""
    script = """
import prometheus_client, prometheus_client.multiprocess, bfc.prometheus
prometheus_client.REGISTRY.register(bfc.prometheus.Collector())
prometheus_client.Counter("own", "A counter of the program.").inc()
registry = prometheus_client.CollectorRegistry()
prometheus_client.multiprocess.MultiProcessCollector(registry)
print(prometheus_client.generate_latest(registry).decode())
"""
    variables = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    text = subprocess.run([sys.executable, "-c", script], env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert "own_total 1.0" in text and "bfc_" not in text
