// The log of a worker, which follows as it grows. Only its last part is kept in the page.
import { get, jobPath } from "/console/api.js";

const tailBytes = 64 << 10,
  keptCharacters = 400_000,
  pollMs = 1000,
  idleMs = 5000;

export function logBox(number) {
  const text = make("pre", { class: "log", tabindex: "0", role: "log", "aria-label": "Log" }),
    note = make("small");
  const follow = make("input", { type: "checkbox", id: "follow-log" }),
    rank = make("input", { type: "number", min: "0", value: "0", class: "short", onchange: restart });
  follow.checked = true;
  const element = make(
    "section",
    { class: "card", id: "log" },
    make("h2", {}, "Log ", note),
    make("div", { class: "tools" }, make("label", {}, follow, "follow"), make("label", {}, "worker", rank)),
    text,
  );
  let offset = -tailBytes,
    launch = 0,
    timer = 0,
    stopped = false,
    generation = 0,
    busy = false;
  poll();

  function restart() {
    generation++;
    offset = -tailBytes;
    launch = 0;
    text.textContent = "";
    busy = false;
    poll();
  }

  async function poll() {
    clearTimeout(timer);
    if (stopped || busy) return;
    busy = true;
    const mine = generation;
    let wait = idleMs;
    try {
      const chunk = await get(jobPath(number, `/logs?rank=${Number(rank.value) || 0}&offset=${offset}`));
      if (mine !== generation || stopped) return;
      if (launch && chunk.launch !== launch) {
        busy = false;
        launch = 0;
        restart();
        return;
      }
      launch = chunk.launch;
      offset = chunk.next;
      append(chunk.text);
      note.textContent = chunk.launch
        ? `launch ${chunk.launch} of ${chunk.launches}${chunk.over ? ", ended" : ""}`
        : "not started yet";
      wait = chunk.text ? 100 : chunk.over && chunk.ended ? Infinity : pollMs;
    } catch (refused) {
      if (mine !== generation || stopped) return;
      note.textContent = refused.message;
    }
    busy = false;
    if (wait < Infinity && !stopped) timer = setTimeout(poll, document.hidden ? idleMs : wait);
  }

  function append(more) {
    if (!more) return;
    text.append(more);
    if (text.textContent.length > keptCharacters) text.textContent = text.textContent.slice(-keptCharacters / 2);
    if (follow.checked) text.scrollTop = text.scrollHeight;
  }

  return {
    element,
    poll,
    stop() {
      stopped = true;
      clearTimeout(timer);
    },
  };
}
