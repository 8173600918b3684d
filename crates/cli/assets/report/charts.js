// The charts, which uPlot draws, and the time that all of them show.

/** The part of the recording that is shown. Charts of it are drawn at most once a frame. */
class View {
  constructor() {
    this.drawers = [];
    this.isPending = false;
    this.setRange(0, 1);
  }

  /** Sets the range of all times of a pool, and shows all of it. */
  setRange(from, to) {
    // A little room after the last event, so that a history of one event has a width at all.
    const length = Math.max((to - from) * 1.01, 1000);
    this.full = { from, to: from + length };
    this.show(from, from + length);
  }

  show(from, to) {
    const { full } = this;
    const length = Math.min(Math.max(to - from, 10), full.to - full.from);
    this.from = Math.min(Math.max(from, full.from), full.to - length);
    this.to = this.from + length;
    this.redraw();
  }

  /** Zooms by a factor: below 1 shows less. `anchor` stays where it is. */
  zoom(factor, anchor = (this.from + this.to) / 2) {
    this.show(anchor - (anchor - this.from) * factor, anchor + (this.to - anchor) * factor);
  }

  pan(share) {
    const by = (this.to - this.from) * share;
    this.show(this.from + by, this.to + by);
  }

  reset() {
    this.show(this.full.from, this.full.to);
  }

  get isWhole() {
    return this.from <= this.full.from && this.to >= this.full.to;
  }

  redraw() {
    if (this.isPending) return;
    this.isPending = true;
    requestAnimationFrame(() => {
      this.isPending = false;
      for (const drawer of this.drawers) drawer();
    });
  }
}

/** Colours of the style sheet that charts need in each frame. */
const theme = {};

function readTheme() {
  for (const name of ["text", "muted", "grid", "surface", "free", "unheld", "requested", "used", "held", "limit", "mark", "step", "bad"]) {
    theme[name] = themeColor(`--${name}`);
  }
  theme.isDark = isDark();
}

const FONT = "12px system-ui, sans-serif";
// Powers of two, so that ticks are round in binary units.
const BYTE_STEPS = Array.from({ length: 60 }, (_, power) => 2 ** power);
// In nanoseconds. Without 25 and 250, so that ticks need no more digits than their distance has.
const TIME_STEPS = Array.from({ length: 18 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

/** The moments that vertical lines show, those that matter most first. */
function momentsOf(pool) {
  const failures = pool.failures.map(({ event }) => ({ event, time: pool.events.time[event], text: "out of memory" }));
  return [
    { moments: failures, color: "bad", dash: [], label: true },
    { moments: pool.marks, color: "mark", dash: [], label: true },
    { moments: pool.steps, color: "step", dash: [2, 3], label: true },
  ];
}

/** Draws vertical lines at moments, with labels above the plot where there is room. */
function drawMoments(u, kinds) {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio;
  const { min, max } = u.scales.x;
  const taken = [];
  ctx.save();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  ctx.textBaseline = "bottom";
  ctx.lineWidth = ratio;
  for (const { moments, color, dash, label } of kinds) {
    ctx.strokeStyle = ctx.fillStyle = theme[color];
    ctx.setLineDash(dash.map((length) => length * ratio));
    ctx.beginPath();
    let before = -Infinity;
    let labels = 0;
    for (let i = firstMoment(moments, min); i < moments.length && moments[i].time <= max; i++) {
      const x = Math.round(u.valToPos(moments[i].time, "x", true)) + 0.5;
      // More lines than this are a grey area.
      if (x - before < 3 * ratio) continue;
      before = x;
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      if (!label || labels > 40) continue;
      const text = moments[i].text.slice(0, 24);
      const [from, to] = [x - 2, x + ctx.measureText(text).width + 6 * ratio];
      if (to > bbox.left + bbox.width + 30 * ratio || taken.some((other) => other[0] < to && from < other[1])) continue;
      taken.push([from, to]);
      labels++;
      ctx.fillText(text, x, bbox.top - 2 * ratio);
    }
    ctx.stroke();
  }
  ctx.restore();
}

function firstMoment(moments, time) {
  let [from, to] = [0, moments.length];
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (moments[middle].time < time) from = middle + 1;
    else to = middle;
  }
  return from;
}

function axis(label, more) {
  return {
    stroke: () => theme.text,
    grid: { stroke: () => theme.grid, width: 1 },
    ticks: { stroke: () => theme.grid, width: 1 },
    font: FONT,
    labelFont: FONT,
    label,
    labelSize: 20,
    ...more,
  };
}

function timeAxis() {
  const values = (u, splits, axis, space, step) => splits.map((time) => (time === 0 ? "0" : timeText(time, step)));
  return axis("time since the recording began", { size: 34, space: 90, incrs: TIME_STEPS, values });
}

function valueAxis(label, format, steps) {
  const values = (u, splits) => splits.map(format);
  return axis(label, { size: 76, ...(steps && { incrs: steps }), values });
}

/** What all charts share: the cursor, the wheel, the keyboard, and the size. */
class Plot {
  /** `options` are uPlot's. `host` is the element with the focus. */
  constructor(report, host, height, options, data) {
    this.report = report;
    this.host = host;
    this.height = height;
    this.isVisible = true;
    const { view } = report;
    this.plot = new uPlot(
      {
        width: Math.max(host.clientWidth, 300),
        height,
        padding: [20, 18, 0, 0],
        ...options,
        cursor: {
          sync: { key: "report", setSeries: false, scales: ["x", null] },
          focus: { prox: -1 },
          drag: { x: true, y: false, setScale: false },
          bind: { dblclick: () => () => (this.reset(), null) },
          ...options.cursor,
        },
        hooks: {
          ...options.hooks,
          setSelect: [(u) => this.select(u)],
        },
      },
      data,
      host,
    );
    this.plot.over.addEventListener(
      "wheel",
      (event) => {
        // The wheel scrolls the page past a chart that does not have the focus.
        if (!event.ctrlKey && !event.metaKey && document.activeElement !== host) return;
        event.preventDefault();
        const { left, top } = this.plot.over.getBoundingClientRect();
        this.zoomAt(1.0015 ** Math.max(-400, Math.min(400, event.deltaY)), event.clientX - left, event.clientY - top, event.shiftKey);
      },
      { passive: false },
    );
    this.plot.over.addEventListener("mousedown", () => host.focus({ preventScroll: true }));
    host.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => {
      const width = Math.max(host.clientWidth, 300);
      if (width !== this.plot.width) this.plot.setSize({ width, height });
    }).observe(host);
    // Charts that are not on the screen are drawn when they come there.
    new IntersectionObserver(([entry]) => {
      this.isVisible = entry.isIntersecting;
      if (this.isVisible) view.redraw();
    }, { rootMargin: "100px" }).observe(host);
    view.drawers.push(() => this.isVisible && this.draw());
  }

  select(u) {
    const { left, width } = u.select;
    if (width < 4) return;
    this.report.view.show(u.posToVal(left, "x"), u.posToVal(left + width, "x"));
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  zoomAt(factor, left) {
    this.report.view.zoom(factor, this.plot.posToVal(left, "x"));
  }

  reset() {
    this.report.view.reset();
  }

  /** The keys of the page's help. */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { view } = this.report;
    const anchor = this.plot.cursor.left >= 0 ? this.plot.posToVal(this.plot.cursor.left, "x") : undefined;
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const upwards = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (event.shiftKey && (sideways || upwards)) this.moveCursor(sideways ?? 0, upwards ?? 0);
    else if (sideways) view.pan(0.1 * sideways);
    else if (upwards) {
      if (!this.panValues(-upwards)) return;
    } else if (event.key === "+" || event.key === "=") view.zoom(1 / 1.5, anchor);
    else if (event.key === "-") view.zoom(1.5, anchor);
    else if (event.key === "0" || event.key === "Home") this.reset();
    else if (event.key === "Enter" && anchor !== undefined) this.report.showHoldersAt(anchor);
    else return;
    event.preventDefault();
  }

  panValues() {
    return false;
  }

  /** Moves the cursor by a hundredth of the plot. */
  moveCursor(sideways, upwards) {
    const { cursor, over } = this.plot;
    const [width, height] = [over.clientWidth, over.clientHeight];
    const place = (now, by, size) => Math.min(Math.max((now >= 0 ? now : size / 2) + (by * size) / 100, 0), size - 1);
    this.plot.setCursor({ left: place(cursor.left, sideways, width), top: place(cursor.top, upwards, height) });
    this.report.say(this.cursorText());
  }

  cursorText() {
    return "";
  }
}

/** A chart of values over time. Each series has `label`, `numbers`, `color`, and what else uPlot knows. */
class Chart extends Plot {
  constructor(report, host, { height, series, axis, format, steps, most, draw }) {
    const { pool } = report;
    const sampler = new Sampler(pool.events.time, series.map(({ numbers }) => numbers));
    const kinds = momentsOf(pool);
    const exact = (at) => (u) => {
      const { left } = u.cursor;
      const event = left >= 0 ? pool.eventAt(u.posToVal(left, "x")) : -1;
      return event < 0 ? "–" : format(series[at].numbers[event], event);
    };
    super(
      report,
      host,
      height,
      {
        scales: {
          x: { time: false, range: (u, min, max) => [min, max] },
          y: { range: (u, min, max) => [0, most ?? Math.max(1, max * 1.05)] },
        },
        axes: [timeAxis(), valueAxis(axis, format === percentText ? (v) => `${Math.round(v * 100)}%` : bytesTick, steps)],
        series: [
          {
            label: "time",
            value: (u) => (u.cursor.left >= 0 ? timeText(u.posToVal(u.cursor.left, "x"), (report.view.to - report.view.from) / 1000) : "–"),
          },
          ...series.map(({ label, color, fill, numbers, ...more }, at) => ({
            label,
            stroke: () => theme[color],
            ...(fill && { fill: () => `${theme[color]}30` }),
            width: 1.5,
            paths: uPlot.paths.stepped({ align: 1 }),
            points: { show: false },
            value: exact(at),
            ...more,
          })),
        ],
        hooks: { draw: [(u) => (draw?.(u), drawMoments(u, kinds))] },
      },
      sampler.between(report.view.from, report.view.to),
    );
    this.sampler = sampler;
    this.series = series;
    this.format = format;
    this.draw();
  }

  draw() {
    const { from, to } = this.report.view;
    const data = this.sampler.between(from, to);
    this.plot.batch((u) => {
      u.setData(data, false);
      u.setScale("x", { min: from, max: to });
    });
  }

  cursorText() {
    const { pool } = this.report;
    const time = this.plot.posToVal(this.plot.cursor.left, "x");
    const event = pool.eventAt(time);
    if (event < 0) return `${timeText(time)}: before the first event`;
    const values = this.series.map(({ label, numbers }) => `${label} ${this.format(numbers[event], event)}`);
    return `${timeText(time)}: ${values.join(", ")}`;
  }
}
