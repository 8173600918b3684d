"""Histories of programs, and the page that `bfc report` makes of them, in Debian's Chromium."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import debian
import programs
from playwright.sync_api import sync_playwright

BFC = programs.PREFIX / "bin/bfc"
TRACES = sorted((programs.ROOT / "tests/traces").glob("*.trace.gz"))
# A width at which nothing is folded.
SIZE = {"width": 1280, "height": 900}


@pytest.fixture(scope="session")
def browser():
    path = debian.executable("chromium", "chromium")
    # Root has no sandbox. Its pages are this test's own.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


class Opened:
    """A page that is open. `errors` has what went wrong in it, and `requests` what it wanted to load."""

    def __init__(self, browser, path, **options):
        self.context = browser.new_context(viewport=SIZE, **options)
        self.page = self.context.new_page()
        self.errors, self.requests = [], []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        self.page.on("dialog", lambda dialog: (self.errors.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = f"file://{path}"
        self.page.goto(self.url)

    def ready(self):
        self.page.wait_for_selector(":root[data-ready]", timeout=30_000)
        return self.page


@pytest.fixture
def opened(browser):
    """Opens a page. In the end it must have had no error, and loaded nothing but itself."""
    pages = []

    def opened(path, **options):
        pages.append(Opened(browser, path, **options))
        return pages[-1]

    yield opened
    for page in pages:
        page.context.close()
    assert [page.errors for page in pages] == [[]] * len(pages)
    assert all(set(page.requests) == {page.url} for page in pages), [page.requests for page in pages]


def report(history, *arguments):
    return programs.run(BFC, "report", history, *arguments)


def summary(history):
    return json.loads(report(history, "--json"))


def page_of(history):
    """The page of a history, beside it."""
    path = pathlib.Path(history).with_suffix(".html")
    report(history, "-o", path)
    return path


@pytest.fixture(scope="session")
def recorded(shared):
    """The history of the replay of a recorded program, and what the replay says: `recorded("gpt2")`."""

    def recorded(name):
        history, said = shared / f"{name}.history", shared / f"{name}.json"
        with programs.alone(f"browser-{name}"):
            if not said.exists():
                history.unlink(missing_ok=True)
                trace = programs.ROOT / f"tests/traces/{name}.trace.gz"
                variables = programs.environment(BFC_HISTORY_FILE=history, BFC_HISTORY=1 << 20)
                text = programs.run(BFC, "replay", "-q", "--json", "--as-run", trace, env=variables)
                said.write_text(text)
        return history, json.loads(said.read_text())["traces"][0]

    return recorded


# A training program of nine steps that runs out of memory in the last one. The names are paths of scopes. Steps take some time,
# so that a pause of a busy machine is a small part of the recording.
TRAINING = """
import bfc, random, time
random.seed(7)
MIB = 1 << 20
with bfc.history({path!r}):
    pool = bfc.Pool("host", limit=300 * MIB, name="trainer")
    weights = []
    for layer in range(4):
        with bfc.scope("model"), bfc.scope(f"layer {{layer}}"), bfc.scope("weights"):
            weights += [pool.alloc(6 * MIB), pool.alloc(3 * MIB + 1000)]
    with bfc.scope("optimizer"):
        moments = [pool.alloc(block.size) for block in weights]
    for step in range(9):
        activations = []
        for layer in range(4):
            with bfc.scope("forward", step=step), bfc.scope(f"layer {{layer}}", step=step):
                activations.append(pool.alloc(random.randrange(2, 16) * MIB))
                del_soon = pool.alloc(random.randrange(1, 900) * 1024)
                del del_soon
        if step == 8:
            try:
                with bfc.scope("validation", step=step):
                    pool.alloc(250 * MIB)
            except MemoryError:
                pass
        for layer in reversed(range(4)):
            with bfc.scope("backward", step=step), bfc.scope(f"layer {{layer}}", step=step):
                gradient = pool.alloc(9 * MIB)
                activations.pop()
                del gradient
        time.sleep(0.05)
        bfc.history_mark(f"step {{step}} done")
"""


def run_python(text):
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def training(shared):
    """The history of the training program."""
    history = shared / "training.history"
    with programs.alone("browser-training"):
        if not history.exists():
            run_python(TRAINING.format(path=str(history)))
    return history


MANY = """
import bfc, random
random.seed({seed})
names = [f"layer {{i}}/{{what}}" for i in range(12) for what in ("forward", "backward")]
with bfc.history({path!r}, events={events} + 5000):
    pool = bfc.Pool("host", limit="8 GiB")
    live = []
    for i in range({events} // 2 + 500):
        with bfc.scope(names[i // 500 % len(names)], step=i // 10000):
            live.append(pool.alloc(random.choice((256, 4096, 65536, 1 << 20)) * random.randrange(1, 9)))
        if len(live) > 500:
            live.pop(random.randrange(len(live)))
"""


@pytest.fixture(scope="session")
def many(shared):
    """A history of two hundred thousand events, or of another number."""

    def many(events=200_000):
        history = shared / f"many-{events}.history"
        with programs.alone(f"browser-{history.name}"):
            if not history.exists():
                run_python(MANY.format(path=str(history), events=events, seed=3))
        return history

    return many
