"""The metrics of a program in a real Prometheus server, and the dashboard and the alert rules of docs/ evaluated by it."""

import json
import math
import re
import shutil
import subprocess
import sys

import pytest

import debian
import program
import server
from pages import ROOT, Page

# One server for all tests.
pytestmark = pytest.mark.xdist_group("prometheus")
PAGE = Page("metrics")
RULES = ROOT / "docs/prometheus-rules.yml"
DASHBOARD = json.loads((ROOT / "docs/grafana.json").read_text())
VARIABLES = [variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
DEVICES = {"256", str(program.HOSTILE)}
NAMES = {"256": "trainer", str(program.HOSTILE): program.NAME}
BACKENDS = {"256": "host", str(program.HOSTILE): "host_vmm"}


class Program:
    """The program whose metrics the server reads."""

    def __init__(self, process):
        self.process = process
        self.ports = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        assert line, "the program has ended"
        return json.loads(line)

    def do(self, command):
        """The statistics of its allocators after a command, by device."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer()


@pytest.fixture(scope="module")
def live():
    debian.executable("prometheus", "prometheus")
    command = [sys.executable, program.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Program(process)
        process.stdin.close()
        assert process.wait(server.SECONDS) == 0


def changed(text, **changes):
    """A text with words of its own replaced."""
    for old, new in changes.values():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def prometheus(live, tmp_path_factory):
    """A server that has read the program's metrics before and after it worked."""
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copy(RULES, folder)
    config = changed(
        PAGE.text("yaml-1"),
        target=("127.0.0.1:9464", f"127.0.0.1:{live.ports['client']}"),
        interval=("scrape_interval: 15s", "scrape_interval: 200ms"),
    )
    config += f"""
  - job_name: plain
    scrape_interval: 200ms
    static_configs:
      - targets: ["127.0.0.1:{live.ports["plain"]}"]
global:
  evaluation_interval: 200ms
"""
    with server.running(folder, config) as running:
        allocations = "bfc_allocations_total"
        server.eventually(lambda: len(running.query(allocations)) == 4, "two allocators in each of two jobs")
        for _ in range(3):
            expected = {stats["num_allocs"] for stats in live.do("work").values()}
            server.eventually(lambda: {int(value) for _, value in running.query(allocations)} == expected, "the last values")
        yield running


def metrics():
    """The page's list: names of samples, with type, statistic and help."""
    rows = re.findall(r"^\| `(bfc_\w+)` \| (\w+) \| (?:`(\w+)` )?\| (.+) \|$", PAGE_TEXT, re.MULTILINE)
    assert len(rows) == 18, rows
    return rows


PAGE_TEXT = (ROOT / PAGE.path).read_text()
METRICS = metrics()


@pytest.mark.parametrize("job", ["libbfc", "plain"])
def test_the_server_has_the_statistics(live, prometheus, job):
    statistics = live.do("stats")
    assert set(statistics) == DEVICES
    for name, _, statistic, _ in METRICS:
        found = prometheus.query(f'{name}{{job="{job}"}}')
        if not statistic:
            assert [value for _, value in found] == ["0"], name
            continue
        assert {labels["device"]: int(value) for labels, value in found} == {
            device: stats[statistic] for device, stats in statistics.items()
        }, name
        for labels, _ in found:
            device = labels["device"]
            assert (labels["name"], labels["backend"]) == (NAMES[device], BACKENDS[device])
            assert set(labels) == {"__name__", "job", "instance", "device", "name", "backend"}
    # The program has changed all but what needs a plan.
    assert all(value for stats in statistics.values() for name, value in stats.items() if name != "num_planned_allocs")


@pytest.mark.parametrize("job", ["libbfc", "plain"])
def test_the_server_takes_the_text_for_openmetrics(prometheus, job):
    targets = {target["labels"]["job"]: target for target in prometheus.api("targets")["activeTargets"]}
    assert (targets[job]["health"], targets[job]["lastError"]) == ("up", "")
    found = prometheus.api("targets/metadata", match_target=f'{{job="{job}"}}')
    metadata = {entry["metric"]: (entry["type"], entry["unit"], entry["help"]) for entry in found}
    for name, kind, _, help in METRICS:
        # Only OpenMetrics has units, and a counter whose name differs from its sample's.
        unit = "bytes" if name.endswith("_bytes") else ""
        assert metadata[name.removesuffix("_total")] == (kind, unit, help), name


def expressions():
    """The queries of the dashboard: for each the title of its panel and the expression."""
    return [(panel["title"], target) for panel in DASHBOARD["panels"] for target in panel["targets"]]


def evaluable(expression):
    """An expression with the dashboard's variables replaced as Grafana does when all values are chosen."""
    text = expression.replace("$__rate_interval", "1m").replace("$__range", "1h")
    for variable in VARIABLES:
        # Also names with a line break, which ".*" would leave out.
        text = re.sub(rf"\${variable['name']}\b", variable["allValue"], text)
    assert "$" not in text, f"an unknown variable in {text}"
    return text


@pytest.mark.parametrize("title, target", expressions(), ids=[f"{title}-{target['refId']}" for title, target in expressions()])
def test_each_query_of_the_dashboard_has_a_result(prometheus, title, target):
    evaluate = prometheus.query_range if target["range"] else prometheus.query
    found = [(labels, values if target["range"] else [values]) for labels, values in evaluate(evaluable(target["expr"]))]
    assert found, target["expr"]
    for labels, values in found:
        # Nothing is free, or nothing was allocated yet, when a series begins.
        assert any(math.isfinite(float(value)) for value in values), (labels, values)
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= set(labels)
    if "poisoned" not in target["expr"]:
        assert {labels["device"] for labels, _ in found} == DEVICES


def test_the_dashboard_shows_every_metric():
    shown = " ".join(target["expr"] for _, target in expressions())
    assert not [name for name, *_ in METRICS if not re.search(rf"\b{name}\b", shown)]


def test_the_dashboards_figures_are_those_of_the_report(live, prometheus):
    """The fragmentation, which is computed from three metrics."""
    (target,) = (target for title, target in expressions() if title == "Fragmentation")
    stats = live.do("stats")["256"]
    free = stats["pool_bytes"] - stats["bytes_in_use"]
    expected = 1 - stats["largest_free_block_bytes"] / free
    found = {labels["device"]: float(value) for labels, value in prometheus.query(evaluable(target["expr"]))}
    assert found["256"] == pytest.approx(expected, abs=1e-9)


def test_each_variable_of_the_dashboard_has_values(prometheus):
    assert [variable["name"] for variable in VARIABLES] == ["job", "instance", "device", "name"]
    for variable in VARIABLES:
        series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"]).groups()
        values = prometheus.api(f"label/{label}/values", **{"match[]": evaluable(series)})
        assert values, variable["name"]
        if variable["name"] in ("device", "name"):
            assert set(values) == (DEVICES if label == "device" else set(NAMES.values()))


def test_the_dashboard_is_one_that_grafana_imports():
    """As far as a test without Grafana can tell: ids are unique, panels do not overlap, and the data source is the user's choice."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 5
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24
    sources = re.findall(r'"uid": ("[^"]*")', json.dumps(DASHBOARD))
    assert sources and set(sources) == {'"${datasource}"'}
    assert "id" not in DASHBOARD and "uid" not in DASHBOARD


def test_each_rule_is_evaluated_and_a_failed_request_is_an_alert(prometheus):
    rules = lambda: [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]
    found = server.eventually(lambda: (all_ := rules()) and all(rule["health"] != "unknown" for rule in all_) and all_, "evaluated")
    assert {rule["name"] for rule in found} == set(re.findall(r"^\| `(Bfc\w+)` \|", PAGE_TEXT, re.MULTILINE))
    assert all(rule["health"] == "ok" for rule in found), found
    firing = lambda: {
        alert["labels"]["device"]
        for alert in prometheus.api("alerts")["alerts"]
        if (alert["labels"]["alertname"], alert["state"]) == ("BfcRequestsFail", "firing")
    }
    server.eventually(lambda: firing() == DEVICES, "an alert for each device")


QUERIES = re.findall(r"^\| [^`|]+ \| `(.+)` \|$", PAGE_TEXT.partition("| question | query |")[2].partition("\n\n")[0], re.MULTILINE)


@pytest.mark.parametrize("query", QUERIES)
def test_each_query_of_the_page_has_a_result(prometheus, query):
    found = prometheus.query(query)
    assert {labels["device"] for labels, _ in found} == DEVICES


def test_a_reset_is_a_restart_for_the_server(live, prometheus):
    """The last test that needs the program's statistics as they are."""
    before = live.do("stats")["256"]["num_frees"]
    live.do("reset")
    frees = lambda: {int(value) for labels, value in prometheus.query('bfc_frees_total{job="plain"}')}
    server.eventually(lambda: frees() == {0}, "the counters after the reset")
    assert before > 0
    expected = {stats["num_frees"] for stats in live.do("work").values()}
    server.eventually(lambda: frees() == expected, "the counters after more work")
    # Not the difference of the last and the first value, which is negative or too small.
    for _, value in prometheus.query('increase(bfc_frees_total{job="plain", device="256"}[1m])'):
        assert float(value) > max(expected)


# promtool.


def promtool(*arguments, **more):
    command = [debian.executable("promtool", "prometheus"), *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


def test_the_configuration_of_the_page_is_valid(tmp_path):
    config = PAGE.file("yaml-1")
    shutil.copy(config, tmp_path / "prometheus.yml")
    shutil.copy(RULES, tmp_path)
    done = promtool("check", "config", "--lint-fatal", tmp_path / "prometheus.yml")
    assert done.returncode == 0 and "4 rules found" in done.stdout, done.stdout
    PAGE.ran("yaml-1")


def test_the_rules_raise_their_alerts(tmp_path):
    done = promtool("test", "rules", ROOT / "ffi-tests/metrics/rules_test.yml")
    assert done.returncode == 0, done.stdout
    # And a limit that is another is noticed.
    for file in (RULES, ROOT / "ffi-tests/metrics/rules_test.yml"):
        text = file.read_text().replace("> 0.95", "> 0.99").replace("../../docs/", "")
        (tmp_path / file.name).write_text(text)
    assert promtool("test", "rules", tmp_path / "rules_test.yml").returncode != 0


def test_names_and_help_follow_the_conventions(live):
    """promtool reads Prometheus' older format, which prometheus_client writes for it."""
    text = server.get(f"http://127.0.0.1:{live.ports['client']}/metrics")
    own = re.sub(r"^(# (HELP|TYPE) )?(python|process)_.*\n", "", text, flags=re.MULTILINE)
    assert own.count("# HELP bfc_") == len(METRICS)
    done = promtool("check", "metrics", input=own)
    assert (done.returncode, done.stdout) == (0, "")
    wrong = promtool("check", "metrics", input=own.replace("bfc_frees_total", "bfc_frees"))
    assert "bfc_frees" in wrong.stdout
