"""Allocations and frees take no more instructions than benches/instructions.tsv allows."""

import pytest

import budget
import callgrind


@pytest.mark.parametrize("call", budget.CALLS)
@pytest.mark.parametrize("trace", budget.TRACES)
def test_a_call_stays_within_its_budget(trace, call):
    by, rows = budget.parsed(budget.FILE.read_text())
    if by != budget.compiler():
        pytest.skip(f"benches/instructions.tsv is by {by}, and this is {budget.compiler()}: cargo xtask budget --write")
    mean = budget.measured(trace, call)
    assert not budget.is_over(mean, rows[trace, call]), f"{mean:.1f} instructions instead of {rows[trace, call]}"


@pytest.mark.parametrize("call", budget.CALLS)
@pytest.mark.parametrize("trace", budget.TRACES)
def test_an_event_of_the_history_takes_few_instructions(trace, call):
    with_history, without = budget.measured(trace, call, BFC_HISTORY=1 << 20), budget.measured(trace, call)
    assert with_history > without + 20, "nothing was recorded"
    assert with_history - without <= budget.EVENT, f"{with_history - without:.1f} instructions"


def test_more_than_the_tolerance_is_over():
    assert not budget.is_over(103.0, 100.0) and budget.is_over(103.1, 100.0)


def test_the_file_is_read():
    assert budget.parsed("# comment\nrustc 1.95.0\na\tbfc_free\t12.5\n") == ("rustc 1.95.0", {("a", "bfc_free"): 12.5})
    for bad in ("# comment\n", "rustc\na 12\n"):
        with pytest.raises(ValueError):
            budget.parsed(bad)


def test_a_mean_is_that_of_all_calls():
    text = """fn=(1) main
5 1
cfn=(2) bfc_alloc
calls=3 7
5 90
cfn=(3) other
calls=9 7
5 90
cfn=(2)
calls=2 7
5 10
fn=(2)
7 100
summary: 100
"""
    assert callgrind.mean(text, "bfc_alloc") == 20
    with pytest.raises(AssertionError):
        callgrind.mean(text, "bfc_free")


def test_calls_and_other_objects_are_not_libbfc_s_own():
    text = """ob=(1) /a/libc.so.6
fn=(1) malloc
5 100
cob=(2) /p/lib/libbfc.so.0.1.0
cfn=(2) bfc_alloc
calls=1 7
5 1000
+1 10

ob=(2)
fn=(2)
7 3
* 4
cob=(1)
cfn=(1)
calls=1 5
-2 500
+3 1

totals: 1618
"""
    assert callgrind.own(text) == 8
    with pytest.raises(AssertionError):
        callgrind.own("ob=(1) /a/libc.so.6\nfn=(1) malloc\n5 100\n")
