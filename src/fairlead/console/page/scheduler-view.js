// #scheduler: what decides, its parameters, how long decisions take, and a form that switches it.
import { ask, get, request } from "/console/api.js";
import { css } from "/console/colours.js";
import { localTicks } from "/console/over-time.js";
import { confirmChange, facts, plainTable } from "/console/dialog.js";
import { metricsTable, usersLine } from "/console/whatif-result.js";
import { date, plural, tick } from "/console/words.js";

const againAfterMs = 10_000;

export function schedulerView(root, { store, session }) {
  const card = make("section", { class: "card", id: "scheduler" }),
    times = make("section", { class: "card", id: "decision-times" }),
    monitor = make("section", { class: "card", id: "interference" }),
    plot = make("div", { class: "plot" });
  root.append(
    card,
    monitor,
    make(
      "div",
      { class: "charts two" },
      times,
      make(
        "section",
        { class: "card" },
        make("h2", {}, "Jobs started ", make("small", { text: "by the last decisions" })),
        plot,
      ),
    ),
  );
  let timer = 0,
    stopped = false,
    current = null;
  load();

  async function load() {
    clearTimeout(timer);
    try {
      const answer = await get("/v1/scheduler");
      current = answer.scheduler;
      show(answer);
      showInterference(answer.interference);
    } catch (refused) {
      card.replaceChildren(make("h2", { text: "Scheduler" }), make("p", { class: "problem", text: refused.message }));
    }
    showTimes();
    if (!stopped) timer = setTimeout(load, againAfterMs);
  }

  function show(answer) {
    const { policy, ...rest } = answer.scheduler,
      { name, ...parameters } = typeof policy === "string" ? { name: policy } : (policy ?? {});
    const rows = [
      ...Object.entries(parameters).map(([key, value]) => ["policy", key, value]),
      ...Object.entries(rest).flatMap(([part, value]) => parts(part, value)),
    ];
    const label = answer.scheduler.name || store.scheduler?.label || "";
    card.dataset.policy = name ?? "";
    card.replaceChildren(
      make("h2", {}, name ?? "Scheduler", make("small", { text: label === name ? "" : label })),
      ...(answer.decision_error ? [make("p", { class: "problem", role: "alert", text: answer.decision_error })] : []),
      facts([
        ["decisions", answer.decisions.toLocaleString("en")],
        ["rounds missed", answer.missed.toLocaleString("en")],
        ["preempts", answer.preempting_policy ? "yes" : "no"],
      ]),
      plainTable(
        ["part", "parameter", "value"],
        rows.map(([part, key, value]) => [part, key, typeof value === "object" ? JSON.stringify(value) : String(value)]),
      ),
      ...(session.role === "admin"
        ? [
            make(
              "div",
              { class: "actions" },
              make("button", { type: "button", text: "Switch the scheduler …", id: "switch", onclick: change }),
            ),
          ]
        : [make("p", { class: "hint", text: "Switching needs an admin token." })]),
    );
  }

  // Co-located jobs that are slower than they may be, and those that the monitor has separated.
  function showInterference(found) {
    monitor.hidden = !found;
    if (!found) return;
    const link = (job) =>
      job.name ? make("a", { href: `#job/${job.number}`, text: job.name }) : `#${job.number}, of another user`;
    const times = (factor) => (factor === null ? "–" : `${factor.toFixed(2)} ×`);
    monitor.dataset.slow = found.slow_count;
    monitor.dataset.pairs = found.pair_count;
    monitor.replaceChildren(
      make("h2", {}, "Interference monitor ", make("small", { text: "co-located jobs with a max_slowdown" })),
      facts([
        ["jobs above their limit", found.slow_count.toLocaleString("en")],
        ["separated pairs", found.pair_count.toLocaleString("en")],
        ["separations so far", found.separations.toLocaleString("en")],
        ["the last one took", found.last_took_s === null ? "–" : duration(found.last_took_s)],
      ]),
      ...(found.slow.length
        ? [
            plainTable(
              ["job", "observed slowdown", "limit", "for"],
              found.slow.map((job) => [link(job), times(job.slowdown), times(job.max_slowdown), duration(job.for_s)]),
              [1, 2, 3],
            ),
          ]
        : []),
      ...(found.pairs.length
        ? [
            plainTable(
              ["separated jobs", "and"],
              found.pairs.map((pair) => pair.map(link)),
            ),
          ]
        : []),
    );
  }

  function change() {
    const present = current, // it is fetched again meanwhile
      { policy } = present,
      name = typeof policy === "string" ? policy : policy?.name;
    confirmChange({
      title: "Switch the scheduler",
      verb: "Switch",
      danger: true,
      text: "From the next round on, another policy decides. Jobs keep running. If it is invalid, the current one stays.",
      fields: [
        {
          name: "policy",
          label: "Policy",
          value: name,
          required: true,
          hint: "a name such as fifo, las or srtf; 'fairlead policies' lists all",
        },
        { name: "round", label: "Round in seconds", value: present.round_s ?? "", type: "number" },
        {
          name: "scheduler",
          label: "Or the whole scheduler, as JSON",
          type: "textarea",
          value: JSON.stringify(present, null, 2),
          hint: "if you change it, the two fields above are not used",
        },
        { name: "why", label: "Why (for the journal)", required: true },
      ],
      act: async (values) => {
        await ask("POST", "/v1/scheduler", { scheduler: wanted(values), why: values.why, instead_of: present });
        await load();
      },
      preview: session.features?.includes("whatif")
        ? async (values, signal) => {
            const found = await ask("POST", "/v1/whatif", { scheduler: { config: wanted(values) } }, signal);
            return [
              make("h2", {}, "Preview ", make("small", { text: `simulated, ${plural(found.scenarios, "scenario")}` })),
              metricsTable(found),
              make("p", { text: usersLine(found) }),
            ];
          }
        : null,
    });

    function wanted(values) {
      if (values.scheduler.trim() !== JSON.stringify(present, null, 2)) return JSON.parse(values.scheduler);
      const changed = { ...present };
      if (values.policy !== name) {
        changed.policy = typeof policy === "string" ? values.policy : { name: values.policy };
        delete changed.name;
      }
      if (values.round !== "") changed.round_s = Number(values.round);
      return changed;
    }
  }

  // The histogram of the metrics; only an admin may read it.
  async function showTimes() {
    let buckets = [];
    try {
      if (session.role === "admin") buckets = decisionBuckets(await (await request("GET", "/metrics")).text());
    } catch {
      /* no figures */
    }
    times.replaceChildren(
      make("h2", {}, "Decision times ", make("small", { text: "since the control plane started" })),
      buckets.length
        ? plainTable(
            ["took at most", "decisions", "share"],
            buckets.map(([label, count, share]) => [label, count.toLocaleString("en"), `${(100 * share).toFixed(1)} %`]),
            [1, 2],
          )
        : make("p", {
            class: "muted",
            text:
              session.role === "admin"
                ? "no decisions yet, or the metrics are not readable"
                : "decision times need an admin token",
          }),
    );
  }

  function update(touched) {
    if (touched.scheduler) load();
    if (touched.all || touched.decisions) drawStarted();
  }

  function drawStarted() {
    const shown = [...store.decisions].reverse(),
      now = store.now(),
      low = shown.length ? store.origin + shown[0].second : now - 60,
      high = Math.max(now, low + 1);
    const x = shown.map((one) => store.origin + one.second),
      y = shown.map((one) => Object.keys(one.launched ?? {}).length),
      top = Math.max(2, ...y),
      whole = (v) => String(Math.round(v));
    lineChart(plot, {
      lines: [{ label: "started", colour: css("--accent"), dash: "", x: [...x, high], y }],
      height: 200,
      x: { low, high, ticks: localTicks, text: (v) => tick(v, high - low), exact: (v) => date(v, now) },
      y: { high: top * 1.1, ticks: niceTicks(0, top * 1.1, 4).filter(Number.isInteger), text: whole, exact: whole },
    });
  }

  return {
    update,
    theme: drawStarted,
    unmount() {
      stopped = true;
      clearTimeout(timer);
    },
  };
}

function parts(part, value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [["scheduler", part, value]];
  return Object.entries(value).map(([key, one]) => [part, key, one]);
}

function decisionBuckets(text) {
  const found = [...text.matchAll(/^fairlead_decision_seconds_bucket\{le="([^"]+)"\} (\S+)$/gm)].map(([, limit, count]) => [
    limit,
    Number(count),
  ]);
  const total = found.at(-1)?.[1] ?? 0;
  return total
    ? found
        .map(([limit, count], i) => [
          limit === "+Inf" ? "longer" : duration(Number(limit)),
          count - (found[i - 1]?.[1] ?? 0),
          (count - (found[i - 1]?.[1] ?? 0)) / total,
        ])
        .filter(([, count]) => count)
    : [];
}
