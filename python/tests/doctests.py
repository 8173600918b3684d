"""Runs the examples in the docstrings of all modules."""

import doctest
import importlib
import pkgutil
import sys

import bfc


def main() -> int:
    modules = [bfc]
    for found in pkgutil.walk_packages(bfc.__path__, "bfc."):
        if not found.name.endswith("__main__"):
            modules.append(importlib.import_module(found.name))
    results = [doctest.testmod(module) for module in modules]
    attempted, failed = (sum(result[place] for result in results) for place in (1, 0))
    print(f"{attempted} examples of {len(modules)} modules, {failed} failed")
    return 0 if attempted > 20 and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
