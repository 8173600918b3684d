"""What a history has in it is shown, and never obeyed; files that are not whole are refused with a message."""

import json
import random
import stat

import pytest

import programs
from conftest import BFC, page_of, run_python

NAMES = [
    "</script><script>document.title='obeyed'</script>",
    "<img src=x onerror=\"document.title='obeyed'\">",
    "<!--<script>",
    "]]>&lt;b&gt;&quot;'`${document.title='obeyed'}",
    "\u202etxet\u2028\u0007",
    "{{columns}}{{script}}",
    "__proto__/constructor/toString",
    "https://example.com/x.png",
]


@pytest.fixture
def hostile(tmp_path):
    history = tmp_path / "hostile.history"
    run_python(f"""
import bfc
names = {json.dumps(NAMES)}
with bfc.history({str(history)!r}):
    pool = bfc.Pool("host", limit="64 MiB", name=names[0])
    kept = []
    for name in names:
        with bfc.scope(name):
            kept.append(pool.alloc(1 << 20))
        bfc.history_mark(name)
""")
    return history


def test_names_are_text(hostile, opened):
    page = opened(page_of(hostile)).ready()
    for theme in ("dark", "light"):
        page.select_option("#theme", theme)
    for details in page.locator("details").all():
        details.locator("summary").click()
    page.locator("#addresses .plot").hover()
    page.wait_for_timeout(100)
    assert page.title() != "obeyed"
    # Nothing became an element, and no script was added.
    assert page.locator("main img, main script, main b, main a, main iframe").count() == 0
    assert page.locator("script").count() == 3
    shown = page.inner_text("#map-legend") + page.inner_text("#marks")
    for name in NAMES[:4]:
        assert name in shown
    assert "\u202e" not in page.inner_text("body") and "\ufffdtxet\ufffd\ufffd" in shown
    # Slashes are scopes.
    assert page.locator(".block", has_text="__proto__").count() == 1


def test_the_page_can_load_and_send_nothing(hostile, opened):
    page_opened = opened(page_of(hostile))
    page = page_opened.ready()
    tried = page.evaluate("""async () => {
        const blocked = [];
        document.addEventListener("securitypolicyviolation", (event) => blocked.push(event.effectiveDirective));
        await fetch("data:text/plain,x").catch(() => 0);
        const image = document.createElement("img");
        image.src = "data:image/gif;base64,R0lGODlhAQABAAAAACw=";
        const script = document.createElement("script");
        script.textContent = "document.title = 'obeyed'";
        document.body.append(image, script);
        await new Promise((done) => setTimeout(done, 200));
        return blocked;
    }""")
    assert {"connect-src", "img-src", "script-src-elem"} <= set(tried), tried
    assert page.title() != "obeyed"
    # The browser has complained of each, and asked for nothing.
    assert page_opened.errors and set(page_opened.requests) == {page_opened.url}
    page_opened.errors.clear()


def test_only_the_owner_may_read_the_page(hostile):
    assert stat.S_IMODE(page_of(hostile).stat().st_mode) == 0o600


def test_a_history_without_an_allocator(tmp_path, opened):
    history = tmp_path / "empty.history"
    run_python(f"import bfc\nwith bfc.history({str(history)!r}): pass")
    page = opened(page_of(history)).ready()
    assert "No allocator was recorded" in page.inner_text("main")


def test_a_history_that_only_has_marks(tmp_path, opened):
    history = tmp_path / "marks.history"
    run_python(f"import bfc\nwith bfc.history({str(history)!r}): bfc.history_mark('alone')")
    page = opened(page_of(history)).ready()
    assert "No allocator was recorded" in page.inner_text("main")


def test_displaced_events_are_told(tmp_path, opened):
    history = tmp_path / "ring.history"
    run_python(f"""
import bfc
with bfc.history({str(history)!r}, events=1024):
    pool = bfc.Pool("host", limit="64 MiB")
    early = [pool.alloc(4096) for _ in range(100)]
    for i in range(2000):
        pool.alloc(512)
    del early[:50]
""")
    page = opened(page_of(history)).ready()
    text = page.inner_text("main")
    assert "were displaced by newer ones" in text
    assert "allocated before the first event" in page.inner_text("#map-legend")


@pytest.mark.parametrize("damage", ["cut", "zeros", "header", "text"])
def test_a_damaged_history_is_refused_and_the_old_page_stays(damage, training, tmp_path):
    whole = training.read_bytes()
    broken = {
        "cut": whole[: len(whole) // 2],
        "zeros": bytes(len(whole)),
        "header": whole[:16] + bytes(4080) + whole[4096:],
        "text": b"notes",
    }[damage]
    history, page = tmp_path / "broken.history", tmp_path / "report.html"
    history.write_bytes(broken)
    page.write_text("the old one")
    status, text = programs.run(BFC, "report", history, "-o", page, status=None)
    assert status == 1 and text.startswith("bfc: ") and "panicked" not in text
    assert page.read_text() == "the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.history", "report.html"]


def test_random_damage_ends_in_a_page_or_a_message(training, tmp_path, opened):
    chance = random.Random(5)
    whole = training.read_bytes()
    for _ in range(6):
        broken = bytearray(whole)
        events = len(whole) - (4096 + (1 << 20)) if len(whole) > (2 << 20) else 0
        for _ in range(400):
            broken[4096 + (1 << 20) + chance.randrange(min(events, 64 * 300))] = chance.randrange(256)
        history = tmp_path / "random.history"
        history.write_bytes(broken)
        opened(page_of(history)).ready()


def test_a_page_that_is_damaged_says_so(training, tmp_path, opened):
    text = page_of(training).read_text()
    begin = text.index('id="columns">') + len('id="columns">')
    path = tmp_path / "damaged.html"
    path.write_text(text[:begin] + text[begin + 400 :])
    page = opened(path)
    page.page.wait_for_selector(".notice")
    assert "This page is damaged" in page.page.inner_text("body")
