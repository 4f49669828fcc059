// The Gantt on a canvas: its view, labels and axis. Only what is in view is looked at; what is narrower than a pixel is binned
// into one bar whose strength is the share of that pixel's time in which the accelerator was held (gantt-raster.js).
const gutter = 118, axisHeight = 26, tallest = 600;
const face = getComputedStyle(document.body).fontFamily;

function makeGantt(data, onPick) {
  const canvas = document.getElementById("gantt-canvas"), context = canvas.getContext("2d");
  const view = { run: null, low: 0, high: 1, from: 0, to: 1, row: 10, least: 1, scroll: 0, picked: -1, by: "job" };
  let columns = null, layout = null, image = null, asked = false, width = 0, height = 0;

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const plotWidth = () => Math.max(50, width - gutter - 8);
  const plotHeight = () => height - axisHeight;

  function choose(run) {
    view.run = run;
    columns = ganttColumns(run);
    view.picked = -1;
    view.low = Math.min(run.span[0], run.gantt ? run.gantt.low : run.span[0]);
    view.high = Math.max(run.gantt ? run.gantt.until : run.span[1], view.low + 1);
    reset();
  }

  function reset() {
    view.from = view.low;
    view.to = view.high;
    view.scroll = 0;
    const plain = ganttLayout(view.run.cluster, 0).height;
    view.least = Math.min(14, Math.max(2, (tallest - plain) / Math.max(1, view.run.cluster.size)));
    view.row = view.least;
    resize();
  }

  function resize() {
    layout = ganttLayout(view.run.cluster, view.row);
    const least = ganttLayout(view.run.cluster, view.least);
    width = canvas.parentElement.clientWidth;
    height = Math.max(90, Math.min(tallest, least.height)) + axisHeight + 6;
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint();
  }

  function later() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; paint(); });
  }

  function paint() {
    const palette = { ink: css("--ink"), soft: css("--soft"), line: css("--line"), idle: css("--idle"), card: css("--card") };
    context.fillStyle = palette.card;
    context.fillRect(0, 0, width, height);
    canvas.dataset.bars = paintBars(palette);
    context.save();
    context.beginPath();
    context.rect(0, 0, width, plotHeight());
    context.clip();
    paintLabels(palette);
    context.restore();
    paintAxis(palette);
    canvas.dataset.from = view.from;
    canvas.dataset.to = view.to;
  }

  function paintBars(palette) {
    const ratio = canvas.width / width, wide = Math.max(1, Math.round(plotWidth() * ratio)), tall = Math.max(1, Math.round(plotHeight() * ratio));
    if (!image || image.width !== wide || image.height !== tall) image = context.createImageData(wide, tall);
    const seen = layout.bands.filter((band) => band.top + band.height > view.scroll - 3 && band.top < view.scroll + plotHeight());
    const bands = seen.map((band) => ({ first: band.first, size: band.size, top: (band.top - view.scroll + 3) * ratio }));
    const frame = { from: view.from, to: view.to, picked: view.picked, code: colourCodes(view.run, view.by),
      width: wide, height: tall, row: view.row * ratio, bands, ratio };
    const pixels = new Uint32Array(image.data.buffer);
    const { bars, names } = rasterize(pixels, columns, frame, rgbOfHex(palette.card), rgbOfHex(palette.idle));
    context.putImageData(image, Math.round(gutter * ratio), 0);
    for (const [job, left, top, right, bottom] of names) name(job, gutter + left / ratio, top / ratio, (right - left) / ratio, (bottom - top) / ratio);
    return bars;
  }

  function name(job, x, y, wide, thick) {
    const text = view.run.table.names[job], room = Math.floor((wide - 8) / 5.6);
    const [red, green, blue] = jobColours[colourCodes(view.run, view.by)(job)];
    context.fillStyle = 0.3 * red + 0.59 * green + 0.11 * blue > 152 ? "#16202c" : "#ffffff";
    context.font = `${Math.min(11, thick - 1)}px ${face}`;
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillText(text.length > room ? text.slice(0, Math.max(1, room - 1)) + "…" : text, x + 4, y + thick / 2 + 0.5);
  }

  function paintLabels(palette) {
    const types = [...new Set(layout.groups.map((group) => group.type))];
    context.textBaseline = "middle";
    for (const group of layout.groups) {
      const top = group.top - view.scroll + 3, bottom = group.bottom - view.scroll + 3;
      if (bottom < 0 || top > plotHeight()) continue;
      const seen = [Math.max(0, top), Math.min(plotHeight(), bottom)];
      context.fillStyle = data.colours[types.indexOf(group.type) % data.colours.length];
      context.fillRect(gutter - 8, top, 3, bottom - top);
      if (seen[1] - seen[0] < 26) continue;
      context.save();
      context.translate(12, (seen[0] + seen[1]) / 2);
      context.rotate(-Math.PI / 2);
      context.fillStyle = palette.ink;
      context.textAlign = "center";
      context.font = `600 11.5px ${face}`;
      const text = `${group.type} × ${group.size}`;
      context.fillText(context.measureText(text).width > seen[1] - seen[0] ? group.type : text, 0, 0, seen[1] - seen[0]);
      context.restore();
    }
    context.font = `11px ${face}`;
    context.textAlign = "right";
    context.fillStyle = palette.soft;
    let free = -Infinity;
    for (const band of layout.bands) {
      const middle = band.top + band.height / 2 - view.scroll + 3;
      if (middle < 6 || middle > plotHeight() - 4 || middle - 6 < free) continue;
      context.fillText(band.name, gutter - 14, middle, gutter - 40);
      free = middle + 6;
    }
  }

  function paintAxis(palette) {
    const scale = plotWidth() / (view.to - view.from), y = plotHeight();
    context.font = `11px ${face}`;
    context.textBaseline = "middle";
    context.textAlign = "center";
    context.fillStyle = palette.line;
    context.fillRect(gutter, y, plotWidth(), 1);
    for (const tick of timeTicks(view.from, view.to, plotWidth() / 110)) {
      const x = gutter + (tick - view.from) * scale;
      context.fillStyle = palette.line;
      context.fillRect(x, y, 1, 5);
      context.fillStyle = palette.soft;
      if (x > gutter + 10 && x < width - 24) context.fillText(moment(tick, view.to - view.from), x, y + 15);
    }
  }

  function stretchAt(x, y) {
    const band = columns && x >= gutter ? bandAt(layout, y + view.scroll - 3) : null;
    if (!band || y > plotHeight()) return null;
    const inside = y + view.scroll - 3 - band.top, row = band.first + Math.min(band.size - 1, Math.floor(inside / view.row));
    const scale = plotWidth() / (view.to - view.from), at = view.from + (x - gutter) / scale;
    const wanted = Math.floor((inside / view.row - Math.floor(inside / view.row)) * columns.lanes[row]);
    const last = columns.rows[row + 1];
    let found = null;
    for (let i = firstAbove(columns.reach, at - 1 / scale, columns.rows[row], last); i < last && columns.start[i] <= at + 1 / scale; i++) {
      if (columns.end[i] < at - 1 / scale) continue;
      const holds = columns.start[i] <= at && at < columns.end[i];
      if (found === null || holds) found = i;
      if (holds && columns.lane[i] === wanted) break;
    }
    return { band, row, at, stretch: found };
  }

  function zoom(factor, x) {
    const centre = view.from + ((x - gutter) / plotWidth()) * (view.to - view.from);
    const span = Math.min(view.high - view.low, Math.max((view.to - view.from) * factor, (view.high - view.low) * 1e-6, 0.01));
    place(centre - ((x - gutter) / plotWidth()) * span, span);
  }

  function place(from, span) {
    view.from = Math.min(Math.max(from, view.low), view.high - span);
    view.to = view.from + span;
    later();
  }

  function zoomRows(factor, y) {
    const at = (y + view.scroll) / layout.height;
    view.row = Math.min(40, Math.max(view.least, view.row * factor));
    layout = ganttLayout(view.run.cluster, view.row);
    scrollTo(at * layout.height - y);
  }

  function scrollTo(top) {
    view.scroll = Math.max(0, Math.min(top, layout.height + 6 - plotHeight()));
    later();
  }

  function pick(job) {
    view.picked = job === view.picked ? -1 : job;
    later();
    onPick(view.run, view.picked);
  }

  attachGantt(canvas, { view, zoom, zoomRows, place, scrollTo, reset, pick, stretchAt, columns: () => columns, plotWidth, gutter });
  onResize(canvas.parentElement, resize);
  return { choose, reset, pick, paint: later, zoom: (f) => zoom(f, gutter + plotWidth() / 2), colourBy: (by) => { view.by = by; later(); } };
}
