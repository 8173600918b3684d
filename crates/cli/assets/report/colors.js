// Colours that are told apart with every kind of colour vision: Okabe and Ito's for names, cividis for numbers.

/** Okabe and Ito's colours, without black and with a yellow that is visible on white. */
const OKABE_ITO = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
const OTHERS = { light: "#8a8f98", dark: "#8b93a1" };

/** Cividis at equal distances, from low to high. */
const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];

/** A colour of the style sheet, as the theme has it now. */
function themeColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function isDark() {
  return getComputedStyle(document.documentElement).colorScheme === "dark";
}

function channels(color) {
  return [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
}

/** `share` of the first colour over the second. */
function mixed(color, other, share) {
  const [a, b] = [channels(color), channels(other)];
  return `#${a.map((value, i) => Math.round(value * share + b[i] * (1 - share)).toString(16).padStart(2, "0")).join("")}`;
}

/** A colour as a pixel of an image, on machines with the low byte first: those that browsers run on. */
function pixelOf(color) {
  const [red, green, blue] = channels(color);
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** A colour of cividis; `share` is from 0 to 1. */
function cividis(share) {
  const at = Math.min(Math.max(share, 0), 1) * (CIVIDIS.length - 1);
  const low = Math.min(Math.floor(at), CIVIDIS.length - 2);
  return mixed(CIVIDIS[low + 1], CIVIDIS[low], at - low);
}

/** A text colour that is readable on a colour. */
function textOn(color) {
  const [red, green, blue] = channels(color).map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return luminance > 0.18 ? "#000000" : "#ffffff";
}
