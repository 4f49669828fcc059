// #queue: the jobs that wait, and why. Positions and sentences are fetched for the rows in view only.
import { get } from "/console/api.js";
import { ago, forecastWords, plural, reasonWords, waitingStates } from "/console/words.js";

const arrangeEveryMs = 2000,
  restful = 25,
  detailsEveryMs = 5000;

export function queueView(root, { store, forecast, session, go }) {
  const box = make("div", { class: "grid tall", id: "queue-table" }),
    note = make("small");
  const search = make("input", {
    type: "search",
    placeholder: "Search name, user, account, reason …",
    "aria-label": "Search waiting jobs",
    oninput: () => arrange(true),
  });
  root.append(make("section", { class: "card" }, make("h2", {}, "Queue ", note), make("div", { class: "tools" }, search), box));
  const details = new Map(); // by number: the fetched reason
  const reason = (job) => details.get(job.number)?.text ?? reasonWords(job.reason);
  const place = (job) => details.get(job.number)?.facts?.position;
  const starts = (job) => forecast.inSeconds(job.number, "start");
  const columns = {
    position: {
      heading: "position",
      least: 84,
      share: 0.5,
      value: (job) => place(job) ?? null,
      text: (job) => String(place(job) ?? "·"),
      meaning: "in the order of the policy, if it ranks jobs",
    },
    job: {
      heading: "job",
      least: 110,
      share: 1.6,
      left: true,
      value: (job) => job.name,
      text: (job) => job.name || `#${job.number}`,
    },
    user: { heading: "user", least: 74, share: 0.8, left: true, value: (job) => job.user, text: (job) => job.user || "–" },
    gpus: { heading: "GPUs", least: 64, share: 0.4, value: (job) => job.gpus, text: (job) => String(job.gpus) },
    priority: {
      heading: "priority",
      least: 80,
      share: 0.4,
      value: (job) => job.priority,
      text: (job) => String(job.priority ?? "–"),
    },
    since: {
      heading: "waits since",
      least: 106,
      share: 0.6,
      value: (job) => job.submitted,
      text: (job) => (job.submitted ? ago(store.now() - job.submitted) : "–"),
      meaning: "time since it was submitted",
    },
    why: { heading: "why it waits", least: 180, share: 3.2, left: true, value: (job) => job.reason, text: reason },
    start: {
      heading: "forecast start",
      least: 190,
      share: 1.8,
      left: true,
      value: (job) => forecast.of(job.number)?.start[1] ?? null,
      text: (job) => forecastWords(starts(job)) || "–",
    },
  };
  // A phone shows first what an operator asks first.
  const narrow = ["job", "why", "start", "since", "gpus", "user", "priority", "position"],
    wide = Object.keys(columns);
  const order = innerWidth < 700 ? narrow : innerWidth < 1200 ? wide.filter((name) => name !== "priority") : wide;
  const table = makeTable(
    box,
    order.map((name) => columns[name]),
    {
      by: order.indexOf("since"),
      up: true,
      none: "no job waits",
      onClick: (job) => {
        if (job.name) go(`#job/${job.number}`);
      },
    },
  );
  let arrangedAt = -Infinity,
    took = 0,
    timer = 0,
    fetchedAt = -Infinity,
    fetching = false;
  const ticker = setInterval(() => {
    if (!document.hidden) {
      table.paint();
      fetchDetails();
    }
  }, 1000);
  box.addEventListener("scroll", () => {
    fetchedAt = Math.min(fetchedAt, performance.now() - detailsEveryMs + 300);
  });

  function update(touched) {
    forecast.want();
    if (touched.all || touched.forecast || touched.jobs.size) {
      clearTimeout(timer);
      timer = setTimeout(
        arrange,
        Math.max(
          0,
          touched.all || touched.forecast ? 0 : arrangedAt + Math.max(arrangeEveryMs, restful * took) - performance.now(),
        ),
      );
    }
  }

  function arrange(anew = false) {
    arrangedAt = performance.now();
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean),
      waiting = [];
    let held = 0;
    for (const job of store.jobs.values()) {
      if (!waitingStates.has(job.state)) continue;
      if (job.state === "held") held++;
      const text = words.length ? `${job.name} ${job.user} ${job.account} ${reasonWords(job.reason)}`.toLowerCase() : "";
      if (words.every((word) => text.includes(word))) waiting.push(job);
    }
    note.textContent = `${plural(waiting.length, "job")}${held ? `, ${held} held` : ""}`;
    if (anew === true) table.show(waiting);
    else table.renew(waiting);
    took = performance.now() - arrangedAt; // the more jobs, the longer until the next time
    fetchDetails();
  }

  async function fetchDetails() {
    if (fetching || performance.now() - fetchedAt < detailsEveryMs) return;
    const numbers = table
      .shown()
      .filter((job) => job.name)
      .slice(0, 40)
      .map((job) => job.number);
    if (!numbers.length) return;
    fetching = true;
    try {
      const query = [
        ...numbers.map((number) => `select=${number}`),
        ...(session.role === "admin" ? ["all_users=true"] : []),
      ].join("&");
      for (const job of (await get(`/v1/jobs?${query}`)).jobs) details.set(job.number, job.reason ?? null);
    } catch {
      /* the words of the code stand there */
    }
    fetchedAt = performance.now();
    fetching = false;
    table.paint();
  }

  return {
    update,
    unmount() {
      clearTimeout(timer);
      clearInterval(ticker);
      hideTip();
    },
  };
}
