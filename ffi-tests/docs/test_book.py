"""The book is built without a warning, needs nothing of the network, and links lead somewhere."""

import re
import shutil
import subprocess
import sys

import pytest

CHECKER = [sys.executable, "-m", "md_dead_link_check"]
CONFIG = "[tool.md_dead_link_check]\ncheck_web_links = false\n"


@pytest.fixture(scope="session")
def book(run, prefix, root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("book")
    config = root / "xtask/book/mkdocs.yml"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", folder]
    run(*command, env={"BFC": str(prefix / "bin/bfc")})
    return folder


def test_the_book_has_every_page_and_the_headers(book, root):
    pages = {path.stem for path in book.rglob("*.html")}
    assert {path.stem for path in root.glob("docs/*.md")} | {"bfc.h", "bfc_adapters.h", "bfc.hpp", "allocation.hpp", "command"} <= pages
    assert "bfc_alloc_async" in (book / "include/bfc.h.html").read_text()
    assert "--find-limit" in (book / "command.html").read_text()


def test_the_book_fetches_nothing(book):
    fetched = r'<(?:script|img|link|iframe)[^>]*\s(?:src|href)="((?:https?:)?//[^"]*)"'
    assert not [found for page in book.rglob("*.html") for found in re.findall(fetched, page.read_text())]
    assert re.findall(fetched, '<script async src="//cdn.org/x.js"></script>') == ["//cdn.org/x.js"]


def dead_links(checkout, folder):
    """What the checker says of all pages in a checkout of git's; its status."""
    (folder / "links.toml").write_text(CONFIG)
    command = [*CHECKER, "--no-color", "--config", folder / "links.toml"]
    done = subprocess.run(command, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


@pytest.fixture
def checkout(tmp_path):
    """Makes files in a folder a checkout."""

    def checkout(folder):
        subprocess.run(["git", "init", "-q", folder], check=True)
        subprocess.run(["git", "-C", folder, "add", "-A"], check=True)
        return folder

    return checkout


def test_links_lead_somewhere(root, tmp_path):
    if subprocess.run(["git", "-C", root, "ls-files"], capture_output=True).returncode != 0:
        pytest.skip("this is no checkout of git, by which the checker finds pages")
    status, said = dead_links(root, tmp_path)
    assert status == 0, said


def test_links_in_the_installed_pages_lead_somewhere(prefix, checkout, tmp_path):
    shutil.copytree(prefix / "share/doc/bfc", tmp_path / "doc")
    assert len(list((tmp_path / "doc").rglob("*.md"))) > 10
    status, said = dead_links(checkout(tmp_path / "doc"), tmp_path)
    assert status == 0, said


def test_dead_links_are_found(checkout, tmp_path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/a.md").write_text("# A\n[b](b.md) [c](#nothing)\n")
    status, said = dead_links(checkout(tmp_path / "pages"), tmp_path)
    assert status != 0 and "b.md" in said and "nothing" in said
