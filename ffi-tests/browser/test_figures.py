"""The figures of the page are those of the run that it shows, and of `bfc report`."""

import json

import pytest

from conftest import TRACES, page_of, report, run_python, summary

# A card, and where `bfc report --json` has the same figure.
CARDS = {
    "limit": lambda pool: pool["limit"],
    "peak": lambda pool: pool["peak"]["in_use"],
    "held": lambda pool: pool["peak_held"]["bytes"],
    "in-use": lambda pool: pool["in_use"],
    "allocations": lambda pool: pool["allocations"],
    "failed": lambda pool: pool["failed"],
}


def cards(page):
    return {name: int(page.get_attribute(f"#figure-{name}", "data-value")) for name in CARDS}


def rows(page, selector):
    """The rows of a table, by its headings."""
    details = page.locator(selector)
    if not details.evaluate("details => details.open"):
        details.locator("summary").click()
    # A changed view is followed after a pause.
    page.wait_for_timeout(300)
    heads = details.locator("th").all_inner_texts()
    cells = details.locator("td").all_inner_texts()
    return as_rows(heads, cells)


def as_rows(heads, cells):
    return [dict(zip(heads, cells[at : at + len(heads)])) for at in range(0, len(cells), len(heads))]


def number(text):
    return int(text.replace(",", ""))


def holders(page):
    """The bytes and allocations of the operations in the flame graph, whose rows are the scopes of an operation."""
    found = rows(page, "#holders details")
    return {row["holder"]: (number(row["exactly"]), number(row["allocations"])) for row in found}


@pytest.mark.parametrize("trace", [path.name.removesuffix(".trace.gz") for path in TRACES])
def test_recorded_programs(trace, recorded, opened):
    history, replayed = recorded(trace)
    page = opened(page_of(history)).ready()
    # The later ones belong to the replays that inspect the peak.
    pool = summary(history)["pools"][0]
    assert cards(page) == {name: of(pool) for name, of in CARDS.items()}

    stats, peak = replayed["stats"], replayed["peak"]
    assert cards(page)["peak"] == stats["peak_bytes_in_use"]
    assert cards(page)["held"] == stats["peak_pool_bytes"]
    assert cards(page)["allocations"] == stats["num_allocs"]

    # At the peak: what the flame graph sums up, and what is free in one piece.
    total = page.inner_text("#holders-total")
    assert f"({peak['bytes_in_use']:,} bytes) in use" in total
    # They name no operations.
    sums = [sum(column) for column in zip(*(row for name, row in holders(page).items() if " › " not in name))]
    assert sums == [pool["peak"]["in_use"], pool["peak"]["holders"][0]["allocations"]]
    (row,) = [row for row in rows(page, "#fragmentation details") if row["moment"] == "peak in use"]
    assert row["1 − largest free / free"] == f"{100 * peak['fragmentation']:.1f}%"
    # The command's text has the same units.
    (row,) = [row for row in rows(page, "#timeline details") if row["moment"] == "peak in use"]
    assert f"at most {row['in use']} (" in report(history)


def test_holders_at_each_moment(training, opened):
    page = opened(page_of(training)).ready()
    said = summary(training)
    (pool,) = said["pools"]
    assert cards(page) == {name: of(pool) for name, of in CARDS.items()}
    assert pool["failed"] == 1

    def compare(moment, wanted):
        page.select_option("#moment", label=moment)
        found = holders(page)
        for holder in wanted:
            name = (holder["operation"] or "(no operation)").replace("/", " › ")
            assert found[name] == (holder["bytes"], holder["allocations"]), name

    labels = page.locator("#moment option").all_inner_texts()
    compare(labels[0], pool["peak"]["holders"])
    (failure,) = pool["failures"]
    (label,) = [label for label in labels if label.startswith("out of memory 1: 250.00 MiB requested")]
    compare(label, failure["holders"])
    assert f"({failure['in_use']:,} bytes) in use" in page.inner_text("#holders-total")
    compare(labels[-1], pool["holders"])

    row = rows_of_section(page, "#failures")[0]
    assert row["requested"] == f"250.00 MiB ({failure['requested']:,} bytes)"
    assert f"({failure['largest_free']:,} bytes)" in row["largest free chunk"] and row["cause"] == failure["cause"]
    assert row["operation"] == failure["operation"] == "validation"
    assert f"250.00 MiB ({failure['requested']}) requested for validation, " in report(training)

    marks = rows_of_section(page, "#marks")
    assert [row["mark"] for row in marks] == [mark["name"] for mark in said["marks"]] == [f"step {i} done" for i in range(9)]
    assert [number(row["in allocations"]) for row in marks] == [mark["kept_allocations"] for mark in said["marks"]]


def rows_of_section(page, selector):
    heads = page.locator(f"{selector} th").all_inner_texts()
    cells = page.locator(f"{selector} td").all_inner_texts()
    return as_rows(heads, cells)


def test_sizes_and_streams_group_the_same_bytes(training, opened):
    page = opened(page_of(training)).ready()
    peak = summary(training)["pools"][0]["peak"]["in_use"]
    for grouping in page.locator("#grouping option").all_inner_texts():
        page.select_option("#grouping", label=grouping)
        outermost = [value for name, value in holders(page).items() if " › " not in name]
        assert sum(bytes for bytes, _ in outermost) == peak


def changed(history, path, change):
    """The page of a history whose document is changed: with what no recording here has."""
    text = page_of(history).read_text()
    begin = text.index('id="document">') + len('id="document">')
    end = text.index("</script>", begin)
    document = json.loads(text[begin:end])
    change(document)
    path.write_text(text[:begin] + json.dumps(document) + text[end:])
    return path


def test_backtraces_are_rows_of_the_flame_graph(training, tmp_path, opened):
    def add(document):
        (pool,) = document["pools"]
        pool["stacks"] = [["main (train.py:3)", "step", "\u202ealloc"]]
        # A column of ones: each chunk has the first backtrace.
        pool["chunks"]["stack"] = pool["chunks"]["is_known"]

    page = opened(changed(training, tmp_path / "stacks.html", add)).ready()
    assert page.input_value("#grouping") == "operation, then backtrace"
    assert holders(page)["optimizer › main (train.py:3) › step › \ufffdalloc"] == holders(page)["optimizer"]
    page.select_option("#grouping", label="backtrace, then operation")
    peak = summary(training)["pools"][0]["peak"]["in_use"]
    found = holders(page)
    assert found["main (train.py:3) › step › \ufffdalloc"][0] == found["main (train.py:3)"][0] == peak
    # Without a backtrace there is no such choice.
    page = opened(page_of(training)).ready()
    assert not [name for name in page.locator("#grouping option").all_inner_texts() if "backtrace" in name]


def test_a_failed_request_names_its_lines(training, tmp_path, opened):
    folder = "/home/someone/a project (2)/venv/lib/python3.11/site-packages/torch/nn/modules"

    def add(document):
        (pool,) = document["pools"]
        pool["stacks"] = [["main (train.py:3)", *[f"Module.call_{i} ({folder}/module.py:{i})" for i in range(12)], "operator/"]]
        (failure,) = pool["failures"]
        failure["stack"] = 1

    page = opened(changed(training, tmp_path / "failed.html", add)).ready()
    calls = " < ".join(f"Module.call_{i} (module.py:{i})" for i in reversed(range(12)))
    row = page.locator("#failures tbody tr").last
    assert row.inner_text() == f"requested by operator/ < {calls} < main (train.py:3)"
    assert page.evaluate("(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.querySelector('#failures .scroll'))") == 0
    assert row.bounding_box()["height"] < 100


def test_the_title_names_the_history(training, opened):
    page = opened(page_of(training)).ready()
    said = summary(training)
    assert page.title() == f"Memory of {said['program']} (process {said['process']}): {training.name}"
    assert page.inner_text(".title p").startswith(f"Process {said['process']}, recorded in {training.name}. ")


def test_advice_is_a_table(training, tmp_path, opened):
    def add(document):
        setting = {"variable": "BFC_SPLIT_ALWAYS=1", "option": None, "run": None}
        change = {"change": "split <always>", "set": setting, "out_of_memory": "none-in-replay", "peak_held": 3 << 20, "overhead": 1.0625}
        change |= {"lowest_limit": 4 << 20, "error": None}
        failed = change | {"change": "plan", "peak_held": None, "overhead": None, "lowest_limit": None, "error": "too many requests"}
        (pool,) = document["pools"]
        one = {"device": pool["device"], "name": pool["name"], "notes": ["a note"], "changes": [change, failed]}
        document["summary"]["advice"] = {"pools": [one]}

    page = opened(changed(training, tmp_path / "advice.html", add)).ready()
    assert "a note" in page.inner_text("#advice")
    heads = page.locator("#advice th").all_inner_texts()
    first, second = as_rows(heads, page.locator("#advice td").all_inner_texts())
    assert list(first.values()) == ["split <always>", "BFC_SPLIT_ALWAYS=1", "none in the replay", "3.00 MiB", "1.063", "4.00 MiB"]
    assert list(second.values()) == ["plan", "BFC_SPLIT_ALWAYS=1", "too many requests", "–", "–", "–"]


def test_advice_comes_from_replays(training, tmp_path, opened):
    """What --advice finds is the same on the page and in the JSON."""
    path = tmp_path / "advised.html"
    report(training, "--advice", "-o", path)
    page = opened(path).ready()
    heads = page.locator("#advice th").all_inner_texts()
    rows = as_rows(heads, page.locator("#advice td").all_inner_texts())
    (pool,) = json.loads(report(training, "--advice", "--json"))["advice"]["pools"]
    assert [list(row.values())[0] for row in rows] == [change["change"] for change in pool["changes"]] and rows


def test_several_pools_are_chosen(shared, opened):
    history = shared / "pools.history"
    history.unlink(missing_ok=True)
    run_python(f"""
import bfc
with bfc.history({str(history)!r}):
    one = bfc.Pool("host", limit="64 MiB", name="weights")
    other = bfc.Pool(258, backend="host", limit="32 MiB", name="cache")
    kept = [one.alloc(1 << 20), other.alloc(3 << 20), other.alloc(300)]
""")
    page = opened(page_of(history)).ready()
    pools = summary(history)["pools"]
    assert len(pools) == 2
    for at, pool in enumerate(pools):
        page.select_option("#pool", index=at)
        assert cards(page) == {name: of(pool) for name, of in CARDS.items()}
        assert pool["name"] in page.locator("#pool option").all_inner_texts()[at]
