"""Finding and installing programs of Debian's packages."""

import os

import pytest

import debian


@pytest.fixture
def empty_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder, name, text="exit 0"):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_program_that_is_there_is_found(empty_path):
    path = program(empty_path, "tool")
    assert debian.executable("tool", "tool-package") == str(path)


def test_without_root_a_missing_program_is_a_skip(empty_path, monkeypatch):
    program(empty_path, "apt-get")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(pytest.skip.Exception, match=r"tool is not installed \(Debian: apt-get install tool-package\)$"):
        debian.executable("tool", "tool-package")


def test_a_missing_program_is_installed_after_an_update(empty_path, monkeypatch):
    # An apt-get that needs its lists first, as in a new container.
    log, tool = empty_path / "log", empty_path / "tool"
    program(
        empty_path,
        "apt-get",
        f'echo "$*" >> {log}\ncase "$*" in\n*update) : > {empty_path}/lists;;\n'
        f"*) [ -e {empty_path}/lists ] || exit 100; echo '#!/bin/sh' > {tool}; /bin/chmod +x {tool};;\nesac",
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    try:
        assert debian.executable("tool", "tool-package") == str(tool)
    except pytest.skip.Exception as skipped:
        pytest.fail(f"it was not installed: {skipped}")
    calls = [line.split("Timeout=300 ")[1] for line in log.read_text().splitlines()]
    install = "install --yes --no-install-recommends tool-package"
    assert calls == [install, "update", install]


def test_an_installation_that_fails_is_a_skip_with_the_error(empty_path, monkeypatch):
    program(empty_path, "apt-get", "echo 'E: Unable to locate package' >&2\nexit 100")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(pytest.skip.Exception, match="tool-package.: E: Unable to locate package"):
        debian.executable("tool", "tool-package")
