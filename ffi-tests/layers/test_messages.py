"""The style of error messages: lower case, no full stop, and nothing that only its author understands."""

import re

import pytest

from messages import ERRORS, Message, messages, of_python, of_rust

# A word that is no name: PyTorch, CUDA and BFC_LOG are.
CAPITALISED = re.compile(r"[A-Z][a-z]*\b(?!')")
# No error number without its name, no person, no word of ours alone.
VAGUE = re.compile(r"\b(somebody|nobody|whoever|has no words)\b|error \{errno\}", re.IGNORECASE)
# PyTorch's own text, which programs may look for.
OF_OTHERS = {"Expected a cuda device, but got: {device}"}


def faults(message):
    """What is wrong with the style of a message."""
    found = VAGUE.search(message.text)
    if found:
        yield f"{message}: says {found[0]!r}"
    if message.is_whole_error and message.text not in OF_OTHERS:
        if CAPITALISED.match(message.text):
            yield f"{message}: begins with a capital letter"
        if re.search(r"(?<!\.\.)\.$", message.text):
            yield f"{message}: ends with a full stop"


def test_messages_are_in_one_style():
    found = list(messages())
    assert len(found) > 500, "has the way in which the sources write messages changed?"
    assert {message.given_to for message in found} >= ERRORS
    assert any(message.given_to.startswith("raise ") for message in found)
    assert not [fault for message in found for fault in faults(message)]


@pytest.mark.parametrize(
    "text, is_fine",
    [
        ("device {ordinal}: ordinals are 0 to 1023", True),
        ("PyTorch's allocator is another one", True),
        ("CUDA is initialised already", True),
        ("BFC_LOG={text} is ignored, see ...", True),
        ("No allocator for {device}", False),
        ("the limit is 0.", False),
        ("the system refuses {bytes} bytes: error {errno}", False),
        ("memory of somebody else", False),
    ],
)
def test_a_fault_of_style_is_found(text, is_fine):
    assert (not list(faults(Message("a.rs:1", "fail!", text)))) == is_fine
    # Sentences of a report are sentences.
    assert not [fault for fault in faults(Message("a.rs:1", "writeln!", text)) if "begins" in fault or "ends" in fault]


@pytest.mark.parametrize(
    "source, found",
    [
        ('fn f() { fail!(Error::Busy, "device {d}: \\\n     busy") }', [("fail!", "device {d}: busy")]),
        ('fn f() { log::emit(Level::Warn, format_args!("{x} is ignored")) }', [("emit", "{x} is ignored")]),
        ('fn f() { work().with_context(|| format!("cannot read {x}")).context("it is gone") }', [("with_context", "cannot read {x}"), ("context", "it is gone")]),
        ('// "a comment"\nconst NAME: &str = "name"; const TEXT: &str = "a text";', [("", "a text")]),
        ('#[cfg(test)]\nmod tests { fn f() { panic!("in a test") } }\nfn f() { g("x y") }', [("g", "x y")]),
        ('fn f() { x.expect("it is there"); asm!("mov a, b") }', []),
    ],
)
def test_messages_of_rust_are_found(source, found):
    assert sorted((message.given_to, message.text) for message in of_rust(source.encode(), "a.rs")) == sorted(found)


def test_messages_of_python_are_found():
    source = 'def f(x):\n    if x:\n        raise ValueError(f"{x!r} is no \'size\'") from None\n    raise\n'
    assert [str(message) for message in of_python(source, "a.py")] == ["a.py:3\traise ValueError\t{x} is no 'size'"]
