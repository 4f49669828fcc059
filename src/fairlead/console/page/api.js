// Requests to the HTTP API. The session's cookie goes with each; the header says that this page, and no other site, sends it.
export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

let signedOut = () => {};
export function whenSignedOut(callback) {
  signedOut = callback;
}

export async function request(method, path, body, signal) {
  const headers = { "X-Fairlead-Console": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      signal,
    });
  } catch (problem) {
    if (problem.name === "AbortError") throw new Refused(0, "stopped");
    throw new Refused(0, "the control plane does not answer");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let detail = text;
  try {
    detail = JSON.parse(text).detail ?? text;
  } catch {
    /* not JSON: as it is */
  }
  if (answer.status === 401 && !path.startsWith("/console/sign")) signedOut();
  throw new Refused(answer.status, String(detail) || `the control plane answered with status ${answer.status}`);
}

export async function ask(method, path, body, signal) {
  const answer = await request(method, path, body, signal);
  return answer.status === 204 ? null : answer.json();
}

export const get = (path) => ask("GET", path);
export const jobPath = (number, rest = "") => `/v1/jobs/${encodeURIComponent(number)}${rest}`;
