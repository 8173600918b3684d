"""Errors name what Python calls it."""

import pathlib
import re
import unittest

import bfc
from bfc import _messages

SOURCE = pathlib.Path(__file__).parents[2] / "src"
NAME = re.compile(r"\b(?:bfc|BFC)_\w+")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


def arguments(text: str, start: int) -> str:
    """What stands in the parentheses that open at a place; parentheses in strings do not count."""
    depth, place = 0, start
    while place < len(text):
        string = STRING.match(text, place)
        if string:
            place = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        place += 1
        if not depth:
            break
    return text[start:place]


def named() -> dict[str, str]:
    """The names in the messages of failures and in reports, each with a file that has it, and the constants that types.rs
    prints."""
    found = {}
    for file in sorted(SOURCE.rglob("*.rs")):
        text = re.sub(r"//[^\n\"]*$", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE).split("#[cfg(test)]")[0]
        messages = [arguments(text, opened.end() - 1) for opened in re.finditer(r"\bfail!\(", text)]
        if file.name == "types.rs" or file.parent.name == "report":
            messages += STRING.findall(text)
        for message in messages:
            for string in STRING.findall(message) or [message]:
                found.update(dict.fromkeys(NAME.findall(string), str(file)))
    return found


class Messages(unittest.TestCase):
    def test_every_name_in_the_library_s_messages_is_known(self) -> None:
        found = named()
        variables = set(NAME.findall((SOURCE / "options/variables.rs").read_text(encoding="utf-8")))
        unknown = {name: file for name, file in found.items() if name not in _messages.PYTHON.keys() | _messages.C_ONLY | variables}
        self.assertEqual(unknown, {}, "add them to bfc._messages")
        self.assertGreater(len(found), 15)
        self.assertEqual((_messages.PYTHON.keys() | _messages.C_ONLY) - found.keys(), set(), "no message has them any more")

    def test_errors_have_pythons_names(self) -> None:
        with self.assertRaisesRegex(bfc.Error, "^quarantine=True needs timestamps=True"):
            bfc.create(307, backend="host", quarantine=True)
        with self.assertRaisesRegex(bfc.Error, "^backend='auto' has no meaning on ordinal 307"):
            bfc.Pool(307)

    def test_reports_have_pythons_names(self) -> None:
        with bfc.Pool(307, backend="host"):
            self.assertIn("name the operations that allocate: bfc.scope)", bfc.report(307))

    def test_out_of_memory_has_pythons_names(self) -> None:
        """Free memory in two regions."""
        with bfc.Pool(
            307, backend="host", limit="4MiB", growth_policy="tensorflow", initial_region_bytes="1MiB", garbage_collection=False
        ) as pool:
            for block in [pool.alloc("1MiB"), pool.alloc("2MiB")]:
                block.free()
            with self.assertRaises(bfc.OutOfMemoryError) as raised:
                pool.alloc("3MiB")
        self.assertIn("; with garbage_collection=True free regions make room for a larger one", str(raised.exception))

    def test_other_names_stay(self) -> None:
        self.assertEqual(_messages.in_python("BFC_TIMESTAMPS_X, bfc_trim"), "BFC_TIMESTAMPS_X, bfc.trim")


if __name__ == "__main__":
    unittest.main()
