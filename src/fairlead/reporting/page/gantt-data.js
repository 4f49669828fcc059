// The Gantt's columns: stretches in order of accelerator and start, with what makes them quick to search and to bin.
function ganttColumns(run) {
  if (run.bars !== undefined) return run.bars;
  const raw = run.gantt;
  if (!raw) return (run.bars = null);
  const rows = unpack(raw.rows, "u4"), job = unpack(raw.job, "u4");
  const begin = unpack(raw.start, "u4"), length = unpack(raw.length, "u4");
  const count = job.length;
  const start = new Float64Array(count), end = new Float64Array(count), reach = new Float64Array(count);
  const before = new Float64Array(count + 1), lane = new Uint8Array(count), lanes = new Uint8Array(rows.length - 1);
  for (let row = 0; row + 1 < rows.length; row++) {
    let furthest = -Infinity;
    const free = [];
    for (let i = rows[row]; i < rows[row + 1]; i++) {
      start[i] = raw.low + begin[i] * raw.unit;
      end[i] = raw.low + (begin[i] + length[i]) * raw.unit;
      before[i + 1] = before[i] + (end[i] - start[i]);
      furthest = reach[i] = Math.max(furthest, end[i]);
      // Jobs that share an accelerator lie side by side in lanes. Half a unit forgives the rounding of touching ends.
      let which = free.findIndex((until) => until <= start[i] + raw.unit / 2);
      if (which < 0) which = Math.min(free.length, 7);
      free[which] = end[i];
      lane[i] = which;
    }
    lanes[row] = Math.max(1, free.length);
  }
  run.bars = { rows, job, start, end, reach, before, lane, lanes, count };
  delete run.gantt.start;
  delete run.gantt.length;
  delete run.gantt.job;
  return run.bars;
}

// The first place in [low, high) whose value is above the limit; the values rise.
function firstAbove(values, limit, low, high) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] > limit) high = middle; else low = middle + 1;
  }
  return low;
}

// Rows of accelerators stacked by node, with a gap between nodes: where each lies, in pixels before scrolling.
function ganttLayout(cluster, rowHeight) {
  const nodes = cluster.nodes, gap = nodes.length > 150 ? (rowHeight > 4 ? 2 : 0) : 3;
  const bands = [];
  let y = 0;
  for (const [name, type, first, size] of nodes) {
    bands.push({ name, type, first, size, top: y, height: size * rowHeight });
    y += size * rowHeight + gap;
  }
  const groups = [];
  for (const band of bands) {
    const last = groups[groups.length - 1];
    if (last && last.type === band.type) { last.bottom = band.top + band.height; last.size += band.size; last.nodes++; }
    else groups.push({ type: band.type, top: band.top, bottom: band.top + band.height, size: band.size, nodes: 1 });
  }
  return { bands, groups, rowHeight, height: Math.max(1, y - gap) };
}

function bandAt(layout, y) {
  let low = 0, high = layout.bands.length;
  while (low < high) { const middle = (low + high) >> 1; if (layout.bands[middle].top <= y) low = middle + 1; else high = middle; }
  const band = layout.bands[low - 1];
  return band && y < band.top + band.height ? band : null;
}

function colourCodes(run, by) {
  const table = run.table;
  if (by === "user") return (job) => table.user[job] % 24;
  if (by === "kind") return (job) => table.kind[job] % 24;
  if (by === "workers") return (job) => Math.round(Math.log2(Math.max(1, table.workers[job])) * 2) % 24;
  return (job) => (job * 7 + (job >> 5)) % 24;
}
