// The page's data, unpacked: columns come as base64 of little-endian numbers.
const forms = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array };

function unpack(text, form) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return new forms[form](bytes.buffer);
}

function unpackTable(raw) {
  return {
    names: raw.names,
    kinds: raw.kinds.levels, kind: unpack(raw.kinds.codes, "u4"),
    users: raw.users.levels, user: unpack(raw.users.codes, "u4"),
    workers: unpack(raw.workers, "u2"),
    submitted: unpack(raw.submitted, "f8"),
  };
}

function unpackJobs(raw) {
  const { phase, preemptions, restarts } = raw;
  const columns = { phase: unpack(phase, "u1"), preemptions: unpack(preemptions, "u4"), restarts: unpack(restarts, "u4") };
  for (const name of ["wait", "jct", "run", "held", "ftf"]) columns[name] = unpack(raw[name], "f4");
  return columns;
}

// Sets of runs that are not compared with each other are parts of one page; the address says which is shown.
function readParts() {
  const parts = [...document.querySelectorAll("script.data")], asked = new URLSearchParams(location.search).get("part");
  return { names: parts.map((part) => part.dataset.name), chosen: parts[Number(asked)] ? Number(asked) : 0, parts };
}

function readData() {
  const { parts, chosen } = readParts(), data = JSON.parse(parts[chosen].textContent);
  data.tables = data.tables.map(unpackTable);
  data.runs.forEach((run, number) => {
    run.number = number;
    run.colour = `var(--run-${number % data.colours.length})`;
    run.dash = data.dashes[Math.floor(number / data.colours.length) % data.dashes.length];
    run.shown = true;
    run.jobs = unpackJobs(run.jobs);
    run.table = data.tables[run.table];
    run.cluster = data.clusters[run.cluster];
  });
  return data;
}
