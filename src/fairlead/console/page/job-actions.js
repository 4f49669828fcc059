// What a user may do with a job: buttons, each with a dialog that says what happens.
import { ask, jobPath } from "/console/api.js";
import { confirmChange } from "/console/dialog.js";
import { endedStates, waitingStates } from "/console/words.js";

export function jobActions(job, session, changed) {
  const box = make("div", { class: "actions" });
  if (session.role !== "admin" && job.user !== session.user) return box;
  const name = job.name,
    done = (act) => async (values) => {
      await act(values);
      changed();
    };
  const add = (text, about) =>
    box.append(
      make("button", {
        type: "button",
        text,
        "data-action": text.toLowerCase(),
        onclick: () => confirmChange({ ...about, act: done(about.act) }),
      }),
    );
  const runs = job.phase === "running",
    waits = waitingStates.has(job.phase),
    ended = endedStates.has(job.phase);
  if (!ended)
    add("Cancel", {
      title: `Cancel ${name}?`,
      text: runs ? "It is stopped, and does not run again." : "It leaves the queue, and does not run.",
      verb: "Cancel the job",
      danger: true,
      act: () => ask("DELETE", jobPath(job.number)),
    });
  if (waits && !job.held_by)
    add("Hold", {
      title: `Hold ${name}?`,
      text: "It does not start until it is released.",
      verb: "Hold",
      act: () => ask("PUT", jobPath(job.number, "/hold")),
    });
  if (job.held_by)
    add("Release", {
      title: `Release ${name}?`,
      text: `It is held by ${job.held_by}. It may start from the next decision on.`,
      verb: "Release",
      act: () => ask("DELETE", jobPath(job.number, "/hold")),
    });
  if (!waits)
    add("Requeue", {
      title: `Requeue ${name}?`,
      text: runs ? "It saves, stops and waits in the queue again." : "It runs again; a finished job from its first step.",
      verb: "Requeue",
      act: () => ask("POST", jobPath(job.number, "/requeue"), {}),
    });
  if (runs)
    add("Requeue and hold", {
      title: `Requeue and hold ${name}?`,
      text: "It saves, stops, and does not start again until it is released.",
      verb: "Requeue and hold",
      act: () => ask("POST", jobPath(job.number, "/requeue"), { hold: true }),
    });
  add("Update", {
    title: `Update ${name}`,
    text: "An empty time limit means no limit.",
    verb: "Save",
    fields: [
      { name: "name", label: "Name", value: name },
      { name: "account", label: "Account", value: job.account },
      ...(ended
        ? []
        : [
            { name: "priority", label: "Priority", value: job.priority, type: "number" },
            { name: "weight", label: "Weight", value: job.weight, type: "number" },
            { name: "time_limit_s", label: "Time limit in seconds", value: job.time_limit_s ?? "", type: "number" },
          ]),
    ],
    act: (values) => {
      const changes = {};
      if (values.name !== name) changes.name = values.name;
      if (values.account !== (job.account ?? "")) changes.account = values.account;
      if (!ended && Number(values.priority) !== job.priority) changes.priority = Number(values.priority);
      if (!ended && Number(values.weight) !== job.weight) changes.weight = Number(values.weight);
      const limit = values.time_limit_s ? Number(values.time_limit_s) : null;
      if (!ended && limit !== (job.time_limit_s ?? null)) changes.time_limit_s = limit;
      return Object.keys(changes).length ? ask("PATCH", jobPath(job.number), changes) : Promise.resolve();
    },
  });
  return box;
}
