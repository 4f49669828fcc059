// A Gantt with one row for each job: its past runs, and beyond "now" its forecast. Only rows in view are drawn.
import { css, inkOn, jobColour } from "/console/colours.js";
import { localTicks } from "/console/over-time.js";
import { fitted } from "/console/tiles.js";
import { tick, waitingStates } from "/console/words.js";

const rowHeight = 22,
  axisHeight = 28,
  tallest = 620;

export const laneView = () => ({ low: 0, high: 1, from: 0, to: 1, scroll: 0, picked: -1, follows: true });

// data(): {rows: [{job, runs, forecast}], now, until, label(run)}; runs end at `until`, or now. onPick(number); tipOf(row, at):
// arguments of a tooltip. Two with the same view move together: `onMove` repaints the other one.
export function makeLanes(canvas, data, onPick, tipOf, { view = laneView(), most = tallest, onMove = () => {} } = {}) {
  const context = canvas.getContext("2d"),
    face = getComputedStyle(document.body).fontFamily;
  const gantt = {
    view,
    gutter: 130,
    plotWidth,
    zoom,
    zoomRows() {},
    place,
    scrollTo,
    reset,
    pick: onPick,
    stretchAt,
    hover,
    columns: () => ({ job: data().rows.map((row) => row.job.number) }),
  };
  let width = 0,
    height = 0,
    asked = false;

  function plotWidth() {
    return Math.max(50, width - gantt.gutter - 8);
  }
  function contentHeight() {
    return data().rows.length * rowHeight;
  }

  function setSpan(low, high) {
    const span = view.to - view.from,
      whole = span >= (view.high - view.low) * 0.999;
    Object.assign(view, { low, high });
    if (whole || !view.follows) {
      if (whole) Object.assign(view, { from: low, to: high });
    } else place(view.from, span);
  }

  function resize() {
    width = canvas.parentElement.clientWidth;
    gantt.gutter = width < 560 ? 84 : 150;
    height = Math.max(120, Math.min(most, contentHeight() + 6)) + axisHeight;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    scrollTo(view.scroll);
    paint();
  }

  function later() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      paint();
    });
  }

  function moved() {
    later();
    onMove();
  }

  const x = (at) => gantt.gutter + ((at - view.from) / (view.to - view.from)) * plotWidth();

  function paint() {
    const colours = {
      ink: css("--ink"),
      soft: css("--soft"),
      line: css("--line"),
      grid: css("--grid"),
      card: css("--card"),
      accent: css("--accent"),
      bad: css("--bad"),
      faint: css("--faint"),
    };
    const { rows, now, until = now } = data(),
      plot = height - axisHeight;
    context.fillStyle = colours.card;
    context.fillRect(0, 0, width, height);
    paintAxis(colours, plot);
    context.save();
    context.beginPath();
    context.rect(0, 0, width, plot);
    context.clip();
    const first = Math.max(0, Math.floor(view.scroll / rowHeight)),
      last = Math.min(rows.length, first + Math.ceil(plot / rowHeight) + 1);
    let bars = 0;
    for (let place = first; place < last; place++)
      bars += paintRow(rows[place], place * rowHeight - view.scroll + 3, now, until, colours);
    context.restore();
    paintNow(now, plot, colours);
    Object.assign(canvas.dataset, { bars, rows: rows.length, from: view.from, to: view.to });
  }

  function paintRow(row, y, now, until, colours) {
    const { job, runs } = row,
      thick = rowHeight - 6,
      left = gantt.gutter,
      right = width - 8;
    context.fillStyle = colours.soft;
    context.font = `11.5px ${face}`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(fitted(context, job.name || `#${job.number}`, gantt.gutter - 14), 6, y + thick / 2 + 1);
    context.fillStyle = colours.grid;
    context.fillRect(left, y + rowHeight - 4, right - left, 1);
    context.save();
    context.beginPath();
    context.rect(left, y - 3, right - left, rowHeight);
    context.clip();
    if (job.submitted) {
      // the time in which it waited
      context.fillStyle = colours.faint;
      const from = x(job.submitted),
        to = x(runs.length && !waitingStates.has(job.state) ? runs.at(-1).start : (job.ended ?? now));
      for (let at = Math.max(left, from); at < Math.min(right, to); at += 6) context.fillRect(at, y + thick / 2, 3, 1.5);
    }
    paintForecast(job, row, y, thick, now);
    runs.forEach((run, i) => paintRun(job, run, runs[i + 1], y, thick, until, colours));
    context.restore();
    return runs.length;
  }

  function paintRun(job, run, next, y, thick, until, colours) {
    const end = Math.min(run.end, until),
      from = x(run.start),
      to = Math.max(x(end), from + 1.5),
      colour = jobColour(job.number);
    if (to < gantt.gutter || from > width) return;
    context.fillStyle = colour;
    context.fillRect(from, y, to - from, thick);
    const left = Math.max(from, gantt.gutter); // where what is in view of it begins
    if (to - left > 46) {
      context.fillStyle = inkOn(colour);
      context.font = `10.5px ${face}`;
      context.fillText(fitted(context, data().label(run), to - left - 8), left + 5, y + thick / 2 + 0.5);
    }
    if (next) {
      // stopped: moved or resized at once, else preempted
      const at = x(run.end),
        touching = next.start - run.end < 2;
      context.fillStyle = touching ? colours.ink : colours.bad;
      context.beginPath();
      if (touching) {
        context.moveTo(at - 4, y - 3);
        context.lineTo(at + 4, y - 3);
        context.lineTo(at, y + 3);
      } else context.rect(at - 1.5, y - 3, 3, thick + 5);
      context.fill();
    } else if (run.end < Infinity && (job.state === "failed" || job.state === "cancelled")) {
      context.strokeStyle = colours.bad;
      context.lineWidth = 2;
      context.beginPath();
      context.moveTo(to - 4, y + 2);
      context.lineTo(to + 4, y + thick - 2);
      context.moveTo(to + 4, y + 2);
      context.lineTo(to - 4, y + thick - 2);
      context.stroke();
    } else if (run.end < Infinity && job.state !== "finished") {
      // it waits again
      context.fillStyle = colours.bad;
      context.fillRect(to - 1.5, y - 3, 3, thick + 5);
    }
  }

  // A shaded band from the earliest start to the latest end, and in it the median run.
  function paintForecast(job, row, y, thick, now) {
    const found = row.forecast;
    if (!found) return;
    const waits = job.state !== "running",
      colour = jobColour(job.number),
      far = view.high;
    const band = [waits ? found.start[0] : found.end[0], found.end[2] ?? far],
      run = [waits ? found.start[1] : now, found.end[1] ?? far];
    context.fillStyle = colour;
    if (band[0] !== null) {
      context.globalAlpha = 0.16;
      context.fillRect(x(band[0]), y - 1, x(band[1]) - x(band[0]), thick + 2);
    }
    if (run[0] !== null) {
      const [from, to] = run.map(x);
      context.globalAlpha = 0.5;
      context.fillRect(from, y + 3, Math.max(1, to - from), thick - 6);
      context.globalAlpha = 1;
      context.strokeStyle = colour;
      context.lineWidth = 1;
      context.setLineDash([3, 2]);
      context.strokeRect(from + 0.5, y + 3.5, Math.max(1, to - from - 1), thick - 7);
      context.setLineDash([]);
    }
    context.globalAlpha = 1;
  }

  function paintAxis(colours, plot) {
    context.font = `11px ${face}`;
    context.textBaseline = "middle";
    context.textAlign = "center";
    for (const at of localTicks(view.from, view.to, plotWidth() / 100)) {
      const place = x(at);
      context.fillStyle = colours.grid;
      context.fillRect(place, 0, 1, plot);
      context.fillStyle = colours.soft;
      if (place > gantt.gutter + 10 && place < width - 24 && Math.abs(place - x(data().now)) > 46)
        context.fillText(tick(at, view.to - view.from), place, plot + 15);
    }
    context.fillStyle = colours.line;
    context.fillRect(gantt.gutter, plot, plotWidth(), 1);
  }

  function paintNow(now, plot, colours) {
    const at = x(now);
    if (at < gantt.gutter || at > width) return;
    context.fillStyle = colours.accent;
    context.fillRect(at - 0.75, 0, 1.5, plot + 4);
    context.fillStyle = colours.card;
    context.fillRect(at - 17, plot + 6, 34, 18);
    context.fillStyle = colours.accent;
    context.font = `600 11px ${face}`;
    context.textAlign = "center";
    context.fillText("now", at, plot + 15);
  }

  function stretchAt(px, y) {
    const place = Math.floor((y + view.scroll - 3) / rowHeight);
    return y < height - axisHeight && data().rows[place]
      ? { stretch: place, at: view.from + ((px - gantt.gutter) / plotWidth()) * (view.to - view.from) }
      : null;
  }

  function hover(event, px, y) {
    const hit = stretchAt(px, y);
    if (!hit) return hideTip();
    return showTip(event, ...tipOf(data().rows[hit.stretch], hit.at));
  }

  function zoom(factor, px = gantt.gutter + plotWidth() / 2) {
    const centre = view.from + ((px - gantt.gutter) / plotWidth()) * (view.to - view.from);
    const span = Math.min(view.high - view.low, Math.max(30, (view.to - view.from) * factor));
    place(centre - ((px - gantt.gutter) / plotWidth()) * span, span);
  }

  function place(from, span) {
    view.from = Math.min(Math.max(from, view.low), Math.max(view.low, view.high - span));
    view.to = view.from + span;
    moved();
  }

  function scrollTo(top) {
    view.scroll = Math.max(0, Math.min(top, contentHeight() + 6 - (height - axisHeight)));
    moved();
  }

  function reset() {
    Object.assign(view, { from: view.low, to: view.high, scroll: 0 });
    moved();
  }

  attachGantt(canvas, gantt);
  onResize(canvas.parentElement, resize);
  return { resize, paint: later, setSpan, reset, zoom, scroll: (by) => scrollTo(view.scroll + by) };
}

export function laneButtons(lanes) {
  const button = (text, label, act) => make("button", { type: "button", text, "aria-label": label, onclick: act });
  return make(
    "span",
    { class: "buttons" },
    button("−", "Zoom out", () => lanes().zoom(1 / 0.6)),
    button("+", "Zoom in", () => lanes().zoom(0.6)),
    button("▲", "Earlier rows", () => lanes().scroll(-200)),
    button("▼", "Later rows", () => lanes().scroll(200)),
    button("Reset", "Reset the view", () => lanes().reset()),
  );
}

export function laneKey(text, kind) {
  return make("span", {}, make("i", { class: `key ${kind}` }), text);
}
