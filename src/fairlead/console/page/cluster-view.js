// #cluster: every node and GPU, how many are free of each type, the queue over time, and the last decisions.
import { css } from "/console/colours.js";
import { firstSubmitted, localTicks, waitingOverTime } from "/console/over-time.js";
import { makeTiles, tileAt } from "/console/tiles.js";
import { clock, date, plural, tick } from "/console/words.js";

const shownDecisions = 12,
  chartEveryMs = 5000,
  chartHours = 6;

export function clusterView(root, { store, session, go, loadRuns }) {
  const tilesBox = make("section", { class: "tiles", "aria-label": "GPUs by type" });
  const canvas = make("canvas", {
    tabindex: "0",
    role: "application",
    "aria-label": "Nodes and GPUs; arrow keys choose a node, Enter opens its job",
    "aria-describedby": "chosen-node",
  });
  const chosen = make("p", { id: "chosen-node", class: "picked", "aria-live": "polite" });
  const by = make(
    "select",
    { id: "colour-by", onchange: () => tiles.colourBy(by.value) },
    ...[
      ["job", "job"],
      ["user", "user"],
      ["utilization", "utilization"],
    ].map(([value, text]) => make("option", { value, text })),
  );
  const keys = make(
    "div",
    { class: "keys" },
    key("free", "key-free"),
    key("co-located", "key-shared"),
    key("drained", "key-drained"),
    key("lost or unreachable", "key-lost"),
  );
  const chart = make("div", { class: "plot" }),
    decisions = make("ol", { class: "decisions" });
  root.append(
    tilesBox,
    make(
      "section",
      { class: "card" },
      make("h2", { text: "Nodes and GPUs" }),
      make("div", { class: "tools" }, make("label", {}, "Colour by", by), keys),
      make("div", { class: "tiles-box" }, canvas),
      chosen,
    ),
    make(
      "div",
      { class: "charts two" },
      make(
        "section",
        { class: "card", id: "queue-chart" },
        make(
          "h2",
          {},
          "Waiting jobs ",
          make("small", { text: `last ${chartHours} hours${session.role === "admin" ? "" : ", your jobs"}` }),
        ),
        chart,
      ),
      make(
        "section",
        { class: "card" },
        make("h2", {}, "Last decisions ", make("small", { text: "those that changed something" })),
        decisions,
      ),
    ),
  );
  const tiles = makeTiles(canvas, store);
  let nodeCount = -1,
    chartAt = -Infinity,
    timer = 0;

  attachTiles();
  onResize(canvas.parentElement, () => tiles.resize());
  loadRuns().then(() => {
    chartAt = -Infinity;
    drawChart();
  });

  function update(touched) {
    const count = store.nodes.length + store.nodes.filter((node) => node?.state === "removed").length;
    if (touched.all || count !== nodeCount) {
      nodeCount = count;
      tiles.resize();
    } else tiles.paint(touched);
    if (touched.all || touched.moved || touched.nodes.size) showCounts();
    if (touched.all || touched.decisions) showDecisions();
    if (touched.all || touched.moved) drawChart();
  }

  function showCounts() {
    const { states, types } = store.count();
    const cards = types.map((type) =>
      tile(
        type.name,
        (type.all - type.used).toLocaleString("en"),
        `free of ${plural(type.all, "GPU")}` +
          (type.up < type.all ? `, ${(type.all - type.up).toLocaleString("en")} not up` : ""),
        type.used / Math.max(1, type.all),
      ),
    );
    fill(tilesBox, [
      tile("Running", states.running.toLocaleString("en"), "jobs"),
      tile("Waiting", states.waiting.toLocaleString("en"), "jobs"),
      ...cards,
    ]);
    tilesBox.dataset.running = states.running;
    tilesBox.dataset.waiting = states.waiting;
  }

  // At most every few seconds: a point more is not worth a pass over all runs.
  function drawChart() {
    clearTimeout(timer);
    const wait = chartAt + chartEveryMs - performance.now();
    if (wait > 0) {
      timer = setTimeout(drawChart, wait);
      return;
    }
    chartAt = performance.now();
    const now = store.now(),
      low = Math.max(now - chartHours * 3600, Math.min(firstSubmitted(store) - 30, now - 60)),
      line = waitingOverTime(store, low, now);
    const top = line.y.reduce((a, b) => Math.max(a, b), 4),
      whole = (v) => Math.round(v).toLocaleString("en");
    lineChart(chart, {
      lines: [{ label: "waiting", colour: css("--accent"), dash: "", ...line }],
      height: 210,
      x: { low, high: now, ticks: localTicks, text: (v) => tick(v, now - low), exact: (v) => date(v, now) },
      y: { high: top * 1.05, ticks: niceTicks(0, top * 1.05, 4).filter(Number.isInteger), text: whole, exact: whole },
    });
  }

  function showDecisions() {
    fill(
      decisions,
      store.decisions.slice(0, shownDecisions).map((one) => {
        const item = make("li", {}, make("time", { text: clock(store.origin + one.second) }));
        const launched = Object.entries(one.launched ?? {});
        const part = (verb, names) => {
          if (names?.length)
            item.append(make("span", { class: "what", text: `${verb} ` }), make("span", { text: listed(names) }));
        };
        part(
          "started",
          launched.map(([name, nodes]) =>
            nodes.length > 2 ? `${name} on ${nodes.length} nodes` : `${name} on ${nodes.join(", ")}`,
          ),
        );
        part("stopped", one.suspended);
        part("refused", one.refused);
        part("ended", one.ended);
        return item;
      }),
    );
    if (!store.decisions.length) decisions.append(make("li", { class: "muted", text: "none yet" }));
  }

  function describe(box, gpu) {
    const node = store.nodes[box.node],
      rows = [
        ["node", `${node.name} (${store.types[node.type]})`],
        ["state", node.drain ? `${node.state}: ${node.drain}` : node.state],
        ...(node.rack ? [["rack", node.rack]] : []),
      ];
    if (gpu < 0) return [node.name, [...rows.slice(1), ["GPUs in use", `${inUse(node)} of ${node.gpus}`]]];
    const holders = store.holders[node.first + gpu].map((number) => store.jobs.get(number)).filter(Boolean);
    for (const job of holders) rows.push(["job", job.name ? `${job.name} of ${job.user}` : "of another user"]);
    if (node.utilization?.[gpu] !== undefined) rows.push(["utilization", `${Math.round(node.utilization[gpu])} %`]);
    if (node.memory_gb?.[gpu] !== undefined) rows.push(["memory in use", `${digits(node.memory_gb[gpu])} GB`]);
    return [`GPU ${gpu} · ${holders.length > 1 ? "co-located jobs" : holders.length ? "in use" : "free"}`, rows];
  }

  function inUse(node) {
    return store.holders.slice(node.first, node.first + node.gpus).filter((held) => held.length).length;
  }

  function attachTiles() {
    const at = (event) => {
      const frame = canvas.getBoundingClientRect();
      return tileAt(tiles.layout(), event.clientX - frame.left, event.clientY - frame.top);
    };
    canvas.addEventListener("pointermove", (event) => {
      const hit = at(event);
      if (!hit) return hideTip();
      showTip(event, ...describe(hit.box, hit.gpu));
    });
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("click", (event) => {
      const hit = at(event);
      if (hit && hit.gpu >= 0) open(store.nodes[hit.box.node].first + hit.gpu, 1);
    });
    canvas.addEventListener("keydown", (event) => {
      const boxes = tiles.layout().boxes,
        place = boxes.findIndex((box) => box.node === tiles.view.cursor?.node);
      const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 8, ArrowUp: -8, Home: -place, End: boxes.length };
      if (event.key === "Enter" && place >= 0) return open(boxes[place].first, boxes[place].gpus);
      if (!(event.key in steps) || !boxes.length) return undefined;
      event.preventDefault();
      const box = boxes[Math.max(0, Math.min(boxes.length - 1, place + steps[event.key]))];
      tiles.cursor(box.node);
      const [heading, rows] = describe(box, -1),
        names = new Set(
          store.holders
            .slice(box.first, box.first + box.gpus)
            .flat()
            .map((n) => store.jobs.get(n)?.name || `job ${n}`),
        );
      const facts = rows.map(([name, value]) => `${name} ${value}`).join(", ");
      chosen.textContent = `${heading}: ${facts}${names.size ? `; jobs ${listed([...names])}` : ""}`;
      return undefined;
    });
  }

  function open(first, count) {
    const held = store.holders
      .slice(first, first + count)
      .flat()
      .map((number) => store.jobs.get(number))
      .find((job) => job?.name);
    if (held) go(`#job/${held.number}`);
  }

  return {
    update,
    theme() {
      tiles.paintAll();
      chartAt = -Infinity;
      drawChart();
    },
    unmount() {
      clearTimeout(timer);
      hideTip();
    },
  };
}

function key(text, kind) {
  return make("span", {}, make("i", { class: `key ${kind}` }), text);
}

function tile(what, value, rest, share) {
  const box = make(
    "div",
    { class: "tile" },
    make("div", { class: "what", text: what }),
    make("div", { class: "value", text: value }),
    make("div", { class: "than", text: rest }),
  );
  if (share !== undefined) {
    const bar = make("div", {
      class: "meter",
      role: "meter",
      "aria-label": `${what} in use`,
      "aria-valuenow": Math.round(100 * share),
      "aria-valuemin": 0,
      "aria-valuemax": 100,
    });
    const inner = make("i");
    inner.style.width = `${100 * share}%`;
    bar.append(inner);
    box.append(bar);
  }
  return box;
}

function listed(names) {
  return names.length > 4 ? `${names.slice(0, 4).join(", ")} and ${names.length - 4} more` : names.join(", ");
}
function fill(box, children) {
  box.replaceChildren(...children);
}
