// The figures of each chart as a table.

/** How many moments or chunks a table shows. */
const MOST_TABLE_ROWS = 100;

/** A table whose columns are `[heading, isNumber]`. A cell is a text or an element. */
function table(caption, columns, rows) {
  const head = columns.map(([text, isNumber]) => element("th", { scope: "col", text, ...(isNumber && { class: "number" }) }));
  const body = rows.map((row) =>
    element("tr", {}, ...row.map((cell, at) => element("td", columns[at][1] ? { class: "number" } : {}, cell instanceof Node || columns[at][1] ? cell : element("bdi", { text: cell })))),
  );
  return element(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
    element("table", {}, element("caption", { text: caption }), element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)),
  );
}

/** A table that is made when it is opened, and again when what it shows has changed. */
class LazyTable {
  constructor(title, make) {
    this.make = make;
    this.element = element("details", { class: "table" }, element("summary", { text: title }));
    this.element.addEventListener("toggle", () => this.update());
  }

  update() {
    if (!this.element.open) return;
    this.element.querySelector(".scroll")?.remove();
    this.element.append(this.make());
  }
}

/** Moments of the shown time: its ends, steps of equal length, the peak, failed requests and marks. */
function momentsInView(report) {
  const { pool, view } = report;
  const found = new Map();
  const add = (event, what) => {
    if (event < 0 || event >= pool.count) return;
    const time = pool.events.time[event];
    if (time < view.from || time > view.to) return;
    found.set(event, found.has(event) && found.get(event) ? found.get(event) : what);
  };
  add(pool.peak, "peak in use");
  pool.failures.slice(0, 30).forEach(({ event }) => add(event, "out of memory"));
  pool.marks.slice(0, 30).forEach(({ event, text }) => add(event, `mark: ${text}`));
  for (let i = 0; i <= 20; i++) add(pool.eventAt(view.from + ((view.to - view.from) * i) / 20), "");
  add(lowerBound(pool.events.time, view.from), "");
  return [...found].sort(([a], [b]) => a - b);
}

/** A table of series over the shown time. */
function seriesTable(report, caption, series, format) {
  const columns = [["time", true], ["event", true], ...series.map(({ label }) => [label, true]), ["moment", false]];
  const rows = momentsInView(report).map(([event, what]) => [
    timeText(report.pool.events.time[event]),
    countText(report.pool.events.number[event]),
    ...series.map(({ numbers }) => format(numbers[event], event)),
    what,
  ]);
  return table(caption, columns, rows);
}

/** The largest chunks of the shown time and addresses. */
function chunksTable(report) {
  const { pool, view, map } = report;
  const { from, to, place, bytes } = pool.chunks;
  let shown = [];
  for (let i = 0; i < from.length; i++) {
    if (to[i] < view.from || from[i] > view.to || place[i] >= map.high || place[i] + bytes[i] <= map.low) continue;
    shown.push(i);
  }
  if (map.query) {
    const found = new Set(map.found);
    shown = shown.filter((i) => found.has(i));
  }
  const count = shown.length;
  shown.sort((a, b) => bytes[b] - bytes[a] || from[a] - from[b]);
  const columns = [["allocated by", false], ["size", true], ["requested", true], ["allocated", true], ["freed", true], ["address", true], ["stream", false], ["step", true]];
  const rows = shown.slice(0, MOST_TABLE_ROWS).map((i) => {
    const known = pool.chunks.is_known[i] === 1;
    return [
      map.nameOf(i),
      bytesText(bytes[i]),
      known ? bytesText(pool.chunks.requested[i]) : "–",
      known ? timeText(from[i]) : "–",
      to[i] === Infinity ? "not freed" : timeText(to[i]),
      pool.addressText(place[i]),
      pool.streams[pool.chunks.stream[i]],
      known ? countText(pool.chunks.step[i]) : "–",
    ];
  });
  const caption = count > rows.length ? `The largest ${rows.length} of ${plural(count, "chunk")} shown above` : `${plural(count, "chunk")} shown above, the largest first`;
  return table(caption, columns, rows);
}

/** The rows of a flame graph, the largest first, with the path of each. */
function holdersTable(tree) {
  const rows = [];
  const visit = (node, path) => {
    for (const child of node.children.values()) {
      const names = [...path, child.name];
      rows.push([names.join(" › "), child]);
      visit(child, names);
    }
  };
  visit(tree, []);
  rows.sort(([, a], [, b]) => b.bytes - a.bytes);
  const columns = [["holder", false], ["bytes", true], ["exactly", true], ["allocations", true], ["share of what is in use", true]];
  return table(
    rows.length > MOST_TABLE_ROWS ? `The largest ${MOST_TABLE_ROWS} of ${countText(rows.length)} holders` : "Holders, the largest first",
    columns,
    rows.slice(0, MOST_TABLE_ROWS).map(([path, { bytes, count }]) => [path, bytesText(bytes), countText(bytes), countText(count), percentText(bytes / Math.max(tree.bytes, 1))]),
  );
}

/** A single frame, `function (file:line)`, without the folder of the file, whose name may have parentheses. */
function withoutFolder(frame) {
  return frame.replace(/ \((\/.*\/)([^/]*\))$/, " ($2");
}

/** The failed requests of a pool. Their times are buttons, which show that time in the charts. */
function failuresTable(report) {
  const { pool } = report;
  const columns = [["time", true], ["requested", true], ["largest free chunk", true], ["in use", true], ["held", true], ["limit", true], ["cause", false], ["operation", false]];
  const shown = pool.failures.slice(0, MOST_TABLE_ROWS);
  const rows = shown.map(({ event, requested, largest_free: largest, cause, operation }) => {
    const { time, in_use: inUse, held, limit } = pool.events;
    const show = element("button", { type: "button", text: timeText(time[event]), title: "Show this time in the charts", onclick: () => report.showMoment(event) });
    return [show, exactText(requested), exactText(largest), bytesText(inUse[event]), bytesText(held[event]), limitText(limit[event]), cause, pool.operations[operation]];
  });
  const more = pool.failures.length > rows.length ? `, the first ${rows.length}` : "";
  const made = table(`${plural(pool.failures.length, "failed request")}${more}`, columns, rows);
  const haveStacks = shown.some(({ stack }) => stack !== 0);
  made.querySelectorAll("tbody tr").forEach((row, at) => {
    const { stack } = shown[at];
    // The innermost frame first and without folders, as in the report for a terminal. A column would be too narrow.
    const calls = pool.stacks[stack].map(withoutFolder).reverse().join(" < ");
    if (haveStacks) row.after(element("tr", {}, element("td", { colspan: columns.length }, "requested by ", element("bdi", { text: calls }))));
  });
  return made;
}

const OUTCOMES = { none: "no request fails", "none-in-replay": "none in the replay", remains: "remains", unknown: "not known" };

/** What other options would have done to a pool. */
function adviceTable({ changes }) {
  const columns = [["change", false], ["setting", false], ["out of memory", false], ["most held", true], ["held / wanted", true], ["lowest limit", true]];
  const rows = changes.map(({ change, set, out_of_memory: outcome, peak_held: held, overhead, lowest_limit: lowest, error }) => [
    safeName(change),
    safeName([set.run, set.variable, set.option].find(Boolean) ?? "–"),
    error ? safeName(error) : (OUTCOMES[outcome] ?? safeName(outcome)),
    held === null ? "–" : bytesText(held),
    overhead === null ? "–" : overhead.toFixed(3),
    lowest === null ? "–" : bytesText(lowest),
  ]);
  return table("Options, replayed", columns, rows);
}

/** What is allocated between marks and stays. */
function marksTable(marks) {
  const columns = [["time", true], ["mark", false], ["in use", true], ["held", true], ["allocated since the previous mark, and live", true], ["in allocations", true]];
  const rows = marks.slice(0, MOST_TABLE_ROWS).map((mark) => [
    timeText(mark.seconds * 1e9),
    safeName(mark.name),
    bytesText(mark.in_use),
    bytesText(mark.held),
    bytesText(mark.kept_bytes),
    countText(mark.kept_allocations),
  ]);
  const more = marks.length > rows.length ? `, the first ${rows.length}` : "";
  return table(`${plural(marks.length, "mark")} of all allocators${more}`, columns, rows);
}

function limitText(limit) {
  return limit >= 2 ** 50 ? "none" : bytesText(limit);
}
