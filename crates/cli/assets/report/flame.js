// Who holds what at a moment, as a flame graph: d3-hierarchy computes the places.

/** The maximum number of rows of a flame graph. */
const MOST_ROWS = 48;
const ROW = 24;
/** A block with more than this share of the one above it is its continuation, and tells nothing apart. */
const TRUNK = 0.95;

/** How the holders of a pool are grouped, the best first: for each way the names of the rows of a chunk, from the outermost. */
function groupingsOf(pool) {
  const { operation, stack, stream, bytes } = pool.chunks;
  const size = (i) => sizeClassText(sizeClass(bytes[i]));
  const frames = (i) => pool.stacks[stack[i]];
  // The scopes.
  const path = (i) => pool.operations[operation[i]].split("/");
  const groupings = pool.hasOperations
    ? {
        "operation, then backtrace": pool.hasStacks && ((i) => [...path(i), ...frames(i)]),
        "operation, then size": (i) => [...path(i), size(i)],
        "size, then operation": (i) => [size(i), ...path(i)],
        "backtrace, then operation": pool.hasStacks && ((i) => [...frames(i), pool.operations[operation[i]]]),
        "stream, then operation": (i) => [pool.streams[stream[i]], ...path(i)],
      }
    : {
        "backtrace, then size": pool.hasStacks && ((i) => [...frames(i), size(i)]),
        size: (i) => [size(i)],
        "stream, then size": (i) => [pool.streams[stream[i]], size(i)],
      };
  return Object.fromEntries(Object.entries(groupings).filter(([, rows]) => rows));
}

/** The tree of what is live after an event. A node has the bytes and the number of the chunks in it. */
function holdersTree(pool, event, rowsOf) {
  const root = { name: "in use", bytes: 0, own: 0, count: 0, children: new Map() };
  const add = (path, bytes, count) => {
    let node = root;
    node.bytes += bytes;
    node.count += count;
    // What is nested deeper than the graph is part of its last row.
    for (const name of path.slice(0, MOST_ROWS)) {
      if (!node.children.has(name)) node.children.set(name, { name, bytes: 0, own: 0, count: 0, children: new Map() });
      node = node.children.get(name);
      node.bytes += bytes;
      node.count += count;
    }
    node.own += bytes;
  };
  if (event < 0 || event >= pool.count) return root;
  pool.eachLive(event, (i) => add(rowsOf(i), pool.chunks.bytes[i], 1));
  const unknown = pool.events.in_use[event] - pool.events.known[event];
  if (unknown > 0) add(["(allocated by events that were displaced)"], unknown, 0);
  return root;
}

/** The flame graph. Each block is a button: a click or Enter shows it in the whole width. */
class Flame {
  constructor(report, host) {
    this.report = report;
    this.host = host;
    host.addEventListener("keydown", (event) => this.key(event));
  }

  show(tree) {
    const root = d3.hierarchy(tree, (node) => [...node.children.values()]);
    root.sum((node) => node.own).sort((a, b) => b.value - a.value || (a.data.name < b.data.name ? -1 : 1));
    this.root = d3.partition()(root);
    this.fork = this.root;
    // All backtraces begin with the frames in which the program began.
    while (this.fork.children?.[0]?.children && this.fork.children[0].value > TRUNK * this.fork.value) this.fork = this.fork.children[0];
    this.zoom(this.root);
  }

  zoom(node, isFocused = false) {
    this.focus = node;
    const { x0, x1 } = node;
    const width = Math.max(x1 - x0, 1e-12);
    const total = Math.max(this.root.data.bytes, 1);
    const blocks = [];
    let depth = 0;
    this.root.each((block) => {
      const [left, right] = [(block.x0 - x0) / width, (block.x1 - x0) / width];
      // What is narrower than a pixel is not drawn.
      if (right <= 0 || left >= 1 || (right - left < 0.0008 && block !== node)) return;
      depth = Math.max(depth, block.depth);
      blocks.push(this.block(block, Math.max(left, 0), Math.min(right, 1), total));
    });
    this.host.style.height = `${(depth + 1) * ROW}px`;
    this.host.replaceChildren(...blocks);
    const own = blocks.find((block) => block.node === node) ?? blocks[0];
    own.tabIndex = 0;
    if (isFocused) own.focus({ preventScroll: true });
  }

  block(node, left, right, total) {
    const { name, bytes, count } = node.data;
    const share = percentText(bytes / total);
    const text = `${name}: ${exactText(bytes)} in ${plural(count, "allocation")}, ${share}`;
    const color = this.color(node);
    const made = element("button", {
      type: "button",
      class: "block",
      tabindex: "-1",
      title: text,
      "aria-label": `${text}, level ${node.depth + 1}`,
      onclick: () => this.zoom(node === this.focus && node.parent ? node.parent : node, true),
    });
    made.append(element("bdi", { text: name }), element("span", { text: ` ${bytesText(bytes)}` }));
    Object.assign(made.style, {
      left: `${left * 100}%`,
      width: `${(right - left) * 100}%`,
      top: `${node.depth * ROW}px`,
      background: color,
      color: textOn(color),
    });
    made.node = node;
    return made;
  }

  /** Blocks have the colour of their name in the row where the graph forks, paler the deeper they are. */
  color(node) {
    const { fork } = this;
    const trunk = theme.isDark ? "#3c4352" : "#d7dce4";
    if (node.depth <= fork.depth) return trunk;
    const rank = fork.children.indexOf(node.ancestors().at(-fork.depth - 2));
    const color = OKABE_ITO[rank] ?? (theme.isDark ? OTHERS.dark : OTHERS.light);
    return mixed(color, theme.surface, Math.max(0.4, 1 - 0.14 * (node.depth - fork.depth - 1)));
  }

  key(event) {
    const { node } = event.target;
    if (!node || event.ctrlKey || event.metaKey || event.altKey) return;
    const beside = (by) => node.parent?.children[node.parent.children.indexOf(node) + by];
    const next = {
      ArrowUp: () => node.parent,
      ArrowDown: () => node.children?.[0],
      ArrowLeft: () => beside(-1),
      ArrowRight: () => beside(1),
      Home: () => this.root,
    }[event.key]?.();
    if (event.key === "Escape" && this.focus.parent) this.zoom(this.focus.parent, true);
    else if (next) {
      const block = [...this.host.children].find((block) => block.node === next);
      if (!block) return;
      for (const other of this.host.children) other.tabIndex = -1;
      block.tabIndex = 0;
      block.focus({ preventScroll: true });
    } else if (!["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"].includes(event.key)) return;
    event.preventDefault();
  }
}
