// The address space over time: a rectangle for the life of each chunk. uPlot draws the axes; the rectangles are pixels of an
// image, because a canvas takes too long for hundreds of thousands of them. Lives are disjoint, so each pixel is written about
// once, however many there are.

const UNKNOWN = "#b04a4a";
/** How many frames of a backtrace a chunk shows, from the innermost. */
const MOST_FRAMES = 8;
const COLORINGS = { operation: "operation", backtrace: "backtrace", stream: "stream", age: "lifetime", size: "size" };

/** The colorings that tell chunks of a pool apart, the best first. */
function coloringsOf(pool) {
  const isThere = { operation: pool.hasOperations, backtrace: pool.hasStacks };
  const there = Object.keys(COLORINGS).filter((name) => isThere[name] ?? true);
  return [pool.property, ...there.filter((name) => name !== pool.property)];
}

class AddressMap extends Plot {
  constructor(report, host, height) {
    const { pool } = report;
    super(
      report,
      host,
      height,
      {
        legend: { show: false },
        scales: {
          x: { time: false, range: (u, min, max) => [min, max] },
          y: { auto: false, range: () => [this.low ?? 0, this.high ?? pool.extent] },
        },
        axes: [
          { ...timeAxis(), grid: { show: false } },
          { ...valueAxis("regions, stacked by address", bytesTick, BYTE_STEPS), grid: { show: false } },
        ],
        series: [{}, { points: { show: false } }],
        cursor: { drag: { x: true, y: true, uni: 24, setScale: false }, points: { show: false } },
        hooks: {
          drawClear: [(u) => this.paint(u)],
          draw: [(u) => drawMoments(u, this.kinds)],
          setCursor: [() => this.hover()],
        },
      },
      [[report.view.from, report.view.to], [null, null]],
    );
    this.pool = pool;
    this.kinds = momentsOf(pool);
    [this.low, this.high] = [0, pool.extent];
    this.coloring = pool.property;
    this.query = "";
    this.outline = element("div", { class: "map-outline", hidden: "" });
    this.tip = element("div", { class: "tip", hidden: "" });
    this.plot.over.append(this.outline);
    host.append(this.tip);
    this.rank();
    this.recolor();
  }

  /** Names get colours in the order of what they hold at the peak, and then over all. */
  rank() {
    const { pool } = this;
    const order = (property, names) => {
      const atPeak = new Float64Array(names.length);
      const inAll = new Float64Array(names.length);
      pool.eachLive(pool.peak, (i) => (atPeak[pool.chunks[property][i]] += pool.chunks.bytes[i]));
      pool.chunks[property].forEach((name, i) => (inAll[name] += pool.chunks.bytes[i]));
      const all = Array.from(names.keys()).filter((name) => inAll[name] > 0);
      all.sort((a, b) => atPeak[b] - atPeak[a] || inAll[b] - inAll[a]);
      return { all, atPeak, ranks: Object.fromEntries(all.map((name, rank) => [name, rank])) };
    };
    this.byOperation = order("operation", pool.operations);
    this.byStream = order("stream", pool.streams);
    this.byStack = order("stack", pool.callers);
    const { from, to } = pool.chunks;
    this.ages = from.map((begin, i) => Math.min(to[i], pool.to) - begin);
    this.longest = Math.max(1000, pool.to - pool.from);
    this.greatest = pool.chunks.bytes.reduce((most, bytes) => Math.max(most, bytes), 512);
  }

  /** The colour of a chunk. */
  colorOf(i) {
    const { chunks } = this.pool;
    if (!chunks.is_known[i]) return UNKNOWN;
    switch (this.coloring) {
      case "age":
        return cividis(Math.log(Math.max(this.ages[i], 1000) / 1000) / Math.log(this.longest / 1000));
      case "size":
        return cividis(Math.log(Math.max(chunks.bytes[i], 256) / 256) / Math.log(this.greatest / 256));
      case "stream":
        return this.colorOfRank(this.byStream.ranks[chunks.stream[i]]);
      case "backtrace":
        return this.colorOfRank(this.byStack.ranks[chunks.stack[i]]);
      default:
        return this.colorOfRank(this.byOperation.ranks[chunks.operation[i]]);
    }
  }

  colorOfRank(rank) {
    return OKABE_ITO[rank] ?? (theme.isDark ? OTHERS.dark : OTHERS.light);
  }

  /** Sets the colour of each chunk: by the coloring, and dim if the search does not find it. */
  recolor() {
    const { pool } = this;
    const query = this.query.trim().toLowerCase();
    const names = pool.operations.map((name) => name.toLowerCase().includes(query));
    const address = /^0x[0-9a-f]+$/.test(query) ? this.placeOf(BigInt(query)) : NaN;
    const pixels = new Map();
    const pixel = (color, isFound) => {
      const key = isFound ? color : `-${color}`;
      if (!pixels.has(key)) pixels.set(key, pixelOf(isFound ? color : mixed(color, theme.free, 0.16)));
      return pixels.get(key);
    };
    const functions = query ? pool.stacks.map((frames) => frames.some((frame) => frame.toLowerCase().includes(query))) : [];
    const { operation, stack, place, bytes } = pool.chunks;
    this.found = [];
    this.pixels = Uint32Array.from(operation, (name, i) => {
      const isFound = !query || names[name] || functions[stack[i]] || (place[i] <= address && address < place[i] + bytes[i]);
      if (query && isFound) this.found.push(i);
      return pixel(this.colorOf(i), isFound);
    });
    this.report.view.redraw();
  }

  /** The place of an address in the stack of spans. */
  placeOf(address) {
    const span = this.pool.spans.find(({ address: from, bytes }) => BigInt(from) <= address && address < BigInt(from) + BigInt(bytes));
    return span ? span.offset + Number(address - BigInt(span.address)) : NaN;
  }

  draw() {
    const { from, to } = this.report.view;
    this.plot.batch((u) => {
      u.setScale("x", { min: from, max: to });
      u.setScale("y", { min: this.low, max: this.high });
    });
  }

  redrawAll() {
    this.image = null;
    this.plot.redraw(false, true);
  }

  /** Draws all lives into an image. */
  paint(u) {
    const { pool, pixels } = this;
    if (!pixels) return;
    const { ctx, bbox } = u;
    const [width, height] = [Math.round(bbox.width), Math.round(bbox.height)];
    if (width < 1 || height < 1) return;
    if (this.image?.width !== width || this.image.height !== height) {
      this.image = ctx.createImageData(width, height);
      this.words = new Uint32Array(this.image.data.buffer);
    }
    this.words.fill(pixelOf(theme.unheld));
    const free = pixelOf(theme.free);
    this.paintLives(pool.regions, width, height, () => free, true);
    this.paintLives(pool.chunks, width, height, (i) => pixels[i], false);
    ctx.putImageData(this.image, Math.round(bbox.left), Math.round(bbox.top));
  }

  paintLives({ from, to, place, bytes }, width, height, pixelAt, areRegions) {
    const { words, low, high } = this;
    const view = this.report.view;
    const [begin, end] = [view.from, view.to];
    const scaleX = width / (end - begin);
    const scaleY = height / (high - low);
    for (let i = 0; i < from.length; i++) {
      if (to[i] < begin || from[i] > end || place[i] >= high || place[i] + bytes[i] <= low) continue;
      let left = ((from[i] - begin) * scaleX) | 0;
      let right = to[i] >= end ? width : ((to[i] - begin) * scaleX) | 0;
      // Addresses grow upwards.
      let top = place[i] + bytes[i] >= high ? 0 : ((high - place[i] - bytes[i]) * scaleY) | 0;
      let bottom = place[i] <= low ? height : ((high - place[i]) * scaleY) | 0;
      if (left < 0) left = 0;
      // The border between neighbours is the background, where there is room for one.
      if (right - left > 6 && right < width && !areRegions) right--;
      if (bottom - top > 5 && top > 0) top++;
      if (right <= left) right = left + 1;
      if (bottom <= top) bottom = top + 1;
      if (right > width) right = width;
      if (bottom > height) bottom = height;
      const pixel = pixelAt(i);
      if (right - left < 16) {
        for (let y = top; y < bottom; y++) {
          const row = y * width;
          for (let x = row + left; x < row + right; x++) words[x] = pixel;
        }
      } else {
        for (let y = top; y < bottom; y++) words.fill(pixel, y * width + left, y * width + right);
      }
    }
  }

  select(u) {
    const { left, top, width, height } = u.select;
    if (width < 4 && height < 4) return;
    if (height >= 4 && height < u.over.clientHeight) {
      this.showPlaces(u.posToVal(top + height, "y"), u.posToVal(top, "y"));
    }
    super.select(u);
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.report.view.redraw();
  }

  showPlaces(low, high) {
    const length = Math.min(Math.max(high - low, 1024), this.pool.extent);
    this.low = Math.min(Math.max(low, 0), this.pool.extent - length);
    this.high = this.low + length;
    this.report.view.redraw();
  }

  /** Zooms the time; with the shift key the addresses. */
  zoomAt(factor, left, top, isShifted) {
    if (!isShifted) return super.zoomAt(factor, left);
    const anchor = this.plot.posToVal(top, "y");
    this.showPlaces(anchor - (anchor - this.low) * factor, anchor + (this.high - anchor) * factor);
  }

  panValues(upwards) {
    const by = 0.1 * upwards * (this.high - this.low);
    this.showPlaces(this.low + by, this.high + by);
    return true;
  }

  reset() {
    [this.low, this.high] = [0, this.pool.extent];
    super.reset();
  }

  key(event) {
    const factor = { "]": 1 / 1.5, "[": 1.5 }[event.key];
    if (!factor) return super.key(event);
    event.preventDefault();
    const middle = this.plot.cursor.top >= 0 ? this.plot.cursor.top : this.plot.over.clientHeight / 2;
    this.zoomAt(factor, 0, middle, true);
  }

  /** The chunk at a place of the plot; -1 if there is none. One that is smaller than a pixel is found by its neighbourhood. */
  chunkAt(left, top) {
    const [time, place] = [this.plot.posToVal(left, "x"), this.plot.posToVal(top, "y")];
    const { from, to, place: places, bytes } = this.pool.chunks;
    const { view } = this.report;
    const slackX = ((view.to - view.from) / this.plot.over.clientWidth) * 1.5;
    const slackY = ((this.high - this.low) / this.plot.over.clientHeight) * 1.5;
    let near = -1;
    for (let i = 0; i < from.length; i++) {
      if (from[i] - slackX > time || to[i] + slackX < time) continue;
      if (places[i] - slackY > place || places[i] + bytes[i] + slackY < place) continue;
      if (from[i] <= time && time < to[i] && places[i] <= place && place < places[i] + bytes[i]) return i;
      near = i;
    }
    return near;
  }

  hover() {
    if (!this.tip) return;
    const { left, top } = this.plot.cursor;
    // Another chart's cursor has a time and no place.
    const isHere = left >= 0 && top >= 0 && (this.plot.over.matches(":hover") || document.activeElement === this.host);
    const chunk = isHere ? this.chunkAt(left, top) : -1;
    this.tip.hidden = this.outline.hidden = chunk < 0;
    if (chunk < 0) return;
    const { from, to, place, bytes } = this.pool.chunks;
    const at = (time) => Math.min(Math.max(this.plot.valToPos(time, "x"), 0), this.plot.over.clientWidth);
    const [x0, x1] = [at(from[chunk]), to[chunk] === Infinity ? this.plot.over.clientWidth : at(to[chunk])];
    const y = (place) => Math.min(Math.max(this.plot.valToPos(place, "y"), 0), this.plot.over.clientHeight);
    const [y0, y1] = [y(place[chunk] + bytes[chunk]), y(place[chunk])];
    Object.assign(this.outline.style, { left: `${x0}px`, top: `${y0}px`, width: `${Math.max(x1 - x0, 2)}px`, height: `${Math.max(y1 - y0, 2)}px` });
    const rows = this.describe(chunk).map(([name, value]) => [element("dt", { text: name }), element("dd", { text: value })]);
    this.tip.replaceChildren(element("strong", { text: this.nameOf(chunk) }), element("dl", {}, ...rows.flat()));
    // On the side that has more room.
    const box = this.plot.over.getBoundingClientRect();
    const home = this.host.getBoundingClientRect();
    const isLeft = left > box.width / 2;
    Object.assign(this.tip.style, {
      left: isLeft ? "auto" : `${box.left - home.left + left + 16}px`,
      right: isLeft ? `${home.right - box.left - left + 16}px` : "auto",
      top: `${box.top - home.top + Math.min(top, box.height - 170)}px`,
    });
  }

  nameOf(chunk) {
    return this.pool.chunks.is_known[chunk] ? this.pool.holderOf(chunk) : "(allocated by an event that was displaced)";
  }

  /** What is known of a chunk, as names and values. */
  describe(chunk) {
    const { pool } = this;
    const { bytes, requested, from, to, place, stream, stack, step, is_known: isKnown } = pool.chunks;
    const rows = [["size", exactText(bytes[chunk])]];
    if (isKnown[chunk]) {
      rows.push(["requested", exactText(requested[chunk])], ["allocated", timeText(from[chunk])]);
    }
    rows.push(["freed", to[chunk] === Infinity ? "not freed" : timeText(to[chunk])]);
    if (to[chunk] !== Infinity && isKnown[chunk]) rows.push(["lived", timeText(to[chunk] - from[chunk])]);
    rows.push(["address", pool.addressText(place[chunk])], ["stream", pool.streams[stream[chunk]]]);
    if (isKnown[chunk]) rows.push(["step", countText(step[chunk])]);
    if (stack[chunk] !== 0) rows.push(["called by", pool.stacks[stack[chunk]].slice(-MOST_FRAMES).reverse().join(" ← ")]);
    return rows;
  }

  cursorText() {
    const { left, top } = this.plot.cursor;
    const chunk = this.chunkAt(left, top);
    const place = `${timeText(this.plot.posToVal(left, "x"))}, ${this.pool.addressText(this.plot.posToVal(top, "y"))}`;
    if (chunk < 0) return `${place}: no chunk`;
    return `${this.nameOf(chunk)}: ${this.describe(chunk).map((row) => row.join(" ")).join(", ")}`;
  }

  /** The legend of the coloring. */
  legend() {
    const unknown = this.pool.chunks.is_known.includes(0) ? [["allocated before the first event", UNKNOWN, NaN]] : [];
    const short = this.coloring === "backtrace" ? withoutFolders : (name) => name;
    const entry = ([name, color, bytes]) =>
      element("span", { class: "entry", title: name }, swatch(color), element("bdi", { text: short(name) }), Number.isNaN(bytes) ? null : element("small", { text: `${bytesText(bytes)} at the peak` }));
    if (this.coloring === "age" || this.coloring === "size") {
      const [low, high] = this.coloring === "age" ? [`${timeText(1000)} or less`, timeText(this.longest)] : ["256 B", bytesText(this.greatest)];
      const steps = CIVIDIS.map((color) => swatch(color));
      return [element("span", { text: low }), element("span", { class: "ramp" }, ...steps), element("span", { text: high }), ...unknown.map(entry)];
    }
    const [{ all, atPeak }, names] = {
      operation: [this.byOperation, this.pool.operations],
      backtrace: [this.byStack, this.pool.callers],
      stream: [this.byStream, this.pool.streams],
    }[this.coloring];
    const shown = all.slice(0, OKABE_ITO.length);
    const entries = shown.map((name, rank) => [names[name], this.colorOfRank(rank), atPeak[name]]);
    const rest = all.slice(OKABE_ITO.length);
    if (rest.length) entries.push([plural(rest.length, "other"), this.colorOfRank(99), rest.reduce((sum, name) => sum + atPeak[name], 0)]);
    return [...entries, ...unknown].map(entry);
  }
}

function swatch(color) {
  const made = element("span", { class: "swatch" });
  made.style.background = color;
  return made;
}
