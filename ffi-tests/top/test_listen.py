"""`bfc top --openmetrics --listen`: the server that Prometheus reads. The suite metrics has a real one."""

import contextlib
import http.client
import os
import re
import socket
import subprocess

import pytest

from conftest import EVER, eventually


class Listening:
    def __init__(self, process, said):
        self.process = process
        host, port = re.fullmatch(r"bfc: metrics at http://(.*):(\d+)/metrics\n", said).groups()
        self.address = (host, int(port))

    def ask(self, path="/metrics", method="GET"):
        connection = http.client.HTTPConnection(*self.address, timeout=EVER)
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()

    def connect(self, text=b""):
        connection = socket.create_connection(self.address, timeout=EVER)
        connection.sendall(text)
        return connection

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))


@pytest.fixture
def listening(command, environment):
    with subprocess.Popen([*command, "--openmetrics", "--listen", "0"], env=environment, stderr=subprocess.PIPE, text=True) as process:
        yield Listening(process, process.stderr.readline())
        process.terminate()


def test_the_metrics_are_those_of_the_text(listening, start, top):
    assert listening.address[0] == "127.0.0.1"
    writer = start()
    writer.do("alloc 2 5000 layer")
    wanted = 'bfc_allocations_total{pid="%d"' % writer.pid
    eventually("it is published", lambda: re.search(re.escape(wanted) + ".* 2\n", top("--openmetrics")))
    status, headers, text = listening.ask()
    assert (status, text) == (200, top("--openmetrics"))
    assert headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert listening.ask("/metrics?name[]=a")[0] == 200


def test_all_else_is_refused(listening):
    assert listening.ask("/")[0] == listening.ask("/metrics/")[0] == 404
    status, headers, _ = listening.ask(method="POST")
    assert (status, headers["Allow"]) == (405, "GET")
    for request, status in [(b"GET /metrics\r\n\r\n", b"400"), (b"\x16\x03\x01\n\n", b"400"), (b"x" * 20_000, b"431")]:
        with listening.connect(request) as connection:
            connection.shutdown(socket.SHUT_WR)
            assert connection.makefile("rb").readline().startswith(b"HTTP/1.1 " + status), request[:20]
    assert listening.ask()[0] == 200


def test_a_client_that_says_nothing_holds_up_nobody_and_is_let_go(listening):
    with contextlib.ExitStack() as silent:
        connections = [silent.enter_context(listening.connect(b"GET /metr")) for _ in range(10)]
        assert listening.ask()[0] == 200
        # Beyond a number of them connections are closed at once.
        connections += [silent.enter_context(listening.connect()) for _ in range(40)]
        assert listening.threads() <= 17
        # Each is closed, without an answer.
        assert {connection.recv(1) for connection in connections} == {b""}
    eventually("its threads have ended", lambda: listening.threads() == 1 or None)
    assert listening.ask()[0] == 200


def test_an_address_that_cannot_be_had_is_an_error(listening, top):
    port = listening.address[1]
    error = top("--openmetrics", "--listen", str(port), status=1)
    assert error.startswith(f"bfc: cannot listen on 127.0.0.1:{port}: Address already in use") and "or 0 for any free one" in error
    assert "write PORT for 127.0.0.1" in top("--openmetrics", "--listen", ":9465", status=2)
    assert "--openmetrics" in top("--listen", "0", status=2)
    assert "cannot be used with" in top("--openmetrics", "--listen", "0", "--output", "x", status=2)
