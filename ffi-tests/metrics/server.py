"""A Prometheus server with its data in a folder of the test's."""

import contextlib
import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import debian

SECONDS = 60


def get(url):
    """The text at a URL of this machine."""
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        return answer.read().decode()


def eventually(found, what):
    """Returns the first result of `found` that is true."""
    end = time.monotonic() + SECONDS
    while not (result := found()):
        assert time.monotonic() < end, f"not within {SECONDS} seconds: {what}"
        time.sleep(0.05)
    return result


class Server:
    def __init__(self, url):
        self.url = url

    def api(self, path, **parameters):
        """The data of an answer of Prometheus' HTTP API. An answer that is an error is one here."""
        try:
            text = get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from None
        return json.loads(text)["data"]

    def query(self, expression):
        """The series of an expression now: pairs of labels and a value as text."""
        return [(series["metric"], series["value"][1]) for series in self.api("query", query=expression)["result"]]

    def query_range(self, expression):
        """The same for each of the last seconds: pairs of labels and a list of values."""
        now = time.time()
        found = self.api("query_range", query=expression, start=now - 20, end=now, step=1)["result"]
        return [(series["metric"], [value for _, value in series["values"]]) for series in found]


@contextlib.contextmanager
def running(folder, config):
    """A server with a configuration, which ends with the block."""
    program = debian.executable("prometheus", "prometheus")
    file, log = folder / "prometheus.yml", folder / "prometheus.log"
    file.write_text(config)
    command = [program, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", "--web.listen-address=127.0.0.1:0"]
    with log.open("w") as out, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out) as process:
        try:

            def address():
                assert process.poll() is None, log.read_text()
                return re.search(r'msg="Listening on" address=(\S+)', log.read_text())

            url = f"http://{eventually(address, 'the address in the log')[1]}"
            eventually(lambda: is_ready(url), f"{url} is ready")
            yield Server(url)
        finally:
            process.terminate()
            process.wait(SECONDS)


def is_ready(url):
    try:
        return get(f"{url}/-/ready")
    except urllib.error.URLError:
        return None
