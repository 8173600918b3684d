"""What a reader does with the page: zoom, hover, search, keys, themes; and how much work it is."""

import decimal
import os
import subprocess

import pytest

from conftest import BFC, SIZE, page_of


# In microseconds.
UNITS = {"s": 1_000_000, "ms": 1_000, "µs": 1}


@pytest.fixture
def page(training, opened):
    return opened(page_of(training)).ready()


def drawn(page):
    """Waits until the page has drawn a change: it draws with the frame that follows, however long that takes to come."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def shown(page):
    drawn(page)
    return page.inner_text(".shown")


def open_table(page, section):
    """Opens a figure's table, and returns its rows. It is made in a task after the click. A chart's legend is a table too."""
    details = page.locator(f"#{section} details")
    details.locator("summary").click()
    rows = details.locator("tbody tr")
    rows.first.wait_for(state="attached")
    return rows


def box(page, selector="#addresses .u-over"):
    page.locator(selector).scroll_into_view_if_needed()
    return page.locator(selector).bounding_box()


def test_a_drag_zooms_and_a_double_click_shows_all(page):
    assert shown(page) == ""
    for chart in ("#timeline", "#addresses", "#fragmentation", "#requests"):
        place = box(page, f"{chart} .u-over")
        x, y = place["x"] + place["width"] * 0.4, place["y"] + place["height"] * 0.5
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + place["width"] * 0.2, y + 3, steps=3)
        page.mouse.up()
        assert " to " in shown(page), chart
        page.mouse.dblclick(x, y)
        assert shown(page) == "", chart


def test_a_failed_request_leads_to_its_moment(page):
    assert shown(page) == ""
    time = page.locator("#failures td button").inner_text()
    page.locator("#failures td button").click()
    begin, end = (float(text.split()[0]) for text in shown(page).split(" to "))
    assert begin < float(time.split()[0]) < end, (shown(page), time)
    assert page.locator("#moment option:checked").inner_text() == f"cursor, {time}"
    assert page.locator("#timeline").bounding_box()["y"] < SIZE["height"] / 2


def test_the_wheel_zooms_a_chosen_chart_and_scrolls_otherwise(page):
    place = box(page)
    page.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, -100)
    assert shown(page) == "" and page.evaluate("scrollY") < before
    page.mouse.move(*(lambda place: (place["x"] + place["width"] / 2, place["y"] + 100))(box(page)))
    page.mouse.click(*(lambda place: (place["x"] + place["width"] / 2, place["y"] + 100))(box(page)))
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, -200)
    assert " to " in shown(page) and page.evaluate("scrollY") == before


def test_keys_zoom_pan_and_read_values(page):
    page.locator("#timeline .plot").focus()
    page.keyboard.press("+")
    first = shown(page)
    page.keyboard.press("ArrowRight")
    second = shown(page)
    page.keyboard.press("-")
    page.keyboard.press("0")
    assert first != second and " to " in first and shown(page) == ""
    page.keyboard.press("Shift+ArrowRight")
    said = page.inner_text("[aria-live]")
    assert "held " in said and "in use " in said and "limit 300.00 MiB" in said
    page.keyboard.press("Enter")
    assert page.locator("#moment option:checked").inner_text().startswith("cursor")


# Collects what a chart draws on its time axis.
COLLECT_TICKS = """() => {
    const draw = CanvasRenderingContext2D.prototype.fillText;
    const timeline = document.querySelector("#timeline canvas");
    window.ticks = new Set();
    CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {
        if (this.canvas === timeline && /^[\\d.]+ (s|ms|µs)$/.test(text)) ticks.add(text);
        return draw.call(this, text, ...more);
    };
}"""


def test_ticks_say_where_they_are(page):
    """They are at equal distances, and so are the times that they name."""
    page.evaluate(COLLECT_TICKS)
    page.locator("#timeline .plot").focus()
    for _ in range(16):
        page.evaluate("ticks.clear()")
        page.keyboard.press("+")
        drawn(page)
        texts = page.evaluate("[...ticks]")
        times = [decimal.Decimal(number) * UNITS[unit] for number, unit in map(str.split, texts)]
        steps = {after - before for before, after in zip(times, times[1:])}
        assert len(texts) > 2 and len(steps) == 1, texts


def test_keys_move_in_the_address_space(page):
    page.locator("#addresses .plot").focus()
    axis = lambda: page.evaluate("document.querySelector('#addresses canvas').toDataURL()")
    pictures = [axis()]
    for key in ("]", "ArrowDown", "ArrowUp", "[", "+"):
        page.keyboard.press(key)
        drawn(page)
        pictures.append(axis())
    assert all(before != after for before, after in zip(pictures, pictures[1:]))
    for _ in range(3):
        page.keyboard.press("Shift+ArrowUp")
    said = page.inner_text("[aria-live]")
    assert "0x" in said


def test_a_chunk_tells_what_it_is(page):
    place = box(page)
    # The weights live to the end. Their first region is at the top or at the bottom, as the system places mappings.
    for y in (3, place["height"] - 4):
        page.mouse.move(place["x"] + place["width"] * 0.9, place["y"] + y)
        drawn(page)
        if "layer 0" in page.locator("#addresses .tip").text_content():
            break
    tip = page.inner_text("#addresses .tip")
    assert tip.startswith("model/layer 0/weights")
    for row in ("size\n6.00 MiB (6,291,456 bytes)", "requested\n6.00 MiB", "address\n0x", "step\n0", "stream\nno stream"):
        assert row in tip, tip
    outline = page.locator("#addresses .map-outline").bounding_box()
    assert outline["width"] > place["width"] * 0.7 and outline["height"] > 5
    # It is within the window.
    tip_box = page.locator("#addresses .tip").bounding_box()
    assert tip_box["x"] >= 0 and tip_box["x"] + tip_box["width"] <= 1280
    page.mouse.move(5, place["y"] - 80)
    drawn(page)
    assert page.locator("#addresses .tip").is_hidden()


def test_the_search_finds_names_and_addresses(page):
    page.fill("#search", "WEIGHTS")
    assert page.inner_text("#found") == "8 chunks, the largest of 6.00 MiB"
    open_table(page, "addresses")
    cells = page.locator("#addresses td:first-child").all_inner_texts()
    assert len(cells) == 8 and all(cell.endswith("/weights") for cell in cells)
    address = page.locator("#addresses td:nth-child(6)").first.inner_text()
    page.fill("#search", address)
    # Memory there belonged to this chunk, from the beginning to the end.
    assert page.inner_text("#found") == "1 chunk, the largest of 6.00 MiB"
    page.fill("#search", "nothing of that name")
    assert page.inner_text("#found") == "0 chunks"


def colors_of_the_map(page):
    return page.evaluate("""() => {
        const canvas = document.querySelector("#addresses canvas");
        const data = canvas.getContext("2d").getImageData(90, 30, canvas.width - 120, canvas.height - 110).data;
        const found = new Map();
        for (let i = 0; i < data.length; i += 4) {
            const key = [data[i], data[i + 1], data[i + 2]].join();
            found.set(key, (found.get(key) ?? 0) + 1);
        }
        return Object.fromEntries(found);
    }""")


def test_chunks_are_colored_by_each_property(page):
    legends = set()
    for coloring in ("operation", "stream", "age", "size"):
        page.select_option("#coloring", coloring)
        drawn(page)
        legends.add(page.inner_text("#map-legend"))
        colors = colors_of_the_map(page)
        assert len(colors) >= (3 if coloring == "stream" else 5), (coloring, colors)
    assert len(legends) == 4
    page.select_option("#coloring", "operation")
    drawn(page)
    # The first colour of Okabe and Ito is that of the largest holder.
    assert colors_of_the_map(page)["0,114,178"] > 1000


def test_the_flame_graph_works_by_keyboard(page):
    root = page.locator(".block").first
    root.focus()
    page.keyboard.press("ArrowDown")
    name = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") != name
    page.keyboard.press("Enter")
    width = page.evaluate("document.activeElement.getBoundingClientRect().width")
    assert width > 0.95 * page.locator(".flame").bounding_box()["width"]
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.textContent").startswith("in use")
    assert "%" in page.evaluate("document.activeElement.getAttribute('aria-label')")


# The luminance of a colour by WCAG 2.
CONTRAST = """(background) => {
    const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const luminance = (color) => {
        const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b] = canvas.getImageData(0, 0, 1, 1).data;
        return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    };
    const style = getComputedStyle(document.documentElement);
    const surface = luminance(style.getPropertyValue(background));
    const names = ["text", "muted", "accent", "limit", "held", "used", "requested", "mark", "bad"];
    return Object.fromEntries(names.map((name) => {
        const other = luminance(style.getPropertyValue(`--${name}`));
        return [name, (Math.max(surface, other) + 0.05) / (Math.min(surface, other) + 0.05)];
    }));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_are_readable(scheme, training, opened):
    page = opened(page_of(training), color_scheme=scheme).ready()
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    contrast = page.evaluate(CONTRAST, "--surface")
    assert min(contrast.values()) >= 4.5, contrast
    blocks = page.evaluate("[...document.querySelectorAll('.block')].map((block) => getComputedStyle(block).color)")
    assert len(blocks) > 5
    other = {"light": "dark", "dark": "light"}[scheme]
    picture = page.locator("#timeline").screenshot()
    page.select_option("#theme", other)
    drawn(page)
    assert page.evaluate("document.documentElement.dataset.theme") == other
    assert page.locator("#timeline").screenshot() != picture


def test_each_figure_has_a_table_and_each_control_a_name(page):
    for section in ("timeline", "addresses", "holders", "fragmentation", "requests"):
        assert open_table(page, section).count() > 3, section
    names = page.evaluate("""[...document.querySelectorAll("button, select, input, .plot")].map(
        (control) => control.getAttribute("aria-label") || control.closest("label")?.textContent || control.textContent)""")
    assert all(name.strip() for name in names) and len(names) > 20


# The controls that are not within the window, and the cells of text whose lines have a few letters only.
CUT_OFF = """() => [...document.querySelectorAll("button, select, input, .card, .entry, .shown")].filter((control) => {
    const { left, right } = control.getBoundingClientRect();
    return left < 0 || right > innerWidth;
}).map((control) => `${control.id || control.className || control.textContent}: ${control.getBoundingClientRect().right}`)"""
SQUEEZED = """() => [...document.querySelectorAll(".scroll td, .scroll th")].filter((cell) => {
    const range = document.createRange();
    // A button's box begins above its text.
    range.selectNodeContents(cell.querySelector("button") ?? cell);
    const lines = new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size;
    return lines > 1 && cell.textContent.length / lines < 6;
}).map((cell) => cell.textContent)"""


def test_a_narrow_window_has_all_of_it(page):
    page.set_viewport_size({"width": 390, "height": 844})
    for section in ("timeline", "addresses", "holders", "fragmentation", "requests"):
        open_table(page, section)
    # The longest choices.
    page.select_option("#moment", index=1)
    drawn(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(CUT_OFF) == []
    assert page.evaluate(SQUEEZED) == []


def work_of_a_zoom(page):
    """How many blocks of script run in 25 steps of the wheel in and 25 out, a frame each: a measure of the page's work that
    does not depend on how busy the machine is."""
    place = box(page)
    page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    drawn(page)
    profiler = page.context.new_cdp_session(page)
    profiler.send("Profiler.enable")
    profiler.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": True})
    for delta in [-120] * 25 + [120] * 25:
        page.mouse.wheel(0, delta)
        drawn(page)
    scripts = profiler.send("Profiler.takePreciseCoverage")["result"]
    profiler.send("Profiler.disable")
    return sum(block["count"] for script in scripts for function in script["functions"] for block in function["ranges"])


def test_ten_times_the_events_zoom_with_little_more_work(many, opened):
    works = []
    for events in (20_000, 200_000):
        page = opened(page_of(many(events))).ready()
        assert f"{events // 1000}," in page.inner_text(".title p")
        works.append(work_of_a_zoom(page))
    print("blocks of script in 50 frames:", *works)
    # Frames that the browser leaves out make the two differ by half. A walk through the events is 200,000 blocks in each frame.
    assert 1_000 < works[0] < 500_000 and works[1] < 3 * works[0]


def test_a_million_events_open_and_take_less_than_a_gibibyte(many, opened):
    history = many(1_000_000)
    path = history.with_suffix(".html")
    # Of the command, and of each other way to write or read such a history.
    for arguments in (["-o", path], ["-o", history.with_suffix(".svg")], ["-o", history.with_suffix(".pickle")], [], ["--leaks"]):
        command = [BFC, "report", history, *arguments]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
            _, status, usage = os.wait4(running.pid, 0)
            running.returncode = os.waitstatus_to_exitcode(status)
        assert (running.returncode, usage.ru_maxrss < 1 << 20) == (0, True), (arguments, usage.ru_maxrss)
        print(*arguments[1:], usage.ru_maxrss >> 10, "MiB")
    page = opened(path).ready()
    assert "1,0" in page.inner_text(".title p") or "999," in page.inner_text(".title p")
