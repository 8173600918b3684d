// The data of the page: a JSON document, and columns of numbers, packed by crates/cli/src/history/page/columns.rs.

/** Decodes base64. Browsers of 2025 do it by themselves. */
function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Unpacks a column. All numbers of it are below 2^53. */
function unpack(bytes, { offset, count, width, is_delta: isDelta }) {
  if (offset + count * width > bytes.length) throw new Error("the columns are cut off");
  const numbers = new Float64Array(count);
  let weight = 1;
  for (let byte = 0; byte < width; byte++, weight *= 256) {
    const plane = bytes.subarray(offset + byte * count, offset + (byte + 1) * count);
    for (let i = 0; i < count; i++) numbers[i] += plane[i] * weight;
  }
  if (isDelta) for (let i = 1; i < count; i++) numbers[i] += numbers[i - 1];
  return numbers;
}

/** Reads what the command has embedded into the page. */
async function readData() {
  const text = JSON.parse(document.getElementById("document").textContent);
  const columns = document.getElementById("columns");
  const bytes = await inflate(fromBase64(columns.textContent));
  // The text of a large history is no longer needed.
  columns.textContent = "";
  const pools = text.pools.map((pool, at) => new Pool(pool, text.summary.pools[at], text, bytes));
  return { file: text.file, summary: text.summary, marks: text.marks, pools };
}

/** A pool: a row for each event, for the life of each chunk, and for the life of each region. */
class Pool {
  constructor(pool, summary, text, bytes) {
    const all = (columns) => Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, unpack(bytes, column)]));
    this.summary = summary;
    this.device = pool.device;
    this.name = safeName(pool.name);
    this.operations = [NO_OPERATION, ...pool.operations.map(safeName)];
    this.streams = ["no stream", ...pool.streams];
    this.stacks = [["(no backtrace)"], ...pool.stacks.map((frames) => frames.map(safeName))];
    this.spans = pool.spans;
    this.failures = pool.failures;
    this.events = all(pool.events);
    this.chunks = all(pool.chunks);
    this.regions = all(pool.regions);
    this.hasOperations = pool.operations.length > 0;
    this.hasStacks = pool.stacks.length > 0;
    this.callers = callersOf(this.stacks);
    this.count = this.events.time.length;
    this.from = this.count ? this.events.time[0] : 0;
    this.to = this.count ? this.events.time[this.count - 1] : 0;
    this.steps = pool.steps.map(([event, step]) => ({ event, time: this.events.time[event], text: `step ${step}` }));
    this.marks = text.marks.map((mark) => ({
      // What is before the mark.
      event: lowerBound(this.events.number, mark.number) - 1,
      time: mark.time,
      text: safeName(mark.name),
    }));
    const extents = this.spans.map((span) => span.offset + span.bytes);
    this.extent = Math.max(1, ...extents.slice(-1));
    this.setTimes(this.chunks);
    this.setTimes(this.regions);
    this.peak = argmax(this.events.in_use);
  }

  /** Adds the times at which lives begin and end. Those that did not end go on beyond the last event. */
  setTimes(lives) {
    const { time } = this.events;
    lives.from = lives.first.map((event) => time[event]);
    lives.to = lives.last.map((event) => (event < this.count ? time[event] : Infinity));
  }

  /** The title of the pool. */
  get title() {
    const device = this.device === null ? "Unknown device" : `Device ${this.device}`;
    return this.name ? `${device} (${this.name})` : device;
  }

  /** What tells the chunks apart best: the names of a program that has scopes, else where it allocates, else the sizes. */
  get property() {
    if (this.hasOperations) return "operation";
    return this.hasStacks ? "backtrace" : "size";
  }

  /** Who has allocated a chunk: its operation, and without one its backtrace. */
  holderOf(i) {
    const { operation, stack } = this.chunks;
    return operation[i] === 0 && stack[i] !== 0 ? this.callers[stack[i]] : this.operations[operation[i]];
  }

  /** The last event at or before a time; -1 if there is none. */
  eventAt(time) {
    return upperBound(this.events.time, time) - 1;
  }

  /** Calls `see` for each chunk that is live after an event and whose allocation is known. */
  eachLive(event, see) {
    const { first, last, is_known: isKnown } = this.chunks;
    for (let i = 0; i < first.length; i++) {
      if (first[i] > event) {
        // Chunks whose allocation is unknown are among the others, and begin with the first event.
        if (isKnown[i]) break;
      } else if (last[i] > event && isKnown[i]) see(i);
    }
  }

  /** 1 - largest free chunk / free memory. */
  fragmentation(event) {
    const free = this.events.free[event];
    return free > 0 ? 1 - this.events.largest_free[event] / free : 0;
  }

  /** What is in use, as a share of what is held. */
  usage(event) {
    const held = this.events.held[event];
    return held > 0 ? this.events.in_use[event] / held : NaN;
  }

  /** The address at a place of the stack of spans. */
  addressText(place) {
    const span = this.spans.findLast((span) => span.offset <= place);
    if (!span) return "–";
    return `0x${(BigInt(span.address) + BigInt(Math.floor(place - span.offset))).toString(16)}`;
  }
}

/** A name for each backtrace: its innermost frame, and the caller that tells it from all others. */
function callersOf(stacks) {
  // A tree from the innermost frames outwards, with the number of backtraces through each frame.
  const root = new Map();
  const walk = (frames, visit) => {
    let children = root;
    for (let depth = 0; depth < frames.length; depth++) {
      const frame = frames[frames.length - 1 - depth];
      if (!children.has(frame)) children.set(frame, { count: 0, children: new Map() });
      const node = children.get(frame);
      if (visit(node, depth, frame)) return;
      children = node.children;
    }
  };
  for (const frames of stacks) walk(frames, (node) => void node.count++);
  return stacks.map((frames) => {
    let name = frames.at(-1);
    walk(frames, (node, depth, frame) => {
      if (depth > 0) name = `${frames.at(-1)} ← ${depth > 1 ? "… ← " : ""}${frame}`;
      return node.count === 1;
    });
    return name;
  });
}

/** The position of the first number that is at least `value`. */
function lowerBound(numbers, value) {
  let [from, to] = [0, numbers.length];
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (numbers[middle] < value) from = middle + 1;
    else to = middle;
  }
  return from;
}

/** The position of the first number that is greater than `value`. */
function upperBound(numbers, value) {
  let [from, to] = [0, numbers.length];
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (numbers[middle] <= value) from = middle + 1;
    else to = middle;
  }
  return from;
}

function argmax(numbers) {
  let best = 0;
  for (let i = 1; i < numbers.length; i++) if (numbers[i] > numbers[best]) best = i;
  return best;
}
