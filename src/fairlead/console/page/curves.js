// The metrics of a job as small charts, along its steps or time, with what happened to the job marked on each.
import { get, jobPath } from "/console/api.js";
import { localTicks } from "/console/over-time.js";
import { clock, date, plural, tick } from "/console/words.js";

const againAfterMs = 10_000;
const batchSize = "batch_size";
const measured = { accelerator_busy: "GPU utilization", accelerator_memory_gb: "GPU memory in GB" };
const kinds = {
  preempted: "preempted or requeued",
  moved: "moved to other GPUs",
  resized: "resized",
  batch: "batch size changed",
  failed: "failed or interrupted",
};
const kindOf = { moved: "moved", interrupted: "failed", failed: "failed" }; // by outcome; after any other it was requeued

export function curvesCard(number, now) {
  const along = make("select", { onchange: redraw }, ...["step", "time"].map((text) => make("option", { value: text, text }))),
    tools = make("div", { class: "tools", hidden: "" }, make("label", {}, "Along", along)),
    charts = make("div", { class: "multiples" }),
    legend = make("div", { class: "keys" }),
    note = make("p", { class: "muted", text: "none reported" });
  const element = make(
    "section",
    { class: "card", id: "metrics" },
    make("h2", { text: "Metrics" }),
    note,
    tools,
    charts,
    legend,
  );
  let found = {},
    runs = [],
    askedAt = -Infinity,
    shown = "";
  onResize(charts, redraw);

  // The job has changed, or a while has passed.
  async function update(itsRuns, soon) {
    runs = itsRuns;
    if (!soon && performance.now() - askedAt < againAfterMs) return;
    askedAt = performance.now();
    try {
      const answer = await get(jobPath(number, "/metrics"));
      found = answer.metrics;
    } catch (refused) {
      note.textContent = refused.message;
      note.hidden = false;
      return;
    }
    const names = Object.keys(found),
      state = JSON.stringify([names.map((name) => [name, found[name].time.at(-1)]), runs.map((run) => run.outcome)]);
    if (state === shown) return;
    if (!shown && names.length) along.value = names.some((name) => found[name].step.at(-1) > 0) ? "step" : "time";
    shown = state;
    tools.hidden = !names.length;
    note.hidden = names.length > 0;
    redraw();
  }

  function redraw() {
    const steps = along.value === "step",
      marked = eventsOf(runs, found[batchSize]);
    const names = Object.keys(found).sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
    const lines = names.map((name) => (steps ? redone(found[name]) : withGaps(found[name], runs))),
      begin = Math.min(...lines.map((line) => line.x[0])),
      end = Math.max(...lines.map((line) => line.x.at(-1)), ...(steps ? [] : marked.map((event) => event.time)), begin + 1);
    charts.replaceChildren();
    names.forEach((name, i) => drawCurve(name, lines[i], [begin, end], marked, steps));
    const there = new Set(marked.map((event) => event.kind));
    legend.replaceChildren(
      ...Object.entries(kinds)
        .filter(([kind]) => there.has(kind))
        .map(([kind, text]) => make("span", {}, make("i", { class: `key key-${kind}` }), text)),
    );
    Object.assign(element.dataset, { curves: names.length, events: [...there].join(" ") });
  }

  function drawCurve(name, points, [low, high], marked, steps) {
    const title = measured[name] ?? name,
      known = points.y.filter((value) => value !== null),
      last = known.length ? exact(known.at(-1)) : "–",
      plot = make("div", { class: "plot" });
    charts.append(make("figure", {}, make("figcaption", {}, title, make("b", { text: last })), plot));
    const [bottom, top] = range(known),
      place = (time) => (steps ? stepAt(longest(found), time) : time);
    const events = marked
      .map((event) => ({ ...event, x: place(event.time), text: `${event.text}, ${clock(event.time)}` }))
      .filter((event) => event.x >= low && event.x <= high);
    const line = { label: name, colour: "var(--accent)", dash: "", ...points, straight: name !== batchSize };
    if (!line.straight) line.x = [...points.x, high];
    const axis = steps
      ? {
          ticks: (a, b, n) => niceTicks(a, b, n * 0.8),
          text: count,
          exact: (v) => `step ${Math.round(v).toLocaleString("en")}`,
        }
      : { ticks: (a, b, n) => localTicks(a, b, n * 0.8), text: (v) => tick(v, high - low), exact: (v) => date(v, now()) };
    lineChart(plot, {
      lines: known.length ? [line] : [],
      events,
      height: 170,
      label: `${title} along ${along.value}, last ${last}` + (events.length ? `, ${plural(events.length, "event")}` : ""),
      x: { low, high, ...axis },
      y: { low: bottom, high: top, ticks: niceTicks(bottom, top, 4), text: exact, exact },
    });
  }

  return { element, update };
}

const rank = (name) => (name === "loss" ? 0 : name === batchSize ? 2 : name in measured ? 3 : 1);
const exact = (value) => {
  const size = Math.abs(value);
  return size && (size < 1e-3 || size >= 1e6) ? value.toExponential(1) : String(Number(value.toPrecision(4)));
};
const count = (value) => (value >= 1e4 ? `${Number((value / 1000).toPrecision(4))}k` : String(Number(value.toPrecision(6))));

function range(values) {
  let low = Infinity,
    high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low >= 0 && low < 0.4 * high ? 0 : low - room, high + room];
}

// Where its launches stopped, and where its batch size changed.
function eventsOf(runs, batch) {
  const found = [];
  runs.forEach((run, i) => {
    const next = runs[i + 1];
    if (!next && run.outcome !== "preempted") return;
    const sized = run.outcome === "moved" && next.gpus !== run.gpus,
      again = run.outcome in kindOf || run.outcome === "preempted" ? run.outcome : "requeued";
    const to = next ? `, then ${next.gpus} × ${next.gpu_type}` : "";
    found.push({
      time: run.end,
      kind: sized ? "resized" : (kindOf[run.outcome] ?? "preempted"),
      text: `${sized ? "resized" : again}${to}`,
    });
  });
  (batch?.value ?? []).forEach((size, i) => {
    if (i && size !== batch.value[i - 1])
      found.push({ time: batch.time[i], kind: "batch", text: `batch size ${batch.value[i - 1]} to ${size}` });
  });
  return found;
}

// The line is interrupted where the job did not run.
function withGaps(curve, runs) {
  const x = [],
    y = [],
    stops = runs.filter((run, i) => run.outcome && runs[i + 1]?.start > run.end + 2).map((run) => run.end);
  curve.time.forEach((time, i) => {
    const stop = stops.find((end) => x.length && end >= x.at(-1) && end < time);
    if (stop !== undefined) {
      x.push(stop);
      y.push(null);
    }
    x.push(time);
    y.push(curve.value[i]);
  });
  return { x, y };
}

// A job that resumes from a checkpoint does some steps again: only their last values are shown.
function redone(curve) {
  const x = [],
    y = [];
  curve.step.forEach((step, i) => {
    while (x.length && x.at(-1) > step) {
      x.pop();
      y.pop();
    }
    x.push(step);
    y.push(curve.value[i]);
  });
  return { x, y };
}

// The metric with the most reports tells best which step the job had reached when.
function longest(found) {
  return Object.values(found).reduce((one, other) => (other.time.length > one.time.length ? other : one));
}

// The step that it had reached at a moment: between two reports, in proportion; after a stop it may be an earlier one.
function stepAt(curve, time) {
  const after = curve.time.findIndex((one) => one >= time);
  if (after < 1) return after === 0 ? curve.step[0] : curve.step.at(-1);
  return Math.min(curve.step[after - 1], curve.step[after]);
}
