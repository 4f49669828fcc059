// #timeline: the past from the record of runs, and right of "now" the forecast, in one Gantt.
import { laneButtons, laneKey as key, makeLanes } from "/console/lanes.js";
import { date, endedStates, forecastWords, plural, waitingStates } from "/console/words.js";

const rebuildEveryMs = 2000,
  restful = 25,
  spans = [
    ["1 hour", 1],
    ["6 hours", 6],
    ["24 hours", 24],
    ["7 days", 168],
  ];
const order = { running: 0, waiting: 1, queued: 1, held: 1 };

export function timelineView(root, { store, forecast, go, loadRuns }) {
  const select = (label, options) =>
    make(
      "label",
      {},
      label,
      make("select", { onchange: rebuild }, ...options.map(([text, value]) => make("option", { value: value ?? text, text }))),
    );
  const hours = select("Past", spans),
    user = select("User", [["all", ""]]),
    account = select("Account", [["all", ""]]);
  const state = select("State", [
    ["all", ""],
    ["running", "running"],
    ["waiting", "waiting"],
    ["ended", "ended"],
  ]);
  const boxes = { hours: hours.lastChild, user: user.lastChild, account: account.lastChild, state: state.lastChild };
  boxes.hours.value = "1";
  boxes.hours.addEventListener("change", () => load());
  const canvas = make("canvas", {
    tabindex: "0",
    role: "img",
    "aria-label": "Runs of jobs over time; arrow keys move, + and - zoom",
  });
  const note = make("small"),
    problem = make("p", { class: "hint" });
  root.append(
    make(
      "section",
      { class: "card" },
      make("h2", {}, "Timeline ", note),
      make(
        "div",
        { class: "tools" },
        hours,
        user,
        account,
        state,
        make("span", { class: "spacer" }),
        laneButtons(() => lanes),
      ),
      make("div", { class: "canvas-box" }, canvas),
      make(
        "div",
        { class: "keys" },
        key("run", "key-run"),
        key("forecast: median run", "key-median"),
        key("forecast: at least 80 % of simulations", "key-band"),
        key("waits", "key-wait"),
        key("preempted", "key-preempted"),
        key("moved or resized", "key-moved"),
        key("failed or cancelled", "key-failed"),
      ),
      problem,
    ),
  );
  let rows = [],
    builtAt = -Infinity,
    took = 0,
    timer = 0,
    earliest = Infinity,
    latest = -Infinity;
  const lanes = makeLanes(
    canvas,
    () => ({ rows, now: store.now(), label }),
    (number) => go(`#job/${number}`),
    tipOf,
  );
  const clockTimer = setInterval(() => {
    if (!document.hidden) {
      span();
      lanes.paint();
    }
  }, 1000);
  load();
  lanes.resize();

  function load() {
    loadRuns(3600 * Number(boxes.hours.value)).then(rebuild);
  }

  function update(touched) {
    forecast.want();
    if (!(touched.all || touched.moved || touched.forecast)) return;
    clearTimeout(timer);
    timer = setTimeout(
      rebuild,
      touched.all || touched.forecast ? 0 : Math.max(0, builtAt + Math.max(rebuildEveryMs, restful * took) - performance.now()),
    );
  }

  function rebuild() {
    builtAt = performance.now();
    const since = store.now() - 3600 * Number(boxes.hours.value),
      runs = new Map();
    const add = (run) => {
      const own = runs.get(run.number);
      if (own) own.push(run);
      else runs.set(run.number, [run]);
    };
    for (const run of store.runs) if (run.end >= since) add(run);
    for (const job of store.jobs.values()) {
      if (job.state === "running" && job.started)
        add({ number: job.number, type: job.gpu_type, gpus: job.devices.length, start: job.started, end: Infinity });
    }
    // Jobs that ended long ago are only in the record of runs.
    const earlier = new Map();
    for (const run of store.runs)
      if (!store.jobs.has(run.number) && run.end >= since)
        earlier.set(run.number, { ...run, state: "finished", ended: run.end });
    const jobs = [...store.jobs.values(), ...earlier.values()].filter(
      (job) => job.name && !(endedStates.has(job.state) && (job.ended ?? 0) < since),
    );
    choices(boxes.user, jobs, "user");
    choices(boxes.account, jobs, "account");
    const shown = jobs.filter(
      (job) =>
        (!boxes.user.value || job.user === boxes.user.value) &&
        (!boxes.account.value || job.account === boxes.account.value) &&
        (!boxes.state.value ||
          (boxes.state.value === "ended"
            ? endedStates.has(job.state)
            : boxes.state.value === "waiting"
              ? waitingStates.has(job.state)
              : job.state === boxes.state.value)),
    );
    rows = shown.map((job) => ({
      job,
      runs: (runs.get(job.number) ?? []).sort((a, b) => a.start - b.start),
      forecast: endedStates.has(job.state) ? null : forecast.of(job.number),
    }));
    const rank = (row) => order[row.job.state] ?? 2,
      begin = (row) => row.runs[0]?.start ?? row.forecast?.start[1] ?? Infinity;
    for (const row of rows) row.key = rank(row) === 2 ? -(row.job.ended ?? 0) : begin(row);
    rows.sort((a, b) => rank(a) - rank(b) || (a.key === b.key ? a.job.number - b.job.number : a.key - b.key));
    note.textContent = `${plural(rows.length, "job")}; wheel or + and − zoom, drag moves, click opens a job`;
    problem.textContent = remark(since);
    canvas.dataset.forecasts = forecast.jobs.size;
    [earliest, latest] = [Infinity, -Infinity];
    for (const { job, runs: own, forecast: found } of rows) {
      earliest = Math.min(earliest, job.submitted ?? Infinity, own[0]?.start ?? Infinity);
      latest = Math.max(latest, found?.end[2] ?? found?.end[1] ?? -Infinity);
    }
    span();
    lanes.resize();
    took = performance.now() - builtAt; // the more jobs, the longer until the next time
  }

  function remark(since) {
    if (forecast.problem) return `No forecast: ${forecast.problem}`;
    if (forecast.asking && !forecast.jobs.size) return "The control plane simulates ahead …";
    const begins = store.runsSince > Math.max(since, store.origin) + 60; // there is nothing before the first event
    return begins ? `The journal's events begin at ${date(store.runsSince, store.now())}; earlier runs are not known.` : "";
  }

  function label(run) {
    return `${run.gpus} × ${store.types[run.type] ?? "GPU"}`;
  }

  // As far ahead as the forecasts reach, but no further than the past that is shown, so that both can be read.
  function span() {
    const now = store.now(),
      past = 3600 * Number(boxes.hours.value);
    const low = Math.max(now - past, Math.min(earliest, now - 60)),
      high = Math.max(now, latest);
    const reach = Math.max(30, Math.min(high - now, 2 * past), (now - low) * 0.15);
    lanes.setSpan(low - (now - low) * 0.01, now + reach);
  }

  function tipOf(row, at) {
    const { job } = row,
      run = row.runs.find((one) => at >= one.start && at < one.end),
      now = store.now(),
      found = row.forecast;
    const lines = [
      ["state", job.state],
      ["user", job.user],
      ["account", job.account || "–"],
      ["GPUs", String(job.gpus)],
    ];
    if (run && at <= now)
      lines.push(["run", `${date(run.start, now)} to ${run.end === Infinity ? "now" : date(run.end, now)}`], ["on", label(run)]);
    if (job.preemptions) lines.push(["preempted", plural(job.preemptions, "time")]);
    if (found && job.state !== "running") lines.push(["forecast start", forecastWords(forecast.inSeconds(job.number, "start"))]);
    if (found) lines.push(["forecast end", forecastWords(forecast.inSeconds(job.number, "end"))]);
    return [job.name, lines];
  }

  return {
    update,
    theme: () => lanes.paint(),
    unmount() {
      clearTimeout(timer);
      clearInterval(clockTimer);
      hideTip();
    },
  };
}

function choices(box, jobs, field) {
  const names = [...new Set(jobs.map((job) => job[field]).filter(Boolean))].sort();
  if (box.options.length === names.length + 1 && names.every((name, i) => box.options[i + 1].value === name)) return;
  const chosen = box.value;
  box.replaceChildren(
    make("option", { value: "", text: "all" }),
    ...names.map((name) => make("option", { value: name, text: name })),
  );
  box.value = names.includes(chosen) ? chosen : "";
}
