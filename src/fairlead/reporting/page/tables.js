// The three tables: the summary of runs, the jobs of one run, its users.
const stackedBelow = 760;

// Where the columns do not fit side by side, they continue in a second table below.
function drawSummary(data, sorting) {
  const box = document.getElementById("summary-table"), whole = summaryTable(data, data.columns, sorting);
  box.replaceChildren(whole);
  if (innerWidth <= stackedBelow || !data.columns.length) return;
  whole.style.width = "auto";
  const [name, ...widths] = [...whole.querySelectorAll("th")].map((cell) => cell.getBoundingClientRect().width);
  const style = getComputedStyle(box), room = box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - name;
  const bands = [[]];
  let left = room;
  widths.forEach((width, i) => {
    left -= width;
    if (left < 0 && bands.at(-1).length) { bands.push([]); left = room - width; }
    bands.at(-1).push(data.columns[i]);
  });
  box.replaceChildren(...bands.map((columns) => summaryTable(data, columns, sorting)));
}

function bestOf(data, { key, better, shows: how }) {
  const known = data.runs.map((run) => run.summary[key]).filter((v) => v !== null && v !== undefined);
  const low = Math.min(...known), high = Math.max(...known);
  if (!better || known.length < 2 || low === high) return null;
  const best = better === "low" ? low : high;
  return best === 0 && how === "count" ? null : best;
}

function summaryTable(data, columns, sorting) {
  const heading = (text, key, meaning, unit = "") => {
    const arrow = sorting.key === key ? (sorting.up ? " ▲" : " ▼") : "";
    const cell = make("th", { scope: "col", class: key === "" ? "text" : null, onclick: () => {
      sorting.up = sorting.key === key ? !sorting.up : true;
      sorting.key = key;
      drawSummary(data, sorting);
    } }, text + arrow);
    if (unit) cell.append(make("span", { class: "unit", text: ` (${unit})` }));
    cell.addEventListener("pointermove", (event) => showTip(event, text, [], meaning));
    cell.addEventListener("pointerleave", hideTip);
    return cell;
  };
  const value = (run) => (sorting.key ? run.summary[sorting.key] ?? Infinity : sorting.key === "" ? run.label : run.number);
  const order = [...data.runs].sort((a, b) => {
    const one = value(a), other = value(b);
    return (sorting.up ? 1 : -1) * (typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : one - other || a.number - b.number);
  });
  const shown = columns.map(({ key, shows: how }) => showColumn(order.map((run) => run.summary[key]), how));
  const best = columns.map((column) => bestOf(data, column));
  const label = (i) => columns[i].heading + (shown[i].unit ? ` (${shown[i].unit})` : "");
  const head = make("tr", {}, heading("scheduler", "", "The run's label."), ...columns.map((c, i) => heading(c.heading, c.key, c.meaning, shown[i].unit)));
  const body = order.map((run, row) => make("tr", {}, make("td", { class: "text" }, make("div", { class: "run" }, swatch(run.colour), run.label)),
    ...columns.map(({ key }, i) => make("td", { class: best[i] !== null && run.summary[key] === best[i] ? "best" : null, "data-label": label(i) },
      make("span", { text: shown[i].texts[row] })))));
  return make("table", { class: "figures sortable" }, make("thead", {}, head), make("tbody", {}, ...body));
}

function makeJobsTable(data, onClick) {
  let run = data.runs[0];
  const number = (name) => (row) => run.jobs[name][row], time = (name) => (row) => duration(run.jobs[name][row]);
  const text = (pick) => ({ value: pick, text: pick, left: true });
  const grid = makeTable(document.getElementById("jobs-table"), [
    { heading: "name", least: 216, share: 2, ...text((row) => run.table.names[row]) },
    { heading: "job type", least: 130, share: 2, ...text((row) => run.table.kinds[run.table.kind[row]] || "–") },
    { heading: "user", least: 84, ...text((row) => run.table.users[run.table.user[row]] || "–") },
    { heading: "workers", value: (row) => run.table.workers[row], text: (row) => String(run.table.workers[row]) },
    { heading: "phase", least: 84, ...text((row) => data.phases[run.jobs.phase[row]]) },
    { heading: "submitted", least: 110, value: (row) => run.table.submitted[row], text: (row) => moment(run.table.submitted[row], Math.min(run.span[1] - run.span[0], 1e5)) },
    { heading: "first start", value: number("wait"), text: time("wait"), meaning: "Wait from submission to the first start." },
    { heading: "JCT", value: number("jct"), text: time("jct"), meaning: "From submission to the end, however the job ended." },
    { heading: "running", value: number("run"), text: time("run"), meaning: "Time in which the job held GPUs." },
    { heading: "ρ", value: number("ftf"), text: (row) => show(run.jobs.ftf[row], "ratio"), meaning: "Finish-time fairness." },
    { heading: "preempted", value: number("preemptions"), text: (row) => String(run.jobs.preemptions[row]) },
    { heading: "restarts", value: number("restarts"), text: (row) => String(run.jobs.restarts[row]) },
  ], { by: 7, up: false, onClick: (row) => onClick(run, row) });
  const search = document.getElementById("jobs-search");

  function refresh() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean), rows = [], { table } = run;
    for (let row = 0; row < table.names.length; row++) {
      const all = `${table.names[row]} ${table.kinds[table.kind[row]]} ${table.users[table.user[row]]} ${data.phases[run.jobs.phase[row]]}`.toLowerCase();
      if (words.every((word) => all.includes(word))) rows.push(row);
    }
    document.getElementById("jobs-count").textContent = `${rows.length.toLocaleString("en")} of ${table.names.length.toLocaleString("en")}`
      + (run.gantt ? "; click one to follow it in the Gantt" : "");
    grid.show(rows);
  }
  search.addEventListener("input", refresh);
  return { choose(chosen) { run = chosen; grid.choose(-1); refresh(); }, mark: grid.choose };
}

function userRows(run) {
  const { table, jobs } = run, users = table.users.map((name) => ({ name: name || "–", jobs: 0, done: 0, jct: 0, wait: 0, held: 0, ftf: 0, rated: 0, worst: NaN }));
  for (let row = 0; row < table.names.length; row++) {
    const user = users[table.user[row]];
    user.jobs++;
    user.held += jobs.held[row] || 0;
    if (jobs.phase[row] !== 3) continue;
    user.done++;
    user.jct += jobs.jct[row];
    user.wait += jobs.wait[row];
    const rho = jobs.ftf[row];
    if (!Number.isFinite(rho)) continue;
    user.ftf += rho;
    user.rated++;
    user.worst = user.worst > rho ? user.worst : rho;
  }
  return users;
}

function makeUsersTable(data) {
  let rows = [];
  const count = (pick) => ({ value: pick, text: (row) => show(pick(row), "count") });
  const time = (pick) => ({ value: pick, text: (row) => duration(pick(row)) });
  const ratio = (pick) => ({ value: pick, text: (row) => show(pick(row), "ratio") });
  const grid = makeTable(document.getElementById("users-table"), [
    { heading: "user", least: 150, share: 2, value: (row) => row.name, text: (row) => row.name, left: true },
    { heading: "jobs", ...count((row) => row.jobs) },
    { heading: "finished", ...count((row) => row.done) },
    { heading: "avg JCT", ...time((row) => row.jct / row.done) },
    { heading: "avg first start", ...time((row) => row.wait / row.done), meaning: "Mean wait from submission to the first start." },
    { heading: "GPU time", least: 130, ...time((row) => row.held), meaning: "GPU time of the user's jobs. A GPU that two jobs share counts for both; utilization and cost count it once." },
    { heading: "avg ρ", ...ratio((row) => row.ftf / row.rated), meaning: "Finish-time fairness, mean of the user's finished jobs." },
    { heading: "worst ρ", ...ratio((row) => row.worst) },
  ], { by: 5, up: false });
  const search = document.getElementById("users-search");
  const refresh = () => {
    const word = search.value.toLowerCase().trim(), kept = rows.filter((row) => row.name.toLowerCase().includes(word));
    document.getElementById("users-count").textContent = `${kept.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")}`;
    grid.show(kept);
  };
  search.addEventListener("input", refresh);
  return { choose(run) { rows = userRows(run); refresh(); } };
}
