// The stream of changes: it connects again after each loss, and resumes behind the last event that arrived.
// A page that nobody sees lets go of its connection after a while: a browser has few for one server.
const firstWaitS = 1,
  longestWaitS = 15,
  hiddenS = 60;

export function follow({ onReset, onChange, onStatus, check }) {
  let source = null,
    last = "",
    waitS = firstWaitS,
    timer = 0,
    stopped = false;

  function connect() {
    clearTimeout(timer);
    if (stopped) return;
    source = new EventSource(last ? `/v1/live?since=${encodeURIComponent(last)}` : "/v1/live");
    const heard = (handle) => (event) => {
      last = event.lastEventId || last;
      waitS = firstWaitS;
      handle(JSON.parse(event.data));
      onStatus("live");
    };
    source.addEventListener("open", () => {
      if (last) onStatus("live");
    });
    source.addEventListener("reset", heard(onReset));
    source.addEventListener("change", heard(onChange));
    source.addEventListener("error", lost);
  }

  // The browser's own attempts end after an answer such as 503, so all attempts are made here.
  function lost() {
    source.close();
    if (stopped) return;
    onStatus("lost");
    check(); // a session that has ended leads to the sign-in
    timer = setTimeout(connect, 1000 * waitS * (0.8 + 0.4 * Math.random()));
    waitS = Math.min(longestWaitS, 2 * waitS);
  }

  function seen() {
    clearTimeout(timer);
    if (document.hidden)
      timer = setTimeout(() => {
        source.close();
        onStatus("off");
      }, 1000 * hiddenS);
    else if (source.readyState === EventSource.CLOSED) connect();
  }

  connect();
  document.addEventListener("visibilitychange", seen);
  return {
    stop() {
      stopped = true;
      clearTimeout(timer);
      source.close();
      document.removeEventListener("visibilitychange", seen);
    },
  };
}
