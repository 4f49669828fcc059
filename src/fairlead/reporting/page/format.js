// Numbers and times for people, and the few ways this page makes elements. Text is always set as text, never as markup.
const units = [[60, 1, "s"], [3600, 60, "min"], [172800, 3600, "h"], [Infinity, 86400, "d"]];

function digits(number) {
  const size = Math.abs(number);
  if (size === 0 || size >= 100) return Math.round(number).toLocaleString("en");
  return size >= 1 ? number.toFixed(1) : String(Number(number.toPrecision(2)));
}

function duration(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "–";
  const [, unit, name] = units.find(([limit]) => Math.abs(seconds) < limit);
  return `${digits(seconds / unit)} ${name}`;
}

// A moment since the start of the trace, fine enough for the span that is in view.
function moment(seconds, span) {
  const day = Math.floor(seconds / 86400), rest = seconds - day * 86400;
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  const clock = `${two(rest / 3600)}:${two((rest / 60) % 60)}` + (span < 1200 ? `:${two(rest % 60)}` : "");
  if (span > 4 * 86400 && rest < 1) return `day ${day}`;
  return day || span > 86400 ? `${day} d ${clock}` : clock;
}

const shows = {
  duration,
  count: (v) => Math.round(v).toLocaleString("en"),
  share: (v) => `${(100 * v).toFixed(1)} %`,
  ratio: (v) => (Math.abs(v) < 100 ? v.toFixed(2) : Math.round(v).toLocaleString("en")),
  money: (v) => "$" + v.toLocaleString("en", { maximumFractionDigits: Math.abs(v) < 1000 ? 2 : 0 }),
  memory: (v) => `${Math.round(v).toLocaleString("en")} MB`,
};

function show(value, how) {
  return value === null || value === undefined || !Number.isFinite(value) ? "–" : shows[how](value);
}

// The values of one column: durations in one unit, which the eye can compare; those that would be a small part of one have their own.
function showAlike(values, how) {
  const known = values.filter((v) => Number.isFinite(v) && v > 0).sort((a, b) => a - b);
  if (how !== "duration" || !known.length) return values.map((v) => show(v, how));
  const apart = known.at(-1) > 100 * known[0], typical = apart ? known.at(-1) : known[Math.floor(known.length / 2)];
  const [, unit, name] = units.find(([limit]) => typical < limit), least = apart ? unit : 0.1 * unit;
  return values.map((v) => (Number.isFinite(v) && v >= least ? `${digits(v / unit)} ${name}` : show(v, how)));
}

// The values of a table's column with as many decimals each, and the unit for its heading; no unit where the cells need their own.
function showColumn(values, how) {
  const known = values.filter((v) => Number.isFinite(v) && v > 0).sort((a, b) => a - b);
  const fixed = (factor, decimals) => values.map((v) => (Number.isFinite(v)
    ? (v / factor).toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }) : "–"));
  if (how === "duration") {
    if (!known.length) return { unit: "", texts: values.map((v) => show(v, how)) };
    const apart = known.at(-1) > 100 * known[0], typical = apart ? known.at(-1) : known[Math.floor(known.length / 2)];
    const [, unit, name] = units.find(([limit]) => typical < limit);
    if (known[0] < (apart ? unit : 0.1 * unit)) return { unit: "", texts: showAlike(values, how) };
    return { unit: name, texts: fixed(unit, typical >= 100 * unit ? 0 : 1) };
  }
  if (how === "share") return { unit: "%", texts: fixed(0.01, 1) };
  if (how === "memory") return { unit: "MB", texts: fixed(1, 0) };
  if (how === "money") return { unit: "$", texts: fixed(1, known.at(-1) >= 1000 ? 0 : 2) };
  return { unit: "", texts: fixed(1, how === "ratio" ? 2 : 0) };
}

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// The page's own mark lends its namespace, so that no address needs to be written down.
const svgSpace = document.querySelector("svg.mark").namespaceURI;

function draw(parent, tag, attributes = {}, text = null) {
  const element = document.createElementNS(svgSpace, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  parent.append(element);
  return element;
}

function swatch(colour) {
  const element = make("span", { class: "swatch" });
  element.style.background = colour;
  return element;
}

// The one tooltip: a heading, and rows of name and value.
const tip = document.getElementById("tip");

function showTip(event, heading, rows = [], prose = null) {
  tip.replaceChildren();
  if (heading) tip.append(make("b", { text: heading }));
  if (prose) tip.append(make("div", { text: prose }));
  if (rows.length) {
    const table = make("table");
    for (const [name, value, colour] of rows) {
      const first = make("td");
      if (colour) first.append(swatch(colour), " ");
      first.append(name);
      table.append(make("tr", {}, first, make("td", { text: value })));
    }
    tip.append(table);
  }
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 14 : event.clientX + 16;
  const top = Math.min(event.clientY + 14, innerHeight - height - 8);
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

function hideTip() { tip.hidden = true; }

function onResize(element, redraw) {
  let width = element.clientWidth;
  new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    redraw();
  }).observe(element);
}
