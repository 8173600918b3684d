"""The figures of the page are those of the run that it shows, and of `bfc report`."""

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
    # Those behind it are of the replays that look at the peak.
    pool = summary(history)["pools"][0]
    assert cards(page) == {name: of(pool) for name, of in CARDS.items()}

    stats, peak = replayed["stats"], replayed["peak"]
    assert cards(page)["peak"] == stats["peak_bytes_in_use"]
    assert cards(page)["held"] == stats["peak_pool_bytes"]
    assert cards(page)["allocations"] == stats["num_allocs"]

    # At the peak: what the flame graph sums up, and what is free in one piece.
    total = page.inner_text("#holders-total")
    assert f"({peak['bytes_in_use']:,} bytes) in use" in total
    assert holders(page)["(no operation)"] == (pool["peak"]["in_use"], pool["peak"]["holders"][0]["allocations"])
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
