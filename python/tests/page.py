"""Runs the Python code of pages, in order: `page.py PAGE...`."""

import pathlib
import re
import sys


def main() -> int:
    for page in map(pathlib.Path, sys.argv[1:]):
        blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        assert blocks, f"{page} has no code"
        scope: dict[str, object] = {}
        for block in blocks:
            exec(compile(block, str(page), "exec"), scope)
        print(f"{page.name}: {len(blocks)} blocks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
