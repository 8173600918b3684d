// The page: its parts, and what the reader can choose.

const STATES = {
  stopped: "the recording was stopped",
  recording: "the process was running, and recorded",
  ended: "the process has ended, by itself or by a signal",
  unknown: "it is not known whether the process still ran",
};

class Report {
  constructor(data, root) {
    this.data = data;
    this.root = root;
    this.view = new View();
    this.live = element("p", { class: "visually-hidden", "aria-live": "polite" });
    this.content = element("main", {});
    root.append(this.header(), this.live, this.content);
    if (data.pools.length) this.showPool(0);
    else this.content.append(element("p", { class: "notice", text: "No allocator was recorded: the history has no events." }));
  }

  /** Tells users of screen readers what has changed. */
  say(text) {
    this.live.textContent = text;
  }

  header() {
    const { summary, pools } = this.data;
    const program = safeName(summary.program) || "unknown program";
    const file = safeName(this.data.file);
    document.title = `Memory of ${program} (process ${summary.process}): ${file}`;
    const began = new Date(summary.began / 1e6).toISOString().replace("T", " ").slice(0, 19);
    const facts = `${plural(summary.events, "event")} in ${timeText(summary.seconds * 1e9)}, from ${began} UTC; ${STATES[summary.state] ?? summary.state}`;
    const chooser = element("select", { id: "pool", onchange: () => this.showPool(Number(chooser.value)) });
    pools.forEach((pool, at) => chooser.append(element("option", { value: at, text: pool.title })));
    const themes = element("select", { id: "theme", onchange: () => setTheme(themes.value) });
    for (const name of ["system", "light", "dark"]) themes.append(element("option", { value: name, text: name }));
    const button = (text, label, act) => element("button", { type: "button", text, title: label, "aria-label": label, onclick: act });
    return element(
      "header",
      {},
      element("div", { class: "title" }, element("h1", {}, "Memory of ", element("bdi", { text: program })), element("p", {}, `Process ${summary.process}, recorded in `, element("bdi", { text: file }), `. ${facts}.`)),
      element(
        "div",
        { class: "toolbar", role: "toolbar", "aria-label": "Shown time" },
        pools.length > 1 ? element("label", {}, "Allocator ", chooser) : null,
        button("←", "Earlier", () => this.view.pan(-0.25)),
        button("→", "Later", () => this.view.pan(0.25)),
        button("+", "Zoom in", () => this.view.zoom(1 / 1.5)),
        button("−", "Zoom out", () => this.view.zoom(1.5)),
        button("Whole time", "Show the whole time", () => (this.map?.reset(), this.view.reset())),
        (this.shown = element("output", { class: "shown" })),
        element("label", {}, "Theme ", themes),
      ),
    );
  }

  /** Shows a pool. */
  showPool(at) {
    const pool = (this.pool = this.data.pools[at]);
    this.view.drawers = [() => this.noteView()];
    this.view.setRange(pool.from, pool.to);
    this.tables = [];
    this.content.replaceChildren(...this.notices(), this.cards());
    this.timeline();
    this.failures();
    this.addresses();
    this.holders();
    this.fragmentation();
    this.requests();
    this.advice();
    this.marks();
    this.content.append(help());
  }

  notices() {
    const { summary, pool } = this;
    const unknown = pool.summary.in_use - pool.summary.known_bytes;
    const { overwritten, incomplete, texts_lost: lost } = this.data.summary;
    const texts = [
      overwritten && `${plural(overwritten, "earlier event")} ${overwritten === 1 ? "was" : "were"} displaced by newer ones, so what they allocated is known only if it was freed later. Record more events with BFC_HISTORY.`,
      incomplete && `${plural(incomplete, "event")} ${incomplete === 1 ? "is" : "are"} missing: the process was writing when the file was read or the process was killed.`,
      lost && `${plural(lost, "name")} did not fit into the file.`,
      unknown > 0 && `${exactText(unknown)} in use at the end were allocated by displaced events.`,
    ];
    return texts.filter(Boolean).map((text) => element("p", { class: "notice", text }));
  }

  cards() {
    const { summary } = this.pool;
    const card = (name, id, bytes, text) =>
      element("div", { class: "card" }, element("dt", { text: name }), element("dd", { id: `figure-${id}`, "data-value": bytes }, bytesText(bytes), text ? element("small", { text }) : null));
    const counted = (name, id, count, text) =>
      element("div", { class: "card" }, element("dt", { text: name }), element("dd", { id: `figure-${id}`, "data-value": count }, countText(count), text ? element("small", { text }) : null));
    const limit = card("Limit", "limit", summary.limit);
    if (limitText(summary.limit) === "none") limit.lastChild.firstChild.textContent = "none";
    const ended = summary.held === 0 && summary.live === 0;
    return element(
      "dl",
      { class: "cards", "aria-label": "Key figures" },
      limit,
      card("Peak in use", "peak", summary.peak.in_use, `after ${timeText(summary.peak.seconds * 1e9)}`),
      card("Most held", "held", summary.peak_held.bytes, `after ${timeText(summary.peak_held.seconds * 1e9)}`),
      card("In use at the end", "in-use", summary.in_use, ended ? "the allocator was destroyed" : `in ${plural(summary.live, "allocation")}`),
      counted("Allocations", "allocations", summary.allocations, plural(summary.frees, "free")),
      counted("Failed requests", "failed", summary.failed),
    );
  }

  /** Adds a section with a chart. */
  section(id, title, about, ...content) {
    const host = element("div", { class: "plot", tabindex: "0", role: "group", "aria-roledescription": "chart", "aria-label": `${title}. Keys: see the end of the page.` });
    const made = element("section", { id, "aria-labelledby": `${id}-title` }, element("h2", { id: `${id}-title`, text: title }), element("p", { class: "about", text: about }), ...content, host);
    this.content.append(made);
    return [host, made];
  }

  addTable(section, title, make) {
    const made = new LazyTable(title, make);
    this.tables.push(made);
    section.append(made.element);
  }

  timeline() {
    const { events } = this.pool;
    const [host, section] = this.section("timeline", "Memory over time", "What callers requested and have not freed, what their chunks take, what the allocator holds, and its limit.");
    const hasLimit = limitText(events.limit.at(-1)) !== "none";
    // A limit that is far away would make a line of all else. It is drawn where it is within the scale.
    const isNear = events.limit.at(-1) <= 4 * this.pool.summary.peak_held.bytes;
    const series = [
      ...(hasLimit ? [{ label: "limit", numbers: events.limit, color: "limit", dash: [6, 4], auto: isNear }] : []),
      { label: "held", numbers: events.held, color: "held", fill: true },
      { label: "in use", numbers: events.in_use, color: "used", fill: true },
      { label: "requested", numbers: events.requested, color: "requested", dash: [2, 2] },
    ];
    new Chart(this, host, { height: 300, series, axis: "memory", format: bytesText, steps: BYTE_STEPS });
    this.addTable(section, "Memory over time as a table", () => seriesTable(this, "Memory at moments of the shown time", series, bytesText));
  }

  failures() {
    if (!this.pool.failures.length) return;
    this.content.append(element("section", { id: "failures", "aria-labelledby": "failures-title" }, element("h2", { id: "failures-title", text: "Out of memory" }), failuresTable(this)));
  }

  /** Shows the time around an event in the charts, and the holders at it. */
  showMoment(event) {
    const time = this.pool.events.time[event];
    const around = (this.pool.to - this.pool.from) / 20;
    this.view.show(time - around, time + around);
    this.showHoldersAt(time);
    document.getElementById("timeline").scrollIntoView();
  }

  addresses() {
    const coloring = element("select", { id: "coloring" });
    for (const name of coloringsOf(this.pool)) coloring.append(element("option", { value: name, text: COLORINGS[name] }));
    const search = element("input", { type: "search", id: "search", placeholder: "operation, function or 0x address", autocomplete: "off", spellcheck: "false" });
    const result = element("output", { id: "found", for: "search" });
    const legend = element("div", { class: "legend", id: "map-legend" });
    const [host, section] = this.section(
      "addresses",
      "Address space over time",
      "Each rectangle is a chunk: its width is its life, its height its size. The background is free memory inside regions, and hatched where nothing is held.",
      element("div", { class: "controls" }, element("label", {}, "Color by ", coloring), element("label", {}, "Find ", search), result),
    );
    section.querySelector(".about").textContent =
      "Each rectangle is a chunk: as wide as its life, as high as its size. Around them is free memory inside of regions, and darker what the allocator did not hold. Drag to zoom.";
    const map = (this.map = new AddressMap(this, host, 460));
    const update = () => {
      map.recolor();
      legend.replaceChildren(...map.legend());
      const bytes = map.found.reduce((sum, i) => Math.max(sum, this.pool.chunks.bytes[i]), 0);
      result.textContent = map.query.trim() ? `${plural(map.found.length, "chunk")}${bytes ? `, the largest of ${bytesText(bytes)}` : ""}` : "";
      for (const made of this.tables) made.update();
    };
    coloring.addEventListener("change", () => ((map.coloring = coloring.value), update()));
    search.addEventListener("input", () => ((map.query = search.value), update()));
    section.append(legend);
    update();
    this.updateMap = update;
    this.addTable(section, "Chunks as a table", () => chunksTable(this));
  }

  holders() {
    const { pool } = this;
    const moments = element("select", { id: "moment" });
    const option = (event, text) => moments.append(element("option", { value: event, text: `${text}, ${timeText(pool.events.time[event])}` }));
    option(pool.peak, "peak in use");
    pool.failures.slice(0, 50).forEach(({ event, requested }, at) => option(event, `out of memory ${at + 1}: ${bytesText(requested)} requested`));
    pool.marks.filter(({ event }) => event >= 0).slice(0, 200).forEach(({ event, text }) => option(event, `mark: ${text}`));
    option(pool.count - 1, "end");
    const groupings = element("select", { id: "grouping" });
    const ways = groupingsOf(pool);
    for (const name of Object.keys(ways)) groupings.append(element("option", { value: name, text: name }));
    const host = element("div", { class: "flame", role: "group", "aria-label": "Flame graph. Arrow keys move, Enter zooms in, Escape zooms out." });
    const total = element("p", { class: "about", id: "holders-total" });
    const section = element(
      "section",
      { id: "holders", "aria-labelledby": "holders-title" },
      element("h2", { id: "holders-title", text: "Who holds the memory" }),
      element("p", { class: "about", text: "Blocks are as wide as what they hold. Those below a block are parts of it. A click zooms in." }),
      element("div", { class: "controls" }, element("label", {}, "At ", moments), element("label", {}, "By ", groupings)),
      total,
      host,
    );
    this.content.append(section);
    const flame = new Flame(this, host);
    let tree;
    const update = () => {
      const event = Number(moments.value);
      tree = holdersTree(pool, event, ways[groupings.value]);
      flame.show(tree);
      const live = `${exactText(tree.bytes)} in use in ${plural(tree.count, "allocation")}`;
      total.textContent = `${live}, ${bytesText(pool.events.held[event])} held, largest free piece ${bytesText(pool.events.largest_free[event])}.`;
      for (const made of this.tables) made.update();
    };
    moments.addEventListener("change", update);
    groupings.addEventListener("change", update);
    this.addTable(section, "Holders as a table", () => holdersTable(tree));
    update();
    this.updateHolders = update;
    this.showHoldersAt = (time) => {
      const event = pool.eventAt(time);
      if (event < 0) return;
      moments.querySelector("[data-cursor]")?.remove();
      option(event, "cursor");
      moments.lastChild.dataset.cursor = "";
      moments.selectedIndex = moments.options.length - 1;
      update();
      this.say(`Holders at ${timeText(time)}: ${total.textContent}`);
    };
  }

  fragmentation() {
    const { pool } = this;
    const [host, section] = this.section("fragmentation", "Fragmentation over time", "The share of the free memory that lies outside of its largest piece: 0% means that all free memory is in one piece. And how much of what is held is in use.");
    const each = (of) => Float64Array.from({ length: pool.count }, (_, event) => of(event) || 0);
    const series = [
      { label: "1 − largest free / free", numbers: each((event) => pool.fragmentation(event)), color: "bad" },
      { label: "in use / held", numbers: each((event) => pool.usage(event)), color: "held" },
    ];
    new Chart(this, host, { height: 220, series, axis: "share", format: percentText, most: 1 });
    this.addTable(section, "Fragmentation as a table", () => seriesTable(this, "Fragmentation at moments of the shown time", series, percentText));
  }

  requests() {
    const { pool } = this;
    const [host, section] = this.section("requests", "Largest free piece and requests", "A request that is above the line needs more memory from the device. Each dot is a request, and a cross is one that failed.");
    const { events } = pool;
    const series = [
      { label: "largest free piece", numbers: events.largest_free, color: "requested", fill: true },
      // Its points are drawn below: there is no line between requests.
      { label: "request", numbers: events.request, color: "used", paths: () => null },
    ];
    const draw = (u) => drawRequests(u, pool);
    new Chart(this, host, { height: 240, series, axis: "size", format: bytesText, steps: BYTE_STEPS, draw });
    this.addTable(section, "Requests as a table", () => seriesTable(this, "Requests at moments of the shown time", series, bytesText));
  }

  /** What other settings would have needed, if the command has computed it. */
  advice() {
    const found = this.data.summary.advice?.pools.find(({ device, name }) => device === this.pool.device && safeName(name) === this.pool.name);
    if (!found) return;
    const about = "The run was replayed with other options. The first row has those of the run, and the others follow by the lowest limit without a failed request.";
    const notes = found.notes.map((note) => element("p", { class: "about", text: note }));
    this.content.append(
      element("section", { id: "advice", "aria-labelledby": "advice-title" }, element("h2", { id: "advice-title", text: "What would have helped" }), element("p", { class: "about", text: about }), ...notes, adviceTable(found)),
    );
  }

  marks() {
    const { marks } = this.data.summary;
    if (!marks.length) return;
    this.content.append(element("section", { id: "marks", "aria-labelledby": "marks-title" }, element("h2", { id: "marks-title", text: "Marks" }), marksTable(marks)));
  }

  /** What is shown has changed. */
  noteView() {
    const { from, to, full } = this.view;
    this.shown.textContent = this.view.isWhole ? "" : `${timeText(from, (to - from) / 100)} to ${timeText(Math.min(to, full.to), (to - from) / 100)}`;
    for (const made of this.tables) if (made.element.open) this.updateTablesSoon();
  }

  /** Tables follow when the reader pauses. */
  updateTablesSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.tables.forEach((made) => made.update()), 200);
  }

  /** Draws again with the colours of another theme. */
  repaint() {
    readTheme();
    this.updateMap?.();
    this.updateHolders?.();
    this.view.redraw();
  }
}

/** Draws the sizes of requests as points, and failed ones as crosses. */
function drawRequests(u, pool) {
  const { ctx, data } = u;
  const [times, , requests] = data;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
  ctx.clip();
  ctx.fillStyle = theme.used;
  for (let i = 0; i < times.length; i++) {
    if (requests[i] > 0) ctx.fillRect(u.valToPos(times[i], "x", true) - ratio, u.valToPos(requests[i], "y", true) - ratio, 2 * ratio, 2 * ratio);
  }
  ctx.strokeStyle = theme.bad;
  ctx.lineWidth = 2 * ratio;
  ctx.beginPath();
  for (const { event, requested } of pool.failures.slice(0, 1000)) {
    const [x, y] = [u.valToPos(pool.events.time[event], "x", true), u.valToPos(requested, "y", true)];
    for (const by of [-4 * ratio, 4 * ratio]) {
      ctx.moveTo(x - 4 * ratio, y - by);
      ctx.lineTo(x + 4 * ratio, y + by);
    }
  }
  ctx.stroke();
  ctx.restore();
}

function help() {
  const keys = [
    ["← →", "earlier, later"],
    ["+ −", "zoom the time"],
    ["0", "show all"],
    ["↑ ↓ [ ]", "move and zoom the addresses"],
    ["Shift and arrows", "move the cursor, which reads values"],
    ["Enter", "show who holds the memory at the cursor"],
    ["Drag, double click", "zoom in, show all"],
    ["Wheel", "zoom, in a chart that was clicked or with Ctrl; with Shift the addresses"],
  ];
  const rows = keys.flatMap(([key, text]) => [element("dt", { text: key }), element("dd", { text })]);
  return element("footer", {}, element("h2", { text: "Keys in a chart" }), element("dl", { class: "keys" }, ...rows), element("p", { text: "This page is one file and loads nothing. Made by libbfc's bfc report, with uPlot (MIT) and d3-hierarchy (ISC)." }));
}

let report;

/** Sets the theme, or that of the system. */
function setTheme(name) {
  const isDarkNow = name === "dark" || (name === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = isDarkNow ? "dark" : "light";
  document.documentElement.dataset.choice = name;
  readTheme();
  report?.repaint();
}

function begin() {
  setTheme("system");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (document.documentElement.dataset.choice === "system") setTheme("system");
  });
  const root = document.getElementById("report");
  readData().then(
    (data) => {
      report = new Report(data, root);
      document.documentElement.dataset.ready = "";
    },
    (error) => root.append(element("p", { class: "notice", text: `This page is damaged: ${error.message}. Make it again with bfc report.` })),
  );
}

begin();
