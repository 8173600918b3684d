"""Every message that the library, the interposer, the command and the Python package can give, as a table.

    python ffi-tests/layers/messages.py        # needs the packages of requirements.txt

A message is a text with a space in it, in code that is not only for tests: texts without one are names. What a Rust macro or
function, or a Python exception, is given as an argument is told beside it.
"""

import ast
import pathlib
import re
from typing import NamedTuple

from imports import PARSER, TESTS_ONLY

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = ("src/**/*.rs", "crates/preload/src/**/*.rs", "crates/cuda-sys/src/**/*.rs", "crates/os/src/**/*.rs", "crates/bfc-readers/src/**/*.rs", "crates/cli/src/**/*.rs", "python/src/bfc/**/*.py")
# Texts for pages, and instructions of the processor.
NO_MESSAGES = re.compile(r"crates/preload/src/unanalyzed_list\.rs|src/(.*/)?tests(/.*)?\.rs|src/(.*/)?broken_tests\.rs")
NOT_TOLD = {"asm!", "naked_asm!", "global_asm!", "expect", "unreachable!", "assert!", "debug_assert!", "assert_eq!"}
# Given a whole error message, which is not a part of one.
ERRORS = {"fail!", "bail!", "anyhow!", "context", "with_context", "warn", "emit", "complain"}


class Message(NamedTuple):
    place: str
    given_to: str
    text: str

    def __str__(self):
        return f"{self.place}\t{self.given_to}\t{self.text}"

    @property
    def is_whole_error(self):
        """Whether it is an error message as a whole, and no part of another text."""
        return self.given_to in ERRORS or self.given_to.startswith("raise ")


def of_rust(source, name):
    """The messages in the text of a Rust file."""

    def visit(node, given_to):
        attributes = []
        for child in node.children:
            if child.type == "attribute_item":
                attributes.append(child.text.decode())
            elif child.type.endswith("comment"):
                continue
            elif any(TESTS_ONLY.match(attribute) for attribute in attributes):
                attributes = []
            elif child.type in ("string_literal", "raw_string_literal"):
                # A line that ends with a backslash goes on with the first letter of the next one.
                text = re.sub(r"\\\n\s*", "", child.text.decode()).split('"', 1)[1].rstrip('#"')
                if " " in text and given_to not in NOT_TOLD:
                    yield Message(f"{name}:{child.start_point[0] + 1}", given_to, text.replace("\n", "\\n"))
            else:
                attributes = []
                yield from visit(child, _receiver(child, given_to))

    yield from visit(PARSER.parse(source).root_node, "")


def _receiver(node, outer):
    """The macro or function that a node calls; what formats a text passes it on."""
    if node.type == "macro_invocation":
        called = node.child_by_field_name("macro").text.decode().split("::")[-1] + "!"
        return outer if called in ("format_args!", "format!") and outer else called
    if node.type == "call_expression":
        return re.split(r"::|\.", node.child_by_field_name("function").text.decode())[-1]
    return outer


def of_python(source, name):
    """The messages of the exceptions that a Python file raises."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args):
            continue
        parts = [_text(part) for part in node.exc.args]
        for text in parts:
            if " " in text:
                yield Message(f"{name}:{node.lineno}", f"raise {ast.unparse(node.exc.func)}", text.replace("\n", "\\n"))


def _text(node):
    """A literal as it is written, with the parts that are filled in in braces."""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else str(part.value) for part in node.values
        )
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def messages(root=ROOT):
    """All of them, by file and line."""
    for path in sorted(path for pattern in SOURCES for path in root.glob(pattern)):
        name = str(path.relative_to(root))
        if not NO_MESSAGES.fullmatch(name):
            yield from (of_rust if path.suffix == ".rs" else of_python)(path.read_bytes(), name)


if __name__ == "__main__":
    print(*messages(), sep="\n")
