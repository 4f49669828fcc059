// How states, reasons, times and forecasts are written. All of it is text.
export const waitingStates = new Set(["queued", "waiting", "held"]);
export const endedStates = new Set(["finished", "failed", "cancelled", "refused"]);

const reasons = {
  "too-large": "Too large for this cluster",
  "no-suitable-type": "No GPU type is suitable",
  "not-admitted": "Not admitted: a quota is used up",
  "waiting-for-resources": "Waiting for free GPUs",
  "behind-head": "Waiting behind the head of the queue",
  "nodes-down": "Waiting for nodes that are down",
  "not-placed": "Selected, but no suitable GPUs are free together",
  "next-decision": "Waiting for the next decision",
  "deadline-infeasible": "Its deadline cannot be met",
  "waiting-for-jobs": "Waiting for jobs that it depends on",
  "dependency-failed": "A job that it depends on did not finish",
  "no-decision": "The scheduler makes no decisions",
  "planned-later": "Planned for a later round",
  "not-selected": "Not selected in this round",
  retrying: "Failed, will be tried again",
  failed: "Failed",
  "launch-failed": "Its node could not start it",
  held: "Held",
  "no-nodes": "Waiting for nodes to join",
};

export function reasonWords(code) {
  return reasons[code] ?? (code || "").replaceAll("-", " ");
}

export function ago(seconds) {
  return duration(Math.max(0, seconds));
}

const clockForm = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const dayForm = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

export function clock(unix) {
  return clockForm.format(new Date(unix * 1000));
}

export function date(unix, now) {
  if (unix === null || unix === undefined) return "–";
  const moment = new Date(unix * 1000),
    today = new Date(now * 1000).toDateString() === moment.toDateString();
  return today ? clockForm.format(moment) : `${dayForm.format(moment)}, ${clockForm.format(moment)}`;
}

export function tick(unix, span) {
  const moment = new Date(unix * 1000);
  if (span > 2 * 86400) return moment.getHours() ? clockForm.format(moment).slice(0, 5) : dayForm.format(moment);
  return span < 1200 ? clockForm.format(moment) : clockForm.format(moment).slice(0, 5);
}

// "in 5.0 min (2.0 min to 1.0 h)": the median, and from the earliest to the latest of the simulations.
export function forecastWords(spread) {
  if (!spread) return "";
  const [low, middle, high] = spread;
  if (middle === null) return low === null ? "not within the simulated time" : `after ${duration(low)} or more`;
  const most = high === null ? "later" : duration(high);
  return `in ${duration(middle)}` + (duration(low) === most ? "" : ` (${duration(low)} to ${most})`);
}

export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}
