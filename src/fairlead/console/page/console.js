// The console: sign-in, the views by address, and one frame for each batch of changes.
import { ask, get, whenSignedOut } from "/console/api.js";
import { clusterView } from "/console/cluster-view.js";
import { fairnessView } from "/console/fairness-view.js";
import { Forecast } from "/console/forecast.js";
import { jobView } from "/console/job-view.js";
import { follow } from "/console/live.js";
import { nodesView } from "/console/nodes-view.js";
import { queueView } from "/console/queue-view.js";
import { schedulerView } from "/console/scheduler-view.js";
import { Store } from "/console/store.js";
import { timelineView } from "/console/timeline-view.js";
import { whatIfView } from "/console/whatif-view.js";

const views = {
  cluster: { title: "Cluster", show: clusterView },
  timeline: { title: "Timeline", show: timelineView },
  queue: { title: "Queue", show: queueView },
  job: { title: "Job", show: jobView, hidden: true },
  fairness: { title: "Fairness", show: fairnessView },
  scheduler: { title: "Scheduler", show: schedulerView },
  whatif: { title: "What-if", show: whatIfView, feature: "whatif" },
  nodes: { title: "Nodes", show: nodesView },
};
const main = document.getElementById("main"),
  nav = document.getElementById("nav"),
  connection = document.getElementById("connection");
const signOut = document.getElementById("sign-out");
let store = new Store(),
  forecast = null,
  session = null,
  stream = null,
  shown = null,
  asked = false,
  runsFrom = Infinity;

function later() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(frame);
}

function frame() {
  asked = false;
  if (!store.known || !session) return;
  const touched = store.take();
  if (!shown) open();
  else shown.view.update(touched);
  document.body.dataset.ready = "true";
}

function forecastChanged() {
  store.touched.forecast = true;
  later();
}

// Runs of the past: fetched once for each longer window, then kept by the stream.
async function loadRuns(seconds = 6 * 3600) {
  const since = store.now() - seconds;
  if (since >= runsFrom) return;
  runsFrom = since;
  try {
    store.setRuns(await get(`/v1/runs?since=${Math.max(0, since)}`));
  } catch {
    runsFrom = Infinity;
  }
  later();
}

function open() {
  if (!session || !store.known) return;
  const [name, argument] = location.hash.slice(1).split("/").map(decodeURIComponent),
    wanted = views[name] && isOffered(views[name]) ? name : "cluster";
  shown?.view.unmount();
  main.replaceChildren();
  const context = {
    store,
    forecast,
    session,
    loadRuns,
    go: (hash) => {
      location.hash = hash;
    },
  };
  shown = { name: wanted, view: views[wanted].show(main, context, argument) };
  shown.view.update({
    all: true,
    jobs: new Set(),
    nodes: new Set(),
    moved: true,
    decisions: true,
    scheduler: false,
    forecast: true,
  });
  for (const link of nav.children) {
    if (link.hash !== `#${wanted}`) {
      link.removeAttribute("aria-current");
      continue;
    }
    link.setAttribute("aria-current", "page");
    link.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  document.title = `${views[wanted].title} · Fairlead`;
  main.dataset.view = wanted;
}

function isOffered(view) {
  return !view.feature || session.features?.includes(view.feature);
}

function status(state) {
  connection.className = `connection ${state}`;
  connection.textContent = { live: "live", lost: "connection lost, trying again", off: "" }[state];
}

function start(found) {
  session = found;
  store = new Store();
  forecast = new Forecast(store, forecastChanged);
  runsFrom = Infinity;
  shown = null;
  nav.replaceChildren(
    ...Object.entries(views)
      .filter(([, view]) => !view.hidden && isOffered(view))
      .map(([name, view]) => make("a", { href: `#${name}`, text: view.title })),
  );
  document.getElementById("user").textContent = `${found.user}${found.role === "admin" ? " (admin)" : ""}`;
  signOut.hidden = false;
  signOut.title = `Signed in as ${found.user}`;
  main.replaceChildren(make("p", { class: "muted", text: "Loading the cluster …" }));
  stream?.stop();
  stream = follow({
    onReset(data) {
      store.reset(data);
      if (runsFrom < Infinity) {
        runsFrom = Infinity;
        loadRuns();
      }
      later();
    },
    onChange(data) {
      store.change(data);
      later();
    },
    onStatus: status,
    check() {
      get("/console/session").catch(() => {});
    },
  });
}

function signIn(problem = "") {
  stream?.stop();
  shown?.view.unmount();
  stream = shown = session = null;
  status("off");
  signOut.hidden = true;
  nav.replaceChildren();
  document.getElementById("user").textContent = "";
  const token = make("input", {
    id: "token",
    type: "password",
    autocomplete: "current-password",
    required: "",
    spellcheck: "false",
  });
  const said = make("p", { class: "problem", role: "alert", text: problem });
  const form = make(
    "form",
    { class: "card sign-in", id: "sign-in" },
    make("h2", { text: "Sign in" }),
    make(
      "p",
      { class: "field" },
      make("label", { for: "token", text: "Token" }),
      token,
      make("small", {
        text: "The admin token is in admin.token of the control plane's folder; 'fairlead token add' makes one for a user.",
      }),
    ),
    said,
    make("div", { class: "dialog-buttons" }, make("button", { class: "primary", type: "submit", text: "Sign in" })),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await ask("POST", "/console/sign-in", { token: token.value.trim() });
      start(await get("/console/session"));
    } catch (refused) {
      said.textContent = refused.status === 401 ? "This token is not valid." : refused.message;
    }
  });
  main.replaceChildren(form);
  main.dataset.view = "sign-in";
  document.body.dataset.ready = "true";
  token.focus();
}

whenSignedOut(() => {
  if (session) signIn("Your session has ended. Sign in again.");
});
signOut.addEventListener("click", async () => {
  await ask("POST", "/console/sign-out").catch(() => {});
  signIn();
});
window.addEventListener("hashchange", open);
startTheme(() => shown?.view.theme?.());
get("/console/session").then(start, (refused) => signIn(refused.status === 401 ? "" : refused.message));
