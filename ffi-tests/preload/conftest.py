"""Where the interposer writes what it saw: a file of each test's own."""

import pytest


@pytest.fixture
def check(tmp_path):
    return tmp_path / "check"
