// What would have to change for a job that waits to start at the next decision, and which jobs would pay for it.
import { get, jobPath } from "/console/api.js";
import { plainTable } from "/console/dialog.js";
import { plural } from "/console/words.js";

const shownDelays = 4;

export function smallestChange(number) {
  const button = make("button", { type: "button", text: "Find the smallest change", onclick: search }),
    result = make("div", { role: "status", "aria-live": "polite" });
  const element = make(
    "section",
    { class: "card", id: "fix" },
    make("h2", {}, "Smallest change that would start it ", make("small", { text: "at the next decision" })),
    result,
    make("div", { class: "actions" }, button),
  );

  async function search() {
    button.disabled = true;
    element.dataset.state = "searching";
    result.replaceChildren(make("p", { class: "muted", text: "The control plane tries changes on a copy of the cluster …" }));
    try {
      const found = await get(jobPath(number, "/fix"));
      result.replaceChildren(...words(found));
      button.textContent = "Search again";
      element.dataset.state = "found";
    } catch (refused) {
      result.replaceChildren(make("p", { class: "problem", text: refused.message }));
      element.dataset.state = "refused";
    }
    button.disabled = false;
  }

  return { element };
}

function words(found) {
  if (found.starts) return [make("p", { text: "It starts at the next decision without a change." })];
  const shown = found.changes.length
    ? [
        plainTable(
          ["change", "delays"],
          found.changes.map((change) => [sentence(change.text), delays(change.delays)]),
        ),
      ]
    : [make("p", { text: found.unsearched.length ? "No change found yet." : "No change of one kind alone starts it." })];
  if (found.unsearched.length)
    shown.push(make("p", { class: "muted", text: `There was no time to search: ${found.unsearched.join(", ")}.` }));
  return shown;
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function delays(found) {
  if (!found) return "not simulated";
  if (!found.length) return "no job";
  const length = (one) => one.seconds ?? Infinity, // null: it does not end within the simulation
    sorted = [...found].sort((a, b) => (length(b) > length(a)) - (length(a) > length(b))),
    rest = sorted.length - shownDelays;
  const howLong = (one) => (one.seconds === null ? "beyond the simulation" : `by ${duration(one.seconds)}`);
  const named = sorted
    .slice(0, shownDelays)
    .map((one) => `${one.name}${one.user ? ` (${one.user})` : ""} ${howLong(one)}`);
  return named.join(", ") + (rest > 0 ? `, and ${plural(rest, "more job")}` : "");
}
