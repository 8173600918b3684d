// Numbers and names as text.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** A number of bytes with a binary unit, as the command writes it. */
function bytesText(bytes) {
  if (!Number.isFinite(bytes)) return "–";
  let unit = 0;
  let value = Math.abs(bytes);
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit++;
  }
  const sign = bytes < 0 ? "−" : "";
  return sign + (unit === 0 ? `${Math.round(value)} B` : `${value.toFixed(2)} ${UNITS[unit]}`);
}

/** The same for the ticks of an axis: no more digits than the distance of ticks needs. */
function bytesTick(bytes) {
  return bytesText(bytes).replace(/\.00 /, " ").replace(/(\.\d)0 /, "$1 ");
}

/** The same with the exact number. */
function exactText(bytes) {
  return bytes < 1024 ? bytesText(bytes) : `${bytesText(bytes)} (${countText(bytes)} bytes)`;
}

function countText(count) {
  return Math.round(count).toLocaleString("en-US");
}

function plural(count, word) {
  return `${countText(count)} ${word}${count === 1 ? "" : "s"}`;
}

function percentText(share) {
  return Number.isFinite(share) ? `${(100 * share).toFixed(1)}%` : "–";
}

/** Nanoseconds as a time with a unit. `step` is the distance of neighbouring times, which have to differ. */
function timeText(nanoseconds, step = Math.abs(nanoseconds) / 1000) {
  const [unit, size] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]].find(([, size]) => Math.abs(nanoseconds) >= size) ?? ["ns", 1];
  const digits = Math.min(9, Math.max(0, Math.ceil(-Math.log10(Math.max(step, 1e-3) / size) - 1e-9)));
  return `${(nanoseconds / size).toFixed(size === 1 ? 0 : digits)} ${unit}`;
}

/** A name without what would steer the text around it. Names come from the recorded program. */
function safeName(name) {
  return name.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, "\ufffd");
}

/** The frames of a name without the folders of their files, before which a short line is cut off. */
function withoutFolders(name) {
  return name.replace(/ \([^()]*\/([^()/]+)\)/g, " ($1)");
}

/** The size class of a chunk, as the allocator counts them: a power of two times 256. */
function sizeClass(bytes) {
  return Math.max(0, Math.floor(Math.log2(Math.max(bytes, 1) / 256)));
}

function sizeClassText(number) {
  const from = 256 * 2 ** number;
  return `${bytesTick(number === 0 ? 0 : from)} to ${bytesTick(2 * from)}`;
}

/** What holds memory that was allocated outside of all scopes, as the command writes it. */
const NO_OPERATION = "(no operation)";

/** Creates an element. Text is never markup. */
function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") made.className = value;
    else if (key === "text") made.textContent = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
