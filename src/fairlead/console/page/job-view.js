// #job/NUMBER: why it waits, its forecast, launches, metrics and log, and what the user may change.
import { get, jobPath } from "/console/api.js";
import { curvesCard } from "/console/curves.js";
import { facts, plainTable } from "/console/dialog.js";
import { jobActions } from "/console/job-actions.js";
import { logBox } from "/console/log.js";
import { smallestChange } from "/console/smallest-change.js";
import { date, endedStates, forecastWords, plural, waitingStates } from "/console/words.js";

const againAfterMs = 5000;

export function jobView(root, { store, forecast, session, go }, argument) {
  const number = Number(argument),
    head = make("div"),
    launches = make("div"),
    change = smallestChange(number),
    curves = curvesCard(number, () => store.now()),
    log = logBox(number);
  for (const part of [change, curves, log]) part.element.hidden = true;
  root.append(head, change.element, launches, curves.element, log.element);
  let record = null,
    runs = [],
    timer = 0,
    stopped = false,
    seen = "";
  load();

  async function load() {
    clearTimeout(timer);
    try {
      const found = await get(jobPath(number));
      runs = (await get(`/v1/runs?job=${number}`)).runs;
      const moved = found.starts !== record?.starts || found.phase !== record?.phase;
      record = found;
      show();
      for (const part of [curves, log]) part.element.hidden = false;
      curves.update(runs, moved);
    } catch (refused) {
      head.replaceChildren(
        make(
          "section",
          { class: "card" },
          make("h2", { text: `Job ${argument}` }),
          make("p", { class: "problem", text: refused.message }),
          make("button", { type: "button", text: "Back to the queue", onclick: () => go("#queue") }),
        ),
      );
      for (const part of [change, curves, log]) part.element.hidden = true;
      launches.replaceChildren();
      return;
    }
    if (!stopped && !endedStates.has(record.phase)) timer = setTimeout(load, againAfterMs);
  }

  function update(touched) {
    const job = store.jobs.get(number),
      state = `${job?.state} ${job?.launches} ${job?.reason} ${job?.priority}`;
    if (touched.jobs.has(number) && state !== seen) {
      seen = state;
      load();
      log.poll();
    }
    if (record && !endedStates.has(record.phase)) forecast.want();
    if (record && (touched.forecast || touched.jobs.has(number))) show();
  }

  function show() {
    const now = store.now(),
      live = store.jobs.get(number),
      state = live?.state ?? record.phase,
      done = live?.progress ?? (record.steps_known && record.steps ? (record.steps_done ?? 0) / record.steps : null);
    const progress =
      done === null || done === undefined ? null : make("span", {}, meter(done), ` ${(100 * done).toFixed(1)} %`);
    const card = make(
      "section",
      { class: "card", id: "job" },
      make("h2", {}, record.name, make("small", { text: ` number ${record.number}` })),
      make("p", {}, make("span", { class: `state ${state}`, text: state }), record.reason ? ` ${record.reason.text}` : ""),
      facts([
        ["user", record.user],
        ["account", record.account],
        ["job type", record.kind],
        ["GPUs", `${record.workers}${record.type ? ` × ${record.type}` : ""}`],
        ["nodes", record.nodes.join(", ")],
        ["co-located with", record.colocated_with?.join(", ")],
        ["submitted", date(record.submitted_at, now)],
        ["first start", record.started_at && date(record.started_at, now)],
        ["ended", record.ended_at && date(record.ended_at, now)],
        ["exit code", record.exit_code],
        ["run time", duration(record.run_s)],
        ["progress", progress],
        ["steps per second", record.rate ? digits(record.rate) : null],
        ["priority", record.priority],
        ["weight", record.weight],
        ["time limit", record.time_limit_s && duration(record.time_limit_s)],
        ["preemptions", record.preemptions || null],
        ["failures", record.failures || null],
        ["held by", record.held_by],
        ...predictionFacts(record.prediction),
      ]),
      jobActions({ ...record, phase: state }, session, load),
    );
    card.dataset.state = state;
    const focused = document.activeElement?.dataset.action; // the buttons are made anew
    head.replaceChildren(card, make("div", { class: "charts two" }, reasonCard(), forecastCard(state)));
    if (focused) head.querySelector(`[data-action="${focused}"]`)?.focus();
    launches.replaceChildren(launchesCard(now));
    change.element.hidden = !(waitingStates.has(state) && session.features?.includes("fix"));
  }

  function reasonCard() {
    const reason = record.reason,
      numbers = Object.entries(reason?.facts ?? {});
    const latest = Number.isFinite(record.latest_decision_s) ? `, at the latest in ${duration(record.latest_decision_s)}` : "",
      next = record.next_decision_s,
      decided = next === undefined ? null : `Next decision in ${duration(next)}${latest}.`;
    const failure = record.last_failure;
    return make(
      "section",
      { class: "card", id: "reason" },
      make("h2", { text: "Reason" }),
      make("p", { text: reason ? reason.text : "None: it runs, or has finished." }),
      reason
        ? facts([
            ["code", reason.code],
            ["by", reason.by],
            ...numbers.map(([name, value]) => [
              name.replaceAll("_", " "),
              typeof value === "number" && !Number.isInteger(value) ? digits(value) : value,
            ]),
          ])
        : "",
      decided ? make("p", { class: "muted", text: decided }) : "",
      failure
        ? facts([
            ["last failure", failure.why],
            ["node", failure.node],
            ["rank", failure.rank],
            ["launch", failure.launch],
          ])
        : "",
    );
  }

  function forecastCard(state) {
    const start = forecast.inSeconds(number, "start"),
      end = forecast.inSeconds(number, "end");
    const without = endedStates.has(state)
      ? "It has ended."
      : forecast.problem || (forecast.asking ? "The control plane simulates ahead …" : "No forecast yet.");
    return make(
      "section",
      { class: "card", id: "forecast" },
      make("h2", {}, "Forecast ", make("small", { text: "median, and range of at least 80 % of the simulations" })),
      end && !endedStates.has(state)
        ? facts([
            ["start", state === "running" ? "runs now" : forecastWords(start)],
            ["end", forecastWords(end)],
          ])
        : make("p", { class: "muted", text: without }),
    );
  }

  // The journal may have dropped the first launches: the last one of the record has the highest number.
  function launchesCard(now) {
    const before = Math.max(0, record.starts - runs.length);
    const rows = runs.map((run, i) => {
      const lasts = !run.outcome && record.phase === "running",
        end = lasts ? now : run.end;
      return [
        i + 1 + before,
        `${run.gpus} × ${run.gpu_type}`,
        run.nodes?.join(", ") || null,
        date(run.start, now),
        lasts ? "runs" : date(end, now),
        duration(end - run.start),
        run.outcome || null,
        run.exit_code,
      ];
    });
    return make(
      "section",
      { class: "card", id: "launches" },
      make("h2", {}, "Launches ", make("small", { text: plural(record.starts, "launch", "launches") })),
      rows.length
        ? plainTable(["launch", "GPUs", "nodes", "from", "to", "for", "outcome", "exit code"], rows, [3, 4, 5, 7])
        : make("p", { class: "muted", text: "not started yet" }),
    );
  }

  return {
    update,
    unmount() {
      stopped = true;
      clearTimeout(timer);
      log.stop();
    },
  };
}

function meter(share) {
  const inner = make("i"),
    bar = make("span", { class: "meter inline" }, inner);
  inner.style.width = `${100 * Math.min(1, share)}%`;
  return bar;
}

// What was predicted of a job, with what was measured of it alone on a GPU.
function predictionFacts(prediction) {
  if (!prediction) return [];
  const measured = (one, unit) => (one.measured === null ? "" : `, measured ${digits(one.measured)}${unit}`),
    between = (one, unit) =>
      one.predicted ? `${digits(one.predicted)}${unit} (${digits(one.low)} to ${digits(one.high)})${measured(one, unit)}` : null,
    memory = prediction.memory_gb;
  return [
    ["predicted for", prediction.type],
    ["predicted utilization", between(prediction.utilization, " %")],
    ["predicted memory", `at most ${digits(memory.predicted)} GB${measured(memory, " GB")}`],
    ["predicted speed", between(prediction.steps_per_s, " steps/s")],
    ["prediction", prediction.note],
  ];
}
