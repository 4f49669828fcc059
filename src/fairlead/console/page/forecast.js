// Forecasts of starts and ends, fetched while a view needs them: an early, the median and a late second of each.
import { get } from "/console/api.js";

const againAfterMs = 30_000;

export class Forecast {
  constructor(store, changed) {
    Object.assign(this, { store, changed, jobs: new Map(), at: -Infinity, problem: "", asking: false });
  }

  // Views call this whenever they draw; a request leaves only if the last answer is old.
  async want() {
    if (this.asking || document.hidden || performance.now() - this.at < againAfterMs) return;
    this.asking = true;
    try {
      const answer = await get("/v1/when"),
        now = this.store.now();
      this.jobs = new Map(answer.jobs.map((one) => [one.number, spreadOf(one, now)]));
      this.problem = "";
      this.completed = answer.completed;
    } catch (refused) {
      this.problem = refused.status === 404 ? "this control plane makes no forecasts" : refused.message;
    }
    this.at = performance.now();
    this.asking = false;
    this.changed();
  }

  of(number) {
    return this.jobs.get(number);
  }

  // Seconds from now: [earliest, median, latest] of the start, or the end.
  inSeconds(number, which) {
    const one = this.jobs.get(number),
      now = this.store.now();
    return one ? one[which].map((at) => (at === null ? null : Math.max(0, at - now))) : null;
  }
}

function spreadOf(one, now) {
  const runs = one.with_arrivals.length ? one.with_arrivals : [one.without_arrivals]; // as `fairlead when`
  return {
    running: one.running,
    start: spread(
      runs.map((run) => run[0]),
      now,
    ),
    end: spread(
      runs.map((run) => run[1]),
      now,
    ),
  };
}

function spread(seconds, now) {
  const sorted = seconds.map((s) => s ?? Infinity).sort((a, b) => a - b);
  const all = [sorted[0], sorted[Math.floor(sorted.length / 2)], sorted.at(-1)];
  return all.map((s) => (Number.isFinite(s) ? now + s : null));
}
