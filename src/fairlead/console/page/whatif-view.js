// #whatif: a form with changes to the cluster; the control plane simulates it with and without them, and the difference is shown.
import { ask } from "/console/api.js";
import { showResult } from "/console/whatif-result.js";

const atMostS = 60;

class WrongField extends Error {
  constructor(field, text) {
    super(text);
    this.field = field;
  }
}

const words = (text) => text.split(/[\s,]+/).filter(Boolean);

function pairs(field, text, least) {
  const found = {};
  for (const word of words(text.replace(/\s*=\s*/g, "="))) {
    const [, user, value] = /^([^=]+)=(\d+(?:\.\d+)?)$/.exec(word) ?? [];
    if (!user || Number(value) < least) throw new WrongField(field, `expected USER=NUMBER, not '${word}'`);
    found[user] = Number(value);
  }
  return found;
}

const unitS = { "": 1, s: 1, m: 60, min: 60, h: 3600, d: 86400 };
function seconds(field, text) {
  const [, value, unit] = /^(\d+(?:\.\d+)?)\s*(s|m|min|h|d|)$/.exec(text.trim()) ?? [];
  if (value === undefined) throw new WrongField(field, `expected a time such as 30m or 4h, not '${text}'`);
  return Number(value) * unitS[unit];
}

function json(field, text) {
  try {
    return JSON.parse(text);
  } catch (problem) {
    throw new WrongField(field, `not JSON: ${problem.message}`);
  }
}

const kinds = [
  ["", "as it is"],
  ["policy", "another policy"],
  ["preset", "a preset"],
  ["config", "a scheduler file, as JSON"],
];
const fields = [
  { name: "kind", label: "Scheduler", options: kinds },
  { name: "policy", label: "Policy", hint: "with parameters, as in las:by=time", kind: "policy" },
  { name: "preset", label: "Preset", hint: "'fairlead presets' lists them", kind: "preset" },
  { name: "config", label: "Scheduler", type: "textarea", kind: "config" },
  { name: "round_s", label: "Round in seconds", type: "number", hint: "empty: as it is" },
  { name: "add", label: "Nodes to add", hint: "GPUs × type : GPUs per node, as in 16xh200:8" },
  { name: "remove", label: "Nodes to remove", hint: "their jobs save and move", list: "node-names" },
  { name: "quotas", label: "Quotas", hint: "GPUs of a user, as in bob=4, eva=8" },
  { name: "weights", label: "Weights", hint: "of all jobs of a user, as in bob=2" },
  { name: "without", label: "Jobs to leave out", hint: "names or numbers" },
  { name: "arrivals", label: "Arrivals, ± %", type: "number", hint: "20: a fifth more; −50: half as many" },
  { name: "node", label: "Node that fails", list: "node-names" },
  { name: "in", label: "Fault begins in", hint: "as in 30m; empty: now" },
  { name: "for", label: "Fault lasts", hint: "as in 4h" },
  { name: "scenarios", label: "Scenarios of arrivals", type: "number", value: "5" },
];

// The request of a form's values. Throws a WrongField.
export function requestOf(values) {
  const body = { timelines: true },
    text = (name) => values[name].trim();
  if (values.kind) {
    if (!text(values.kind)) throw new WrongField(values.kind, "fill this in, or leave the scheduler as it is");
    body.scheduler = { [values.kind]: values.kind === "config" ? json("config", text("config")) : text(values.kind) };
  }
  if (text("round_s")) body.round_s = Number(text("round_s"));
  if (text("add")) body.add = text("add").replaceAll(" ", "");
  if (text("remove")) body.remove = words(text("remove"));
  if (text("quotas")) body.quotas = pairs("quotas", text("quotas"), 1);
  if (text("weights")) body.weights = pairs("weights", text("weights"), 0);
  if (text("without")) body.without = words(text("without"));
  if (text("arrivals")) {
    const share = 1 + Number(text("arrivals").replace("−", "-")) / 100;
    if (!(share >= 0 && share <= 2)) throw new WrongField("arrivals", "expected a number from −100 to 100");
    body.arrivals = share;
  }
  if (text("node")) {
    if (!text("for")) throw new WrongField("for", "enter how long the fault lasts, such as 4h");
    body.faults = [{ node: text("node"), in_s: seconds("in", text("in") || "0"), for_s: seconds("for", text("for")) }];
  } else if (text("in") || text("for")) throw new WrongField("node", "enter the node that fails");
  if (Object.keys(body).length === 1)
    throw new WrongField("kind", "change something: the scheduler, or one of the other fields");
  if (text("scenarios")) body.scenarios = Number(text("scenarios"));
  return body;
}

// The field that a refusal is about: it is named, or has the value that is not known.
export function fieldOf(detail, values) {
  const [, named] = /^(?:what-if: )?(?:field ')?([a-z_]+)/.exec(detail) ?? [],
    known = { scheduler: values.kind, faults: "node" };
  if (named in values || named in known) return (known[named] ?? named) || "kind";
  const [, what, value] = /unknown ([\w -]+?) '([^']*)'/.exec(detail) ?? [];
  if (value === undefined) return /polic|preset|scheduler/.test(detail) ? values.kind : "";
  const holders = Object.keys(values).filter((name) => values[name].includes(value));
  if (what === "node") return holders.find((name) => name === "remove" || name === "node") ?? "";
  if (what === "user") return holders.find((name) => name === "quotas" || name === "weights") ?? "";
  return holders.includes(values.kind) ? values.kind : (holders[0] ?? "");
}

export function whatIfView(root, { store, session, go }) {
  const kept = (session.whatIf ??= { values: {}, found: null, now: 0 }), // for as long as the user is signed in
    inputs = {},
    problems = {};
  const general = make("p", { class: "problem", role: "alert" }),
    bar = make("progress", { "aria-label": "Simulation", max: atMostS }),
    status = make("span", { role: "status", "aria-live": "polite" }),
    working = make("div", { class: "working", hidden: "" }, bar, status);
  const run = make("button", { class: "primary", type: "submit", text: "Simulate", id: "simulate" }),
    stop = make("button", { type: "button", text: "Stop", hidden: "", onclick: () => asking?.abort() }),
    clear = make("button", { type: "button", text: "Clear", onclick: reset });
  const boxes = fields.map(fieldBox);
  const form = make(
    "form",
    { class: "card", id: "whatif-form", novalidate: "" },
    make("h2", {}, "What if ", make("small", { text: "simulated from now on; the cluster does not change" })),
    make("div", { class: "fields" }, ...boxes),
    make("datalist", { id: "node-names" }, ...store.nodes.slice(0, 500).map((node) => make("option", { value: node.name }))),
    general,
    make("div", { class: "actions" }, run, stop, clear),
    working,
  );
  const result = make("div", { id: "whatif-result" });
  root.append(form, result);
  form.addEventListener("submit", simulate);
  let asking = null,
    timer = 0,
    drawn = null;
  fill(kept.values);
  if (kept.found) show();

  function fieldBox(field) {
    const tag = field.options ? "select" : field.type === "textarea" ? "textarea" : "input",
      id = `whatif-${field.name}`;
    const input = (inputs[field.name] = make(tag, {
      id,
      name: field.name,
      type: tag === "input" ? "text" : null,
      inputmode: field.type === "number" ? "decimal" : null,
      rows: tag === "textarea" ? 6 : null,
      list: field.list ?? null,
      autocomplete: "off",
      spellcheck: "false",
      "aria-describedby": `${id}-problem`,
    }));
    for (const [value, text] of field.options ?? []) input.append(make("option", { value, text }));
    input.addEventListener("input", () => {
      complain(field.name, "");
      kept.values = valuesOf();
      arrange();
    });
    problems[field.name] = make("span", { class: "problem", id: `${id}-problem`, role: "alert" });
    return make(
      "p",
      { class: field.type === "textarea" ? "field all" : "field" },
      make("label", { for: id, text: field.label }),
      input,
      ...(field.hint ? [make("small", { text: field.hint })] : []),
      problems[field.name],
    );
  }

  function valuesOf() {
    return Object.fromEntries(fields.map(({ name }) => [name, inputs[name].value]));
  }

  function fill(values) {
    for (const { name, value = "" } of fields) inputs[name].value = values[name] ?? value;
    arrange();
  }

  function arrange() {
    fields.forEach(({ kind }, i) => {
      if (kind) boxes[i].hidden = inputs.kind.value !== kind;
    });
  }

  function reset() {
    asking?.abort();
    Object.assign(kept, { values: {}, found: null });
    fill({});
    for (const { name } of fields) complain(name, "");
    general.textContent = "";
    result.replaceChildren();
  }

  function complain(name, text) {
    problems[name].textContent = text;
    if (text) inputs[name].setAttribute("aria-invalid", "true");
    else inputs[name].removeAttribute("aria-invalid");
  }

  function refuse(name, text) {
    if (!name || !inputs[name] || inputs[name].closest("p").hidden) {
      general.textContent = text;
      return;
    }
    complain(name, text);
    inputs[name].focus();
  }

  async function simulate(event) {
    event.preventDefault();
    if (asking) return;
    for (const { name } of fields) complain(name, "");
    general.textContent = "";
    const values = valuesOf();
    let body;
    try {
      body = requestOf(values);
    } catch (wrong) {
      if (!(wrong instanceof WrongField)) throw wrong;
      refuse(wrong.field, wrong.message);
      return;
    }
    const begun = performance.now();
    asking = new AbortController();
    run.disabled = true;
    stop.hidden = working.hidden = false;
    const step = () => {
      const passed = (performance.now() - begun) / 1000;
      bar.value = Math.min(passed, atMostS);
      status.textContent = `Simulating, ${Math.floor(passed / 5) * 5} s of at most ${atMostS} s …`;
    };
    step();
    timer = setInterval(step, 1000);
    try {
      kept.found = await ask("POST", "/v1/whatif", body, asking.signal);
      kept.now = store.now();
      show();
      result.scrollIntoView({ block: "start" });
    } catch (refused) {
      if (!asking.signal.aborted)
        refuse(refused.status === 422 || refused.status === 404 ? fieldOf(refused.message, values) : "", refused.message);
    }
    clearInterval(timer);
    asking = null;
    run.disabled = false;
    stop.hidden = working.hidden = true;
  }

  function show() {
    if (root.isConnected) drawn = showResult(result, kept.found, { now: kept.now, go });
  }

  return {
    update() {},
    theme: () => drawn?.paint(),
    unmount() {
      asking?.abort();
      clearInterval(timer);
      hideTip();
    },
  };
}
