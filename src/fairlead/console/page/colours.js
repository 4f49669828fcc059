// Colours that colour-blind readers tell apart: those of the report (Okabe and Ito), each in three lightnesses for jobs.
const base = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195"];

function towards(hex, other, share) {
  const [one, two] = [hex, other].map(rgbOfHex);
  return `#${one
    .map((part, i) =>
      Math.round(part + (two[i] - part) * share)
        .toString(16)
        .padStart(2, "0"),
    )
    .join("")}`;
}

const shades = [
  ...base,
  ...base.map((one) => towards(one, "#ffffff", 0.38)),
  ...base.map((one) => towards(one, "#000000", 0.3)),
];

export function jobColour(number) {
  return shades[number % shades.length];
}
export function groupColour(place) {
  return base[place % base.length];
}
export function inkOn(hex) {
  const [red, green, blue] = rgbOfHex(hex);
  return 0.3 * red + 0.59 * green + 0.11 * blue > 145 ? "#16202c" : "#ffffff";
}

// One hue from pale to strong: lightness alone tells how much.
export function loadColour(percent, dark) {
  return towards(dark ? "#1d2b38" : "#e4eef6", dark ? "#7cc4f5" : "#0b4f86", Math.min(1, percent / 100));
}

export function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
export function isDark() {
  return document.documentElement.dataset.theme === "dark";
}
