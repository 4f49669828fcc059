// A line chart in SVG: scales, ticks, lines and a cross-hair. It knows nothing of jobs or runs.
function niceTicks(low, high, wanted) {
  const rough = (high - low) / Math.max(wanted, 1), power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = power * ([1, 2, 5, 10].find((m) => m * power >= rough) || 10);
  const ticks = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9; t += step) ticks.push(t);
  return ticks;
}

const timeSteps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 345600,
  604800, 1209600, 2592000, 5184000, 10368000, 31536000];

function timeTicks(low, high, wanted) {
  const rough = (high - low) / Math.max(wanted, 1), step = timeSteps.find((s) => s >= rough) || niceTicks(low, high, wanted)[1];
  const ticks = [];
  for (let t = Math.ceil(low / step) * step; t <= high; t += step) ticks.push(t);
  return ticks;
}

const durationMarks = [0.001, 0.01, 0.1, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000, 86400, 259200, 864000, 2592000,
  8640000, 31536000, 315360000];
const ratioMarks = [0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 1e4, 1e5, 1e6];

// Where values lie so close together that hardly a mark is between them, ticks are as on an even axis.
function logTicks(low, high, marks, wanted, even) {
  let ticks = marks.filter((m) => m >= low && m <= high);
  if (ticks.length < 2) return even(low, high, wanted + 2);
  while (ticks.length > wanted) ticks = ticks.filter((_, i) => i % 2 === 0);
  return ticks;
}

function scale(low, high, from, to, log) {
  if (log) { low = Math.log(low); high = Math.log(high); }
  const factor = (to - from) / (high - low || 1);
  const place = (v) => from + ((log ? Math.log(Math.max(v, 1e-12)) : v) - low) * factor;
  place.back = (p) => { const v = low + (p - from) / factor; return log ? Math.exp(v) : v; };
  return place;
}

// The value of a line at x: the last point at or before it.
function valueAt(line, x) {
  let low = 0, high = line.x.length;
  while (low < high) { const middle = (low + high) >> 1; if (line.x[middle] <= x) low = middle + 1; else high = middle; }
  return low === 0 ? (line.before ?? null) : low > line.y.length ? (line.after ?? null) : line.y[low - 1];
}

// Steps, each value held until the next x; points that share a pixel column cost nothing to look at, so none are dropped here.
function stepPath(line, x, y, low) {
  let path = "", last = null;
  for (let i = 0; i < line.y.length; i++) {
    const px = x(Math.max(line.x[i], low)).toFixed(1), py = y(line.y[i]).toFixed(1);
    if (last === null) path = line.before === undefined ? `M${px} ${py}` : `M${px} ${y(line.before).toFixed(1)}V${py}`;
    else path += `H${px}V${py}`;
    last = py;
  }
  if (line.x.length > line.y.length) path += `H${x(line.x[line.x.length - 1]).toFixed(1)}`;
  return path;
}

// Straight from point to point; a value that is not known (null) is a gap, and a point between two gaps a dot.
function straightPath(line, x, y) {
  let path = "";
  line.y.forEach((value, i) => {
    if (value === null) return;
    const lone = (line.y[i - 1] ?? null) === null, at = `${x(line.x[i]).toFixed(1)} ${y(value).toFixed(1)}`;
    path += lone ? `M${at}${(line.y[i + 1] ?? null) === null ? "h.01" : ""}` : `L${at}`;
  });
  return path;
}

// What happened at a moment: each kind has a form of its own, so that colour is not needed to tell them apart.
const eventForms = {
  preempted: "M-2 -6h4v12h-4z", moved: "M-5 -5h10l-5 9z", resized: "M-5 -5h10v10h-10z", batch: "M0 -6l6 6l-6 6l-6 -6z",
  failed: "M-5 -5l10 10M5 -5l-10 10",
};

function drawEvents(svg, events, x, edge, height) {
  for (const event of events) {
    const place = x(event.x), group = draw(svg, "g", { class: `event ${event.kind}` });
    draw(group, "line", { x1: place, x2: place, y1: edge.top, y2: height - edge.bottom });
    draw(group, "path", { d: eventForms[event.kind], transform: `translate(${place.toFixed(1)} ${edge.top - 7})` });
    draw(group, "title", {}, event.text);
  }
}

// options: lines [{label, colour, dash, x, y, before, after, straight}], x {low, high, log, ticks, text}, y {low, high, text}, marks,
// events [{x, kind, text}], label, height
function lineChart(box, options) {
  const width = Math.max(box.clientWidth, 240), height = options.height || 250, events = options.events || [];
  const edge = { left: 46, right: 14, top: events.length ? 20 : 8, bottom: 26 }, bottom = options.y.low || 0;
  box.replaceChildren();
  const svg = draw(box, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" });
  if (options.label) svg.setAttribute("aria-label", options.label);
  const lines = options.lines.filter((line) => line.y.length);
  if (!lines.length) {
    draw(svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "empty" }, "nothing to show");
    return 0;
  }
  const x = scale(options.x.low, options.x.high, edge.left, width - edge.right, options.x.log);
  const y = scale(bottom, options.y.high, height - edge.bottom, edge.top, false);
  for (const tick of options.y.ticks || niceTicks(bottom, options.y.high, 5)) {
    draw(svg, "line", { x1: edge.left, x2: width - edge.right, y1: y(tick), y2: y(tick), class: "gridline" });
    draw(svg, "text", { x: edge.left - 8, y: y(tick) + 4, "text-anchor": "end" }, options.y.text(tick));
  }
  for (const tick of options.x.ticks(options.x.low, options.x.high, width / 84)) {
    draw(svg, "line", { x1: x(tick), x2: x(tick), y1: edge.top, y2: height - edge.bottom, class: "gridline" });
    draw(svg, "text", { x: x(tick), y: height - 8, "text-anchor": "middle" }, options.x.text(tick));
  }
  draw(svg, "line", { x1: edge.left, x2: width - edge.right, y1: y(bottom), y2: y(bottom), class: "axis" });
  for (const mark of options.marks || []) {
    if (mark.x !== undefined && mark.x > options.x.low && mark.x < options.x.high) {
      draw(svg, "line", { x1: x(mark.x), x2: x(mark.x), y1: edge.top, y2: height - edge.bottom, class: "mark-line" });
      draw(svg, "text", { x: x(mark.x) + 5, y: height - edge.bottom - 7 }, mark.text);
    }
    if (mark.y !== undefined && mark.y <= options.y.high) {
      draw(svg, "line", { x1: edge.left, x2: width - edge.right, y1: y(mark.y), y2: y(mark.y), class: "mark-line" });
    }
  }
  for (const line of lines) {
    const shape = line.straight ? straightPath(line, x, y) : stepPath(line, x, y, options.x.low);
    const path = draw(svg, "path", { d: shape, class: "line", "stroke-dasharray": line.dash });
    path.style.stroke = line.colour;
  }
  drawEvents(svg, events, x, edge, height);
  crossHair(svg, box, options, lines, x, edge, width, height);
  return lines.length;
}

function crossHair(svg, box, options, lines, x, edge, width, height) {
  const cross = draw(svg, "line", { y1: edge.top, y2: height - edge.bottom, class: "cross", visibility: "hidden" });
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    const place = Math.min(Math.max((event.clientX - frame.left) * (width / frame.width), edge.left), width - edge.right);
    const at = x.back(place);
    cross.setAttribute("x1", place);
    cross.setAttribute("x2", place);
    cross.setAttribute("visibility", "visible");
    const rows = lines.map((line) => [line.label, valueAt(line, at), line.colour]);
    showTip(event, options.x.exact(at), rows.map(([name, v, colour]) => [name, v === null ? "–" : options.y.exact(v), colour]));
  });
  svg.addEventListener("pointerleave", () => { cross.setAttribute("visibility", "hidden"); hideTip(); });
}
