// What the page knows of the cluster: jobs, nodes, the jobs on each GPU, and past runs. Changes are applied as they arrive, and
// noted in `touched` until the next frame is drawn.
import { endedStates, waitingStates } from "/console/words.js";

const maxDecisions = 50;
const keptJobs = 15_000,
  keptRuns = 60_000,
  keptS = 86_400; // a page may stay open for weeks
const fresh = () => ({ all: false, jobs: new Set(), nodes: new Set(), moved: false, decisions: false, scheduler: false });

export class Store {
  constructor() {
    this.touched = fresh();
    this.known = false;
    this.runs = [];
    this.clear();
  }

  clear() {
    this.jobs = new Map();
    this.nodes = [];
    this.holders = []; // by GPU: numbers of the jobs on it
    this.nodeOf = []; // by GPU
    this.decisions = [];
  }

  reset(data) {
    this.clear();
    Object.assign(this, { types: data.types, origin: data.origin, scheduler: data.scheduler, known: true });
    this.jobColumns = data.job_columns;
    this.nodeColumns = data.node_columns;
    this.touched.all = true;
    this.change(data);
  }

  change(data) {
    this.second = data.second;
    this.heard = performance.now();
    if (data.types) this.types = data.types;
    for (const row of data.nodes ?? []) this.#putNode(named(this.nodeColumns, row));
    for (const row of data.jobs ?? []) this.#putJob(named(this.jobColumns, row));
    this.#prune();
    if (data.decisions?.length) {
      this.decisions = [...data.decisions, ...this.decisions].sort((a, b) => b.second - a.second).slice(0, maxDecisions);
      this.touched.decisions = true;
    }
    if (data.scheduler) {
      this.scheduler = data.scheduler;
      this.touched.scheduler = true;
    }
  }

  #prune() {
    if (this.jobs.size <= keptJobs && this.runs.length <= keptRuns) return;
    const before = this.origin + this.second - keptS;
    for (const [number, job] of this.jobs)
      if (endedStates.has(job.state) && (job.ended ?? 0) < before) this.jobs.delete(number);
    this.runs = this.runs.filter((run) => run.end >= before).slice(-keptRuns);
  }

  take() {
    const taken = this.touched;
    this.touched = fresh();
    return taken;
  }

  // Unix time on the control plane's clock.
  now() {
    return this.origin + this.second + (performance.now() - this.heard) / 1000;
  }

  #putNode(node) {
    this.nodes[node.index] = node;
    for (let gpu = node.first; gpu < node.first + node.gpus; gpu++) {
      this.nodeOf[gpu] = node.index;
      this.holders[gpu] ??= [];
    }
    this.touched.nodes.add(node.index);
  }

  #putJob(job) {
    const old = this.jobs.get(job.number);
    this.jobs.set(job.number, job);
    this.touched.jobs.add(job.number);
    const same = old && old.state === job.state && old.name === job.name && sameNumbers(old.devices, job.devices);
    if (same && old.started === job.started) return;
    this.touched.moved = true; // not only its progress
    for (const gpu of old?.devices ?? [])
      this.#touchGpu(
        gpu,
        (this.holders[gpu] ?? []).filter((one) => one !== job.number),
      );
    for (const gpu of job.devices) this.#touchGpu(gpu, [...(this.holders[gpu] ?? []), job.number]);
    if (old?.state === "running" && old.started && (job.state !== "running" || job.started !== old.started)) {
      const end = job.state === "running" ? job.started : (job.ended ?? this.origin + this.second);
      this.runs.push({ number: job.number, type: old.gpu_type, gpus: old.devices.length || old.gpus, start: old.started, end });
    }
  }

  #touchGpu(gpu, holders) {
    this.holders[gpu] = holders;
    this.touched.nodes.add(this.nodeOf[gpu]);
  }

  // Ended stretches of the past; those that run now are drawn from the jobs.
  setRuns(answer) {
    const place = new Map(this.types.map((name, i) => [name, i]));
    this.runsSince = answer.known_since;
    this.runs = answer.runs
      .filter((run) => !(run.end >= answer.now - 1 && this.jobs.get(run.number)?.state === "running"))
      .map((run) => ({
        number: run.number,
        type: place.get(run.gpu_type) ?? -1,
        gpus: run.gpus,
        start: run.start,
        end: run.end,
        name: run.name,
        user: run.user,
        account: run.account,
      }));
    this.touched.moved = true;
  }

  count() {
    const states = { waiting: 0, running: 0 },
      types = this.types.map((name) => ({ name, all: 0, up: 0, used: 0 }));
    for (const job of this.jobs.values()) {
      if (waitingStates.has(job.state)) states.waiting++;
      else if (job.state === "running") states.running++;
    }
    for (const node of this.nodes) {
      if (!node || node.state === "removed") continue;
      const type = types[node.type];
      type.all += node.gpus;
      if (node.state === "up") type.up += node.gpus;
      for (let gpu = node.first; gpu < node.first + node.gpus; gpu++) if (this.holders[gpu].length) type.used++;
    }
    return { states, types: types.filter((type) => type.all) };
  }
}

function named(columns, row) {
  const record = {};
  for (let i = 0; i < columns.length; i++) record[columns[i]] = row[i];
  return record;
}

function sameNumbers(one, other) {
  if (one.length !== other.length) return false;
  for (let i = 0; i < one.length; i++) if (one[i] !== other[i]) return false;
  return true;
}
