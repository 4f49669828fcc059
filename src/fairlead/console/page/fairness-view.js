// #fairness: GPU time by user and account, and the ledger where the control plane keeps one.
import { get } from "/console/api.js";
import { groupColour } from "/console/colours.js";
import { plainTable } from "/console/dialog.js";

const againAfterMs = 15_000,
  maxBars = 30;

export function fairnessView(root, { session }) {
  const users = make("div"),
    accounts = make("div"),
    table = make("div"),
    ledger = make("section", { class: "card", id: "ledger", hidden: "" });
  root.append(
    make(
      "div",
      { class: "charts two" },
      make("section", { class: "card" }, make("h2", {}, "By user ", make("small", { text: "GPU hours" })), users),
      make("section", { class: "card" }, make("h2", {}, "By account ", make("small", { text: "GPU hours" })), accounts),
    ),
    make(
      "section",
      { class: "card", id: "usage" },
      make("h2", {}, "Usage ", make("small", { text: "since the journal began; each co-located job counts fully" })),
      table,
    ),
    ledger,
  );
  let timer = 0,
    stopped = false;
  load();

  async function load() {
    try {
      const { usage } = await get("/v1/usage"),
        total = usage.reduce((sum, one) => sum + one.accelerator_hours, 0);
      bars(users, sums(usage, "user"));
      bars(accounts, sums(usage, "account"));
      const all = session.role === "admin"; // a user's answer has only their own rows, so no share of the cluster
      const sorted = [...usage].sort((a, b) => b.accelerator_hours - a.accelerator_hours);
      table.replaceChildren(
        plainTable(
          ["user", "account", "jobs", "GPU hours", ...(all ? ["share"] : [])],
          sorted.map((one) => [
            one.user,
            one.account || "–",
            one.jobs.toLocaleString("en"),
            hours(one.accelerator_hours),
            ...(all ? [total ? `${((100 * one.accelerator_hours) / total).toFixed(1)} %` : "–"] : []),
          ]),
          [2, 3, 4],
        ),
      );
      if (session.features?.includes("ledger")) showLedger(await get("/v1/ledger"));
    } catch (refused) {
      table.replaceChildren(make("p", { class: "problem", text: refused.message }));
    }
    if (!stopped) timer = setTimeout(load, againAfterMs);
  }

  function showLedger(answer) {
    const columns = [
      ["received", "received_gpu_hours"],
      ["deserved", "deserved_gpu_hours"],
      ["lately received", "recent_received_gpu_hours"],
      ["lately deserved", "recent_deserved_gpu_hours"],
    ];
    const balance = (row) =>
      make("span", {
        class: row.balance_gpu_hours < 0 ? "bad" : "good",
        text: `${row.balance_gpu_hours < 0 ? "−" : "+"}${hours(Math.abs(row.balance_gpu_hours))}`,
      });
    const table = (names, rows) =>
      plainTable(
        [...names, ...columns.map(([text]) => text), "balance"],
        rows.map((row) => [
          ...names.map((name) => row[name] || "–"),
          ...columns.map(([, key]) => hours(row[key])),
          balance(row),
        ]),
        [0, 1, 2, 3, 4].map((i) => i + names.length),
      );
    ledger.replaceChildren(
      make(
        "h2",
        {},
        "Ledger ",
        make("small", {
          text: `GPU hours; half-life ${duration(answer.half_life_s)}; balance: deserved less received`,
        }),
      ),
      table(["user", "account"], answer.users),
      ...(answer.accounts ? [table(["account"], answer.accounts)] : []),
    );
    ledger.hidden = !answer.users.length;
  }

  return {
    update() {},
    unmount() {
      stopped = true;
      clearTimeout(timer);
    },
  };
}

function sums(usage, field) {
  const found = new Map();
  for (const one of usage) found.set(one[field] || "–", (found.get(one[field] || "–") ?? 0) + one.accelerator_hours);
  return [...found].sort((a, b) => b[1] - a[1]);
}

function bars(box, pairs) {
  const most = Math.max(...pairs.map(([, value]) => value), 1e-9);
  const shown = pairs.slice(0, maxBars).map(([name, value]) => {
    const bar = make("i"),
      line = make(
        "div",
        { class: "bar-line" },
        make("span", { text: name }),
        make("span", { class: "track" }, bar),
        make("b", { text: hours(value) }),
      );
    bar.style.width = `${(100 * value) / most}%`;
    bar.style.background = groupColour(0);
    return line;
  });
  box.replaceChildren(...shown);
  if (pairs.length > maxBars) box.append(make("p", { class: "hint", text: `and ${pairs.length - maxBars} more` }));
  if (!pairs.length) box.append(make("p", { class: "muted", text: "no GPU time used yet" }));
}

function hours(value) {
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 3 : 1 });
}
