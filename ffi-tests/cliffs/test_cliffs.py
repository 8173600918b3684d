"""No kind of call takes more instructions than benches/cliffs/known.txt says, as far as its rows and a short search show."""

import shutil

import pytest

import known
import search
from calls import Program, Random

needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None, reason="there is no valgrind, which counts instructions")


@pytest.fixture(scope="session")
def runner():
    runner = search.Runner()
    yield runner
    runner.close()


# The longest is the first: another process runs the others meanwhile.
@needs_valgrind
def test_a_short_search_finds_no_new_kind_over_the_bound(runner):
    # Few enough programs for each machine to try all of them, however busy it is, with the same result.
    finds = search.search(runner, known.read(), known.SCALE, seed=1, seconds=600, most=400, new_only=True)
    assert not finds, "\n".join(map(str, finds))


@needs_valgrind
@pytest.mark.parametrize("row", known.read(), ids=lambda row: row.kind.replace(" ", "-"))
def test_a_known_call_takes_at_most_a_fifth_more_than_its_figure(row, runner):
    worst = runner.measured(row)
    assert worst, f"there is no {row.kind} in {row.program} any more"
    now = runner.instructions(worst, known.SCALE)
    assert not search.exceeds(row, now), f"{now} instructions instead of {row.instructions}: {row.kind} in {row.program}"


PLAIN = [row for row in known.read() if not known.has_alignment(row.program)]


@needs_valgrind
@pytest.mark.parametrize("row", PLAIN, ids=lambda row: row.kind.replace(" ", "-"))
def test_the_calls_of_a_program_take_few_instructions_on_average(row, runner):
    assert runner.instructions_of_all(row.program, known.SCALE) <= known.MEAN
    # And with ten times as many chunks about as many.
    small, large = (runner.blocks_of_all(row.program, scale) for scale in (known.SCALE, 10 * known.SCALE))
    assert large < 1.5 * small, f"{small} and {large} basic blocks a call"


def test_a_fifth_more_is_allowed():
    row = known.Row.parse("100 | alloc | ; alloc k=1 | why")
    assert not search.exceeds(row, 120) and search.exceeds(row, 121)


def test_a_file_is_written_as_it_was_read():
    text = "# What it is.\n\n12 | alloc | ; alloc k=1 | one\n10001 | free streams | split; trim | all | of it\n"
    head, rows = known.parsed(text)
    assert known.text(head, rows) == text and rows[1].why == "all | of it"
    assert [known.most(rows, kind) for kind in ("free streams", "alloc", "trim")] == [10_001, 12, 0]
    for bad in ("12 | alloc | ; alloc k=1", "dear | alloc | ; alloc k=1 | one", "12 | alloc | ; jump | one"):
        with pytest.raises(ValueError):
            known.parsed(bad)


def test_programs_and_their_mutations_are_read_as_they_are_written():
    text = "split room=2; alloc n=900 size=3 other=9 streams=2; free n=1000 every=2; trim"
    program = mutated = Program.parse(text)
    random = Random(1)
    for _ in range(1000):
        mutated = mutated.mutated(random, program)
        assert str(Program.parse(str(mutated))) == str(mutated)
    assert str(program) == text and str(mutated) != text
    # A step, an option, the room, and each field.
    assert len(list(program.simpler())) == 3 + 1 + 1 + 4 + 2


@pytest.mark.parametrize("bad", ["fast; trim", "; jump", "; trim n=1", "; alloc n=x", "; ;", "room=y"])
def test_a_bad_program_is_refused(bad):
    with pytest.raises(ValueError):
        Program.parse(bad)
