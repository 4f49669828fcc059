// #nodes: all nodes as a table, with drains for admins.
import { ask } from "/console/api.js";
import { confirmChange } from "/console/dialog.js";
import { plural } from "/console/words.js";

const arrangeEveryMs = 1000,
  restful = 25;

export function nodesView(root, { store, session }) {
  const box = make("div", { class: "grid tall", id: "nodes-table" }),
    note = make("small"),
    admin = session.role === "admin";
  const search = make("input", {
    type: "search",
    placeholder: "Search name, type, state …",
    "aria-label": "Search nodes",
    oninput: () => arrange(true),
  });
  const hint = admin ? "Choose a node to drain it, or to use it again." : "Drains need an admin token.";
  root.append(
    make(
      "section",
      { class: "card" },
      make("h2", {}, "Nodes ", note),
      make("div", { class: "tools" }, search, make("span", { text: hint })),
      box,
    ),
  );
  const sum = (values) => values.reduce((a, b) => a + b, 0),
    mean = (values) => (values?.length ? sum(values) / values.length : null);
  const used = (node) => {
    let count = 0;
    for (let gpu = node.first; gpu < node.first + node.gpus; gpu++) count += store.holders[gpu].length > 0;
    return count;
  };
  const jobs = (node) =>
    [...new Set(store.holders.slice(node.first, node.first + node.gpus).flat())].map(
      (n) => store.jobs.get(n)?.name || "of another user",
    );
  const type = (node) => store.types[node.type],
    tone = (node) => (node.state === "up" ? "good" : node.state === "drained" ? "open" : "bad");
  const table = makeTable(
    box,
    [
      { heading: "node", least: 100, share: 1.4, left: true, value: (node) => node.name, text: (node) => node.name },
      {
        heading: "state",
        least: 96,
        share: 0.9,
        left: true,
        value: (node) => node.state,
        text: (node) => node.state,
        kind: tone,
      },
      { heading: "GPUs in use", least: 108, share: 0.6, value: used, text: (node) => `${used(node)} of ${node.gpus}` },
      { heading: "type", least: 84, share: 0.8, left: true, value: type, text: type },
      { heading: "rack", least: 72, share: 0.6, left: true, value: (node) => node.rack || null, text: (node) => node.rack || "" },
      {
        heading: "utilization",
        least: 96,
        share: 0.6,
        value: (node) => mean(node.utilization),
        meaning: "mean of its GPUs, where it is measured",
        text: (node) => (node.utilization?.length ? `${Math.round(mean(node.utilization))} %` : "–"),
      },
      {
        heading: "memory",
        least: 84,
        share: 0.7,
        value: (node) => mean(node.memory_gb),
        meaning: "GPU memory in use, where it is measured",
        text: (node) => (node.memory_gb?.length ? `${digits(sum(node.memory_gb))} GB` : "–"),
      },
      ...["CPU", "host memory", "disk"].map((heading, place) => ({
        heading,
        least: 76,
        share: 0.5,
        value: (node) => node.host?.[place] ?? null,
        meaning: "used part, by all programs of the node, where it is measured",
        text: (node) => (node.host?.[place] == null ? "–" : `${node.host[place]} %`),
        kind: (node) => (place && node.host?.[place] >= 95 ? "bad" : ""),
      })),
      {
        heading: "drain reason",
        least: 120,
        share: 1.6,
        left: true,
        value: (node) => node.drain || null,
        text: (node) => node.drain || "",
      },
      {
        heading: "jobs",
        least: 150,
        share: 2,
        left: true,
        value: (node) => jobs(node)[0] ?? null,
        text: (node) => jobs(node).join(", "),
      },
    ],
    { none: "no nodes", ...(admin ? { onClick: choose } : {}) },
  );
  let timer = 0,
    arrangedAt = -Infinity,
    took = 0;

  function update(touched) {
    if (!touched.all && !touched.nodes.size) return;
    clearTimeout(timer);
    timer = setTimeout(
      arrange,
      Math.max(0, touched.all ? 0 : arrangedAt + Math.max(arrangeEveryMs, restful * took) - performance.now()),
    );
  }

  function arrange(anew = false) {
    arrangedAt = performance.now();
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const all = store.nodes.filter((node) => node && node.state !== "removed");
    const shown = all.filter((node) =>
      words.every((word) => `${node.name} ${node.rack} ${store.types[node.type]} ${node.state} ${node.drain}`.toLowerCase().includes(word)),
    );
    const down = all.filter((node) => node.state !== "up").length;
    note.textContent = `${plural(all.length, "node")}${down ? `, ${down} not up` : ""}`;
    if (anew === true) table.show(shown);
    else table.renew(shown);
    took = performance.now() - arrangedAt; // the more nodes, the longer until the next time
  }

  function choose(node) {
    const path = `/v1/nodes/${encodeURIComponent(node.name)}/drain`;
    if (node.state === "drained" || node.drain) {
      confirmChange({
        title: `Use ${node.name} again?`,
        text: `It is drained${node.drain ? `: ${node.drain}` : ""}. Jobs may start there from the next decision on.`,
        verb: "Undo the drain",
        act: () => ask("DELETE", path),
      });
      return;
    }
    confirmChange({
      title: `Drain ${node.name}?`,
      text: "Its jobs save and move at the next decision, and no job starts there until the drain is undone.",
      fields: [{ name: "reason", label: "Reason (shown to users)", value: "" }],
      verb: "Drain",
      danger: true,
      act: ({ reason }) => ask("PUT", path, { reason }),
    });
  }

  return {
    update,
    unmount() {
      clearTimeout(timer);
      hideTip();
    },
  };
}
