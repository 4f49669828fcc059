// Puts the page together, and says on <body> that it is drawn, or that something went wrong.
window.addEventListener("error", (event) => fail(event.message));

function fail(message) {
  const note = document.getElementById("broken");
  note.textContent = `The page could not be drawn in full: ${message}`;
  note.hidden = false;
  document.body.dataset.errors = String(Number(document.body.dataset.errors || 0) + 1);
}

// The runs' colours were chosen for white paper; on a dark ground they are mixed with white.
function colourRuns(data) {
  const root = document.documentElement;
  data.colours.forEach((colour, i) => {
    root.style.setProperty(`--run-${i}`, root.dataset.theme === "dark" ? `color-mix(in srgb, ${colour} 74%, white)` : colour);
  });
}

function drawFacts(data) {
  const distinct = (values) => [...new Set(values)].join("; ");
  const jobs = Math.max(...data.runs.map((run) => run.table.names.length));
  const spans = data.runs.map((run) => run.table.submitted).filter((s) => s.length).map((s) => s[s.length - 1] - s[0]);
  const facts = [
    ["cluster", distinct(data.clusters.map((c) => c.text))],
    ["GPUs", distinct(data.clusters.map((c) => `${c.size.toLocaleString("en")} on ${c.nodes.length.toLocaleString("en")} ${c.nodes.length === 1 ? "node" : "nodes"}`))],
    ["trace", distinct(data.runs.map((run) => run.trace))],
    ["jobs", jobs.toLocaleString("en")],
    ["submitted over", spans.length ? duration(Math.max(...spans)) : "–"],
    ["users", Math.max(...data.tables.map((t) => t.users.length)).toLocaleString("en")],
    ["runs", String(data.runs.length)],
  ];
  document.getElementById("facts").replaceChildren(...facts.map(([name, value]) => make("div", {}, make("dt", { text: name }), make("dd", { text: value }))));
}

function drawTiles(data) {
  const wanted = [["average_jct_s", "Shortest average JCT"], ["average_responsiveness_s", "Shortest wait for the first start"],
    ["utilization", "Highest utilization"], ["worst_ftf", "Lowest ρ of the worst job"]];
  const { names, chosen } = readParts(), tiles = wanted.map(([key, what]) => {
    const column = data.columns.find((c) => c.key === key), sign = column.better === "low" ? 1 : -1;
    const known = data.runs.filter((run) => run.summary[key] !== null).sort((a, b) => sign * (a.summary[key] - b.summary[key]));
    const texts = showAlike(known.map((run) => run.summary[key]), column.shows);
    const tile = make("div", { class: "tile" }, make("div", { class: "what", text: (data.runs.length > 1 ? what : column.meaning) + (names.length > 1 ? `, ${names[chosen]}` : "") }));
    tile.append(make("div", { class: "value", text: texts[0] ?? "–" }));
    if (known.length) {
      const who = make("div", { class: "who" }, swatch(known[0].colour), known[0].label);
      const next = known[1];
      if (next) who.append(make("span", { class: "than", text: `then ${next.label}, ${texts[1]}` }));
      tile.append(who);
    }
    return tile;
  });
  document.getElementById("tiles").replaceChildren(...tiles);
}

function drawLegend(data, redraw) {
  document.getElementById("legend").replaceChildren(...data.runs.map((run) => {
    const button = make("button", { type: "button", "aria-pressed": "true", title: "Show or hide in the charts" });
    const line = draw(button, "svg", { viewBox: "0 0 22 6" });
    const stroke = draw(line, "line", { x1: 1, x2: 21, y1: 3, y2: 3, "stroke-width": 3, "stroke-dasharray": run.dash, "stroke-linecap": "round" });
    stroke.style.stroke = run.colour;
    button.append(run.label);
    button.addEventListener("click", () => {
      run.shown = !run.shown;
      button.setAttribute("aria-pressed", String(run.shown));
      redraw();
    });
    return button;
  }));
}

function offerParts() {
  const { names, chosen } = readParts(), chooser = document.getElementById("part");
  if (names.length < 2) return;
  chooser.replaceChildren(...names.map((name, number) => make("option", { value: String(number), text: name })));
  chooser.value = String(chosen);
  document.getElementById("chooser").hidden = false;
  chooser.addEventListener("change", () => {
    const search = new URLSearchParams(location.search);
    search.set("part", chooser.value);
    location.assign(`${location.pathname}?${search}#chooser`);
  });
}

function noteOn(run) {
  if (!run.gantt) return "this run has no record of GPU intervals";
  const { count, total, until, low } = run.gantt, all = total.toLocaleString("en");
  if (count === total) return `${all} intervals`;
  return `the first ${duration(until - low)} of the run: ${count.toLocaleString("en")} of ${all} intervals; the rest is left out to keep the page small`;
}

function start() {
  const data = readData();
  offerParts();
  const gantt = makeGantt(data, picked);
  const jobs = makeJobsTable(data, (run, job) => {
    if (run.gantt) { chooseRun(run); gantt.pick(job); document.getElementById("gantt").scrollIntoView(); }
  });
  const users = makeUsersTable(data);
  const choosers = ["gantt-run", "jobs-run", "users-run"].map((id) => document.getElementById(id));

  // One run is looked at closely at a time: the three selectors are one choice.
  function chooseRun(run) {
    for (const chooser of choosers) chooser.value = String(run.number);
    gantt.choose(run);
    jobs.choose(run);
    users.choose(run);
    picked(run, -1);
    document.getElementById("gantt-note").textContent = noteOn(run);
  }

  function picked(run, job) {
    const line = document.getElementById("gantt-picked"), { table } = run;
    line.hidden = job < 0;
    jobs.mark(job);
    if (job < 0) return;
    line.replaceChildren(make("strong", { text: table.names[job] }), `${table.kinds[table.kind[job]] || "no job type"} · ${table.users[table.user[job]] || "–"} · `
      + `${table.workers[job]} workers · first start after ${duration(run.jobs.wait[job])} · JCT ${duration(run.jobs.jct[job])} · running ${duration(run.jobs.run[job])}`,
    make("button", { type: "button", text: "Clear", onclick: () => gantt.pick(job) }));
  }

  const sorting = { key: null, up: true };
  startTheme(() => { colourRuns(data); drawCharts(data); gantt.paint(); });
  drawFacts(data);
  drawTiles(data);
  drawSummary(data, sorting);
  drawLegend(data, () => drawCharts(data));
  for (const chooser of choosers) {
    chooser.replaceChildren(...data.runs.map((run) => make("option", { value: run.number, text: run.label })));
    chooser.addEventListener("change", () => chooseRun(data.runs[Number(chooser.value)]));
  }
  document.getElementById("gantt-colour").addEventListener("change", (event) => gantt.colourBy(event.target.value));
  document.getElementById("gantt-in").addEventListener("click", () => gantt.zoom(0.6));
  document.getElementById("gantt-out").addEventListener("click", () => gantt.zoom(1 / 0.6));
  document.getElementById("gantt-reset").addEventListener("click", () => gantt.reset());
  chooseRun(data.runs[0]);
  document.getElementById("definitions").replaceChildren(...data.columns.map((c) => make("div", {}, make("dt", { text: c.heading }), make("dd", { text: c.meaning }))));
  const spread = data.runs.some((run) => !run.exact) ? " Runs without a record of GPU intervals show GPUs in use and waiting jobs spread evenly over each job's run." : "";
  document.getElementById("options").textContent = `Options: ${data.options.join("; ")}.${spread}`;
  onResize(document.querySelector("main"), () => { drawSummary(data, sorting); drawCharts(data); });
  document.body.dataset.ready = "true";
}

try { start(); } catch (problem) { fail(problem.message); throw problem; }
