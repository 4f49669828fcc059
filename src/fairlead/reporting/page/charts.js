// The five charts of the page: what each one's axes mean. Every run keeps its colour throughout.
function shownLines(data, pick, more = {}) {
  return data.runs.filter((run) => run.shown).map((run) => (
    { label: run.label, colour: run.colour, dash: run.dash, ...pick(run), ...more }));
}

function plotOf(id) { return document.querySelector(`#${id} .plot`); }

function distributionChart(data, id, pick, axis) {
  const lines = shownLines(data, pick, { before: 0, after: 1 });
  const values = lines.flatMap((line) => line.x).filter((v) => v > 0);
  const low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), 0);
  // A curve that has reached 100 % runs on to the edge: its jobs are all done there.
  const ended = lines.map((line) => (line.x.length ? { ...line, x: [...line.x, high * 1.15], y: line.y } : line));
  return lineChart(plotOf(id), {
    lines: ended,
    x: { low: low / 1.15, high: high * 1.15, log: true, ticks: (a, b, n) => logTicks(a, b, axis.marks, n, axis.even), text: axis.tick, exact: axis.exact },
    y: { high: 1, ticks: [0, 0.25, 0.5, 0.75, 1], text: (v) => `${100 * v} %`, exact: (v) => `${(100 * v).toFixed(1)} %` },
    marks: axis.lines,
  });
}

function overTimeChart(data, id, pick, ceiling) {
  const lines = shownLines(data, pick);
  const edges = data.runs.map((run) => run.span);
  const low = Math.min(...edges.map((e) => e[0])), high = Math.max(...edges.map((e) => e[1]), low + 1);
  const top = ceiling || Math.max(1, ...lines.map((line) => line.y.reduce((a, b) => Math.max(a, b), 0)));
  const whole = (v) => Number(v.toFixed(1)).toLocaleString("en");
  return lineChart(plotOf(id), {
    lines,
    height: 230,
    x: { low, high, ticks: (a, b, n) => timeTicks(a, b, n), text: (v) => durationTick(v), exact: (v) => moment(v, high - low) },
    y: { high: top * 1.04, ticks: niceTicks(0, top * 1.04, 5).filter(Number.isInteger), text: whole, exact: whole },
    marks: ceiling ? [{ y: ceiling }] : [],
  });
}

function durationTick(seconds) {
  if (seconds === 0) return "0";
  const [size, name] = seconds % 86400 === 0 ? [86400, "d"] : seconds % 3600 === 0 ? [3600, "h"] : seconds % 60 === 0 ? [60, "min"] : [1, "s"];
  return `${Number((seconds / size).toPrecision(3))} ${name}`;
}

const partNames = [["wait for the first start", "--part-first"], ["later waits", "--part-later"], ["running", "--part-run"]];

// The name of a run with many parameters must not run over what stands behind it.
function shorten(text, room) {
  const whole = text.textContent;
  let kept = whole.length;
  while (kept > 1 && text.getComputedTextLength() > room) {
    kept = Math.min(kept - 1, Math.ceil((kept * room) / text.getComputedTextLength()));
    text.textContent = `${whole.slice(0, kept)}…`;
  }
  if (kept < whole.length) draw(text, "title", {}, whole);
}

function partsChart(data) {
  const box = plotOf("chart-parts"), runs = data.runs.filter((run) => run.shown);
  const width = Math.max(box.clientWidth, 240), height = Math.max(222, 30 * runs.length + 6);
  box.replaceChildren();
  const svg = draw(box, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" });
  const totals = runs.map((run) => run.parts.reduce((a, b) => a + b, 0)), most = Math.max(...totals, 1e-9), texts = showAlike(totals, "duration");
  const rowHeight = Math.min(44, (height - 6) / Math.max(runs.length, 1)), thick = Math.min(14, rowHeight - 21);
  runs.forEach((run, row) => {
    const top = 4 + row * rowHeight;
    const figure = draw(svg, "text", { x: width - 2, y: top + 11, "text-anchor": "end" }, totals[row] ? texts[row] : "–");
    const name = draw(svg, "text", { x: 0, y: top + 11, class: "strong" }, run.label);
    shorten(name, width - 14 - figure.getComputedTextLength());
    let left = 0;
    run.parts.forEach((part, which) => {
      const wide = (part / most) * (width - 2);
      const bar = draw(svg, "rect", { x: left, y: top + 15, width: Math.max(0, wide), height: thick, rx: Math.min(2, wide / 2) });
      bar.style.fill = `var(${partNames[which][1]})`;
      bar.addEventListener("pointermove", (event) => showTip(event, run.label, partNames.map(([name], i) => [name, duration(run.parts[i]), null])));
      bar.addEventListener("pointerleave", hideTip);
      left += wide;
    });
  });
  box.append(make("div", { class: "keys" }, ...partNames.map(([name, colour]) => make("span", {}, swatch(`var(${colour})`), name))));
  return runs.length;
}

function drawCharts(data) {
  const drawn = {
    jct: distributionChart(data, "chart-jct", (run) => run.jct_cdf, {
      marks: durationMarks, even: timeTicks, tick: durationTick, exact: (v) => `within ${duration(v)}`,
    }),
    parts: partsChart(data),
    ftf: distributionChart(data, "chart-ftf", (run) => run.ftf_cdf, {
      marks: ratioMarks, even: niceTicks, tick: (v) => String(Number(v.toPrecision(6))), exact: (v) => `ρ ≤ ${v.toFixed(2)}`, lines: [{ x: data.unfair_above, text: `unfair: ρ > ${data.unfair_above} →` }],
    }),
    use: overTimeChart(data, "chart-use", (run) => run.use, Math.max(...data.clusters.map((c) => c.size))),
    queue: overTimeChart(data, "chart-queue", (run) => run.queue, null),
  };
  for (const [name, lines] of Object.entries(drawn)) document.getElementById(`chart-${name}`).dataset.lines = lines;
}
