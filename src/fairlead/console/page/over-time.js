// How many jobs waited when, and where the marks of a clock are on an axis.
import { waitingStates } from "/console/words.js";

// +1 when a job is submitted or stops without having ended, -1 when it starts, or ends while it waits.
export function waitingOverTime(store, low, high) {
  const steps = [],
    add = (at, by) => steps.push([at, by]),
    own = new Map();
  for (const run of store.runs) {
    const known = own.get(run.number);
    if (known) known.push(run);
    else own.set(run.number, [run]);
  }
  for (const job of store.jobs.values()) {
    if (job.submitted === null || job.submitted === undefined) continue;
    const runs = [...(own.get(job.number) ?? [])];
    if (job.state === "running" && job.started) runs.push({ start: job.started, end: Infinity });
    add(job.submitted, 1);
    for (const run of runs) {
      add(run.start, -1);
      add(run.end, 1);
    }
    if (!waitingStates.has(job.state) && job.state !== "running") add(job.ended ?? high, -1);
  }
  steps.sort((a, b) => a[0] - b[0]);
  const x = [low],
    y = [0],
    fine = (high - low) / 600; // points closer than a pixel are one
  let level = 0;
  for (const [at, by] of steps) {
    if (at > high) break;
    level += by;
    if (at <= low) y[0] = level;
    else if (at - x.at(-1) < fine) y[y.length - 1] = level;
    else {
      x.push(at);
      y.push(level);
    }
  }
  x.push(high);
  return { x, y: y.map((v) => Math.max(0, v)) };
}

export function firstSubmitted(store) {
  let first = Infinity;
  for (const job of store.jobs.values()) if (job.submitted) first = Math.min(first, job.submitted);
  return first;
}

export function localTicks(low, high, wanted) {
  const offset = -60 * new Date(low * 1000).getTimezoneOffset();
  return timeTicks(low + offset, high + offset, wanted).map((at) => at - offset);
}
