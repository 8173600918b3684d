"""What a program here says at its end: run.sh reads it."""

import sys

SKIPPED = 77


def skip(why):
    """Something that the program needs is not here. The reason is its only line."""
    print(why)
    sys.exit(SKIPPED)


def finish(wrong, allocations, facts):
    """Ends the program: well, unless there is something in `wrong`. At least so many allocations were made; the facts
    must be the same whoever serves them."""
    for fact in facts:
        print(fact)
    print(f"allocations: {allocations}")
    for words in wrong:
        print(f"failed: {words}")
    if not wrong:
        print("ok")
    sys.exit(1 if wrong else 0)
