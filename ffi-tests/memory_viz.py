"""PyTorch's memory viewer: its own JavaScript, in Chromium.

PyTorch's wheels lack the viewer, so MemoryViz.js comes out of the source package of Debian, and d3, which it loads from the
network, out of npm's package. Nothing else is loaded: the page has no network.
"""

import contextlib
import hashlib
import os
import pathlib
import re
import tarfile
import urllib.request

import pytest

import debian
import programs

FILES = {
    "MemoryViz.js": (
        "https://deb.debian.org/debian/pool/main/p/pytorch/pytorch_2.6.0+dfsg.orig.tar.xz",
        "torch/utils/viz/MemoryViz.js",
        "313cf4c0e971055e37da051763f042ed149fc5e56ad4a598edadf03b2da71ee5",
    ),
    "d3.min.js": (
        "https://registry.npmjs.org/d3/-/d3-5.16.0.tgz",
        "package/dist/d3.min.js",
        "5dbe924b3847df010f0b8572dd6ef42ea87d6370eeff72b13ea236247412a53c",
    ),
}
PAGE = """<!DOCTYPE html><meta charset="utf-8"><title>viewer</title><script src="d3.min.js"></script>
<script type="module">import {add_remote_files} from "./MemoryViz.js";
add_remote_files([{name: "snapshot.pickle", url: "snapshot.pickle"}]);</script>"""
ORIGIN = "http://viewer.invalid/"
TIMELINE, STATES, SEGMENTS, SETTINGS = (
    "Active Memory Timeline",
    "Allocator State History",
    "Active Cached Segment Timeline",
    "Allocator Settings",
)


def _fetched(name):
    """A file of the viewer, which is fetched once for all test runs."""
    url, member, expected = FILES[name]
    cache = pathlib.Path(os.environ.get("LIBBFC_TESTS_CACHE", programs.SCRATCH)) / "memory-viz"
    path = cache / name
    with programs.alone("memory-viz"):
        with contextlib.suppress(OSError):
            if hashlib.sha256(path.read_bytes()).hexdigest() == expected:
                return path.read_text()
        try:
            with urllib.request.urlopen(url, timeout=60) as response, tarfile.open(fileobj=response, mode="r|*") as files:
                content = next(files.extractfile(file).read() for file in files if file.name.endswith(member))
        except (OSError, EOFError, StopIteration, tarfile.TarError) as error:
            pytest.skip(f"{name} cannot be fetched from {url}: {error}")
        assert hashlib.sha256(content).hexdigest() == expected, f"{name} of {url} is another one"
        cache.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return content.decode()


def _viewer():
    """MemoryViz.js with d3 from the page. `d3.event` changes while events are handled, so d3 has to be that very object."""
    text, count = re.subn(
        r'^import (?:\* as )?(.+) from "https://cdn\.skypack\.dev/.*";$', r"const \1 = globalThis.d3;", _fetched("MemoryViz.js"), flags=re.M
    )
    assert count == 5, "the viewer imports other things"
    return text


class Viewer:
    """A file in the viewer. An error of the page, and a request for anything else, fail the test at :meth:`close`."""

    def __init__(self, browser, pickle):
        self.errors = []
        self._files = {
            "": ("text/html", PAGE),
            "MemoryViz.js": ("text/javascript", _viewer()),
            "d3.min.js": ("text/javascript", _fetched("d3.min.js")),
            "snapshot.pickle": ("application/octet-stream", pathlib.Path(pickle).read_bytes()),
        }
        self.page = browser.new_page(viewport={"width": 1400, "height": 1000})
        self.page.route("**/*", self._serve)
        self.page.on("pageerror", lambda error: self.errors.append(f"error: {error}"))
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(f"console: {message.text}"))
        self.page.goto(ORIGIN)
        # The list of devices is filled once the file is read.
        self.page.wait_for_function("document.querySelectorAll('select')[2]?.options.length > 0")

    def _serve(self, route):
        name = route.request.url.removeprefix(ORIGIN)
        if name in self._files:
            content_type, body = self._files[name]
            route.fulfill(content_type=content_type, body=body)
        else:
            if name != "favicon.ico":
                self.errors.append(f"the page asked for {name}")
            route.abort()

    def close(self):
        assert not self.errors, self.errors
        # No name of the file became a part of the page.
        assert self.page.evaluate("globalThis.hacked") is None
        assert self.page.evaluate("document.querySelectorAll('img, script:not([src]):not([type])').length") == 0
        self.page.close()

    def devices(self):
        return [int(text) for text in self.page.locator("select").nth(2).locator("option").all_inner_texts()]

    def open(self, view, device):
        """Shows one of the views of a device."""
        self.page.locator("select").nth(1).select_option(view)
        self.page.locator("select").nth(2).select_option(str(device))
        # The view of states is drawn in the next frame.
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert not self.errors, self.errors

    def _hovered(self, selector):
        """What the view shows for each element, as the pointer enters it. Others may cover it, so the event is sent."""
        return self.page.evaluate(
            """selector => {
                const view = [...document.querySelectorAll('body > div')].find(
                    div => div.style.display !== 'none' && div.querySelector('svg'));
                const shown = view.querySelector('pre');
                return [...view.querySelectorAll(selector)].map(element => {
                    element.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));
                    return shown.textContent;
                });
            }""",
            selector,
        )

    def allocations(self):
        """What the timeline says for each of its allocations: bytes, bytes in all after it, and the rest of the text."""
        texts = self._hovered("polygon")
        found = []
        for text in texts:
            said = re.search(r"Size: \S+ \((\d+) bytes\) allocation, Total memory used after allocation: \S+ \((\d+) bytes\)", text)
            if said:
                found.append((int(said[1]), int(said[2]), text))
        return found

    def events(self):
        """What the view of states lists, and what it shows once each is selected: the event, the allocated and the reserved bytes
        then, and the frames."""
        shown = self.page.evaluate(
            """() => {
                const view = [...document.querySelectorAll('body > div')].find(
                    div => div.style.display !== 'none' && div.querySelector('svg'));
                const [shown, ...events] = view.querySelectorAll('pre');
                return events.map(event => {
                    event.dispatchEvent(new MouseEvent('mousedown', {bubbles: true}));
                    return shown.textContent;
                });
            }"""
        )
        assert not self.errors, self.errors
        found = []
        for text in shown:
            sums, event, *frames = text.split("\n")
            allocated, reserved = re.fullmatch(r"\(\S+ \((\d+) bytes\) allocated / \S+ \((\d+) bytes\) reserved\)", sums).groups()
            # With several streams each event names its own.
            frames = [line for line in frames if not re.fullmatch(r" +\(stream \d+\)", line)]
            found.append((event, int(allocated), int(reserved), "\n".join(frames)))
        return found

    def segments(self):
        """The bytes of each segment in the picture of states, of the event that is selected."""
        texts = self._hovered("svg > g > g:nth-child(1) > rect")
        return [int(re.search(r"segment \S+ \((\d+) bytes\) allocated", text)[1]) for text in texts]

    def blocks(self):
        """The requested bytes of each block in that picture, and its text."""
        texts = self._hovered("svg > g > g:nth-child(2) > rect")
        return [(int(re.search(r"\((\d+) bytes\) allocation", text)[1]), text) for text in texts]

    def settings(self):
        return self.page.locator("body > div:visible pre").last.inner_text()
