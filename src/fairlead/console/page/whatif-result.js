// The answer to a what-if: differences of metrics with their intervals, users and jobs that gain and pay, and both timelines.
import { plainTable } from "/console/dialog.js";
import { laneButtons, laneKey, laneView, makeLanes } from "/console/lanes.js";
import { plural } from "/console/words.js";

const mostRows = 10,
  tallest = 330,
  arrivals = 1e9; // numbers from here on are those of jobs that are only drawn
const percent = (value) => `${(100 * value).toFixed(1)} %`,
  number = (value) => Number(value.toFixed(1)).toLocaleString("en");
const metrics = {
  average_jct_s: ["average JCT", duration, -1],
  p90_jct_s: ["p90 JCT", duration, -1],
  average_wait_s: ["average wait", duration, -1],
  makespan_s: ["makespan", duration, -1],
  utilization: ["utilization", percent, 1],
  preemptions: ["preemptions", number, -1],
  unfinished: ["unfinished jobs", number, -1],
};

const signed = (value, text) => (value < 0 ? "−" : value > 0 ? "+" : "±") + text(Math.abs(value));

// "−2.0 min (−3.0 min to −1.0 min)"
function differenceWords(one, text) {
  if (one.difference === null || one.difference === undefined) return "–";
  const known = one.low !== null && one.high !== null && one.low !== undefined;
  return signed(one.difference, text) + (known ? ` (${signed(one.low, text)} to ${signed(one.high, text)})` : "");
}

// Whether a difference is more than chance; `good` is the sign of a better one.
function verdict(one, good) {
  if (!one.difference) return make("span", { class: "muted", text: "the same" });
  const better = one.difference * good > 0,
    sure = one.low !== null && one.high !== null && one.low * one.high > 0;
  return make("span", {
    class: sure ? (better ? "good" : "bad") : "muted",
    text: sure ? (better ? "better" : "worse") : "unclear",
  });
}

export function metricsTable(found) {
  const rows = Object.entries(metrics)
    .filter(([name]) => found.metrics[name])
    .map(([name, [title, text, good]]) => {
      const one = found.metrics[name];
      return [title, text(one.control), text(one.changed), differenceWords(one, text), verdict(one, good)];
    });
  return plainTable(["metric", "as it is", "changed", "difference", "result"], rows, [1, 2, 3]);
}

// One line for a dialog: how many users gain and pay.
export function usersLine(found) {
  const gain = found.users.filter((one) => one.difference < 0),
    pay = found.users.filter((one) => one.difference > 0);
  const listed = (some) =>
    some
      .map((one) => `${one.name} ${signed(one.difference, duration)}`)
      .slice(0, 4)
      .join(", ");
  return [
    gain.length ? `Gain (average JCT): ${listed(gain)}.` : "No user gains.",
    pay.length ? `Pay: ${listed([...pay].reverse())}.` : "No user pays.",
  ].join(" ");
}

// `link` makes the first cell. Of a user, also how many jobs these are.
function groupTable(what, groups, link) {
  if (!groups.length) return make("p", { class: "muted", text: "none" });
  const several = what === "user";
  const rows = groups
    .slice(0, mostRows)
    .map((one) => [
      link(one),
      ...(several ? [one.jobs] : []),
      duration(one.control_s),
      duration(one.changed_s),
      differenceWords(one, duration),
    ]);
  const headings = [what, ...(several ? ["jobs"] : []), "as it is", "changed", "difference"],
    table = plainTable(headings, rows, [1, 2, 3, 4]);
  return groups.length > mostRows
    ? make("div", {}, table, make("p", { class: "muted", text: `and ${groups.length - mostRows} more` }))
    : table;
}

function gainAndPay(title, what, groups, link) {
  const gain = groups.filter((one) => one.difference < 0),
    pay = groups.filter((one) => one.difference > 0).reverse();
  const card = (id, heading, some) =>
    make(
      "section",
      { class: "card", id },
      make("h2", {}, heading, make("small", { text: what === "user" ? "average JCT" : "JCT" })),
      groupTable(what, some, link),
    );
  return make(
    "div",
    { class: "charts two" },
    card(`${what}s-gain`, `${title} that gain `, gain),
    card(`${what}s-pay`, `${title} that pay `, pay),
  );
}

export function showResult(box, found, { now, go }) {
  const jobLink = (one) =>
    one.number === null || one.number === undefined || !one.name
      ? one.name || `#${one.number}, of another user`
      : make("a", { href: `#job/${one.number}`, text: one.name });
  const starts = Object.entries(found.starts_s ?? {}).filter(([, [before, after]]) => before !== after);
  const inSeconds = (value) => (value === null ? "not within the simulation" : value <= 0 ? "now" : `in ${duration(value)}`);
  const drawn = found.timelines?.length === 2 ? timelines(found.timelines, now, go) : null;
  box.replaceChildren(
    make(
      "section",
      { class: "card", id: "whatif-metrics" },
      make(
        "h2",
        {},
        "Difference ",
        make("small", { text: `from ${plural(found.scenarios, "scenario")}, with 95 % intervals` }),
      ),
      metricsTable(found),
      ...(found.guesses.length
        ? [
            make(
              "details",
              {},
              make("summary", { text: plural(found.guesses.length, "assumption") }),
              make("ul", {}, ...found.guesses.map((text) => make("li", { text }))),
            ),
          ]
        : []),
    ),
    gainAndPay("Users", "user", found.users, (one) => one.name),
    ...(drawn ? [drawn.element] : []),
    gainAndPay("Jobs", "job", found.jobs, jobLink),
    ...(starts.length
      ? [
          make(
            "section",
            { class: "card", id: "whatif-starts" },
            make("h2", {}, "Starts of waiting jobs ", make("small", { text: "in the first scenario" })),
            plainTable(
              ["job", "as it is", "changed"],
              starts.slice(0, 2 * mostRows).map(([name, [before, after]]) => [name, inSeconds(before), inSeconds(after)]),
              [1, 2],
            ),
          ),
        ]
      : []),
  );
  drawn?.resize();
  return drawn;
}

const placeWords = (run) =>
  `${run.gpus} × ${run.nodes?.join(", ") ?? "GPU"}${run.more_nodes ? ` and ${plural(run.more_nodes, "more node")}` : ""}`;

// Both with the same rows, one above the other; zoom and scrolling move both.
function timelines(both, now, go) {
  const order = [],
    rows = both.map(() => new Map());
  let end = now + 60,
    drawnOnly = arrivals;
  both.forEach((timeline, side) => {
    for (const job of timeline.jobs) {
      const key = job.number ?? `${job.user}/${job.name}`;
      if (!rows.some((some) => some.has(key))) order.push([key, job]);
      const runs = job.runs.map((run) => ({ ...run, start: now + run.start_s, end: now + run.end_s }));
      if (runs.length) end = Math.max(end, runs.at(-1).end);
      rows[side].set(key, runs);
    }
  });
  const jobs = order.map(([key, job]) => ({
    key,
    number: job.number ?? drawnOnly++,
    name: job.name || `#${job.number}`,
    user: job.user,
    state: "finished",
    submitted: job.number === null ? null : now,
  }));
  const view = laneView(),
    lanes = [];
  const sides = both.map((timeline, side) => {
    const canvas = make("canvas", {
      tabindex: "0",
      role: "img",
      "aria-label": `Timeline ${timeline.label}; arrow keys move, + and - zoom`,
    });
    const own = jobs.map((job) => ({ job, runs: rows[side].get(job.key) ?? [], forecast: null }));
    const shown = { rows: own, now, until: Infinity, label: placeWords };
    return { timeline, canvas, shown };
  });
  const drawn = jobs.filter((job) => job.number >= arrivals).length,
    counts = [plural(jobs.length - drawn, "job"), ...(drawn ? [plural(drawn, "simulated arrival")] : [])].join(", ");
  const left = ["job", "run"]
    .map((what) => [Math.max(...both.map((one) => one.left_out?.[`${what}s`] ?? 0)), what])
    .flatMap(([count, what]) => (count ? [plural(count, `more ${what}`)] : []));
  const element = make(
    "section",
    { class: "card", id: "whatif-timelines" },
    make("h2", {}, "Timelines ", make("small", { text: `of the first scenario; ${counts}` })),
    make(
      "div",
      { class: "tools" },
      ...(left.length ? [make("span", { text: `${left.join(" and ")} not shown` })] : []),
      make("span", { class: "spacer" }),
      laneButtons(() => lanes[0]),
    ),
    ...sides.flatMap(({ timeline, canvas }) => [
      make("h3", { text: timeline.label }),
      make("div", { class: "canvas-box" }, canvas),
    ]),
    make(
      "div",
      { class: "keys" },
      laneKey("run", "key-run"),
      laneKey("waits", "key-wait"),
      laneKey("preempted", "key-preempted"),
      laneKey("moved or resized", "key-moved"),
    ),
  );
  function tipOf(row, at) {
    const run = row.runs.find((one) => at >= one.start && at < one.end),
      seconds = (time) => (time > now ? `in ${duration(time - now)}` : "now");
    const lines = [["user", row.job.user || "–"]];
    if (run)
      lines.push(["run", `${seconds(run.start)} to ${seconds(run.end)}`], ["on", placeWords(run)]);
    if (row.runs.length) lines.push(["ends", seconds(row.runs.at(-1).end)]);
    return [row.job.name, lines];
  }
  function resize() {
    if (!lanes.length)
      sides.forEach(({ canvas, shown }, side) => {
        const pick = (one) => one < arrivals && go(`#job/${one}`);
        lanes.push(
          makeLanes(canvas, () => shown, pick, tipOf, { view, most: tallest, onMove: () => lanes[1 - side]?.paint() }),
        );
      });
    const room = (end - now) * 0.02;
    for (const one of lanes) {
      one.setSpan(now - room, end + room);
      one.resize();
    }
  }
  return { element, resize, paint: () => lanes.forEach((one) => one.paint()) };
}
