// Hands on the Gantt: wheel, drag, click, hover and keys, turned into what the Gantt can do.
function attachGantt(canvas, gantt) {
  const { view } = gantt;
  let drag = null;
  const spot = (event) => { const frame = canvas.getBoundingClientRect(); return [event.clientX - frame.left, event.clientY - frame.top]; };

  canvas.addEventListener("wheel", (event) => {
    const [x, y] = spot(event), turn = event.deltaY || event.deltaX;
    const whole = view.to - view.from >= (view.high - view.low) * 0.9999;
    if (!event.shiftKey && turn > 0 && whole) return; // nothing left to zoom out of: let the page scroll
    event.preventDefault();
    const factor = Math.exp(Math.max(-200, Math.min(200, turn)) * 0.0022);
    if (event.shiftKey) gantt.zoomRows(1 / factor, y); else gantt.zoom(factor, Math.max(x, gantt.gutter));
  }, { passive: false });

  canvas.addEventListener("pointerdown", (event) => {
    const [x, y] = spot(event);
    drag = { x, y, from: view.from, scroll: view.scroll, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = spot(event);
    if (!drag) return (gantt.hover ?? hover)(event, x, y);
    if (Math.hypot(x - drag.x, y - drag.y) > 4) drag.moved = true;
    if (!drag.moved) return;
    canvas.classList.add("dragging");
    hideTip();
    gantt.place(drag.from - ((x - drag.x) / gantt.plotWidth()) * (view.to - view.from), view.to - view.from);
    gantt.scrollTo(drag.scroll - (y - drag.y));
  });
  canvas.addEventListener("pointerup", (event) => {
    const [x, y] = spot(event), still = drag && !drag.moved;
    drag = null;
    canvas.classList.remove("dragging");
    if (!still) return;
    const hit = gantt.stretchAt(x, y);
    if (hit && hit.stretch !== null) gantt.pick(gantt.columns().job[hit.stretch]);
    else if (view.picked >= 0) gantt.pick(view.picked);
  });
  canvas.addEventListener("pointercancel", () => { drag = null; canvas.classList.remove("dragging"); });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", () => gantt.reset());
  canvas.addEventListener("keydown", (event) => {
    const span = view.to - view.from, middle = gantt.gutter + gantt.plotWidth() / 2;
    const keys = {
      ArrowLeft: () => gantt.place(view.from - span * 0.15, span), ArrowRight: () => gantt.place(view.from + span * 0.15, span),
      ArrowUp: () => gantt.scrollTo(view.scroll - 40), ArrowDown: () => gantt.scrollTo(view.scroll + 40),
      "+": () => gantt.zoom(0.7, middle), "=": () => gantt.zoom(0.7, middle), "-": () => gantt.zoom(1.4, middle), "0": () => gantt.reset(),
      Escape: () => { if (view.picked >= 0) gantt.pick(view.picked); },
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  function hover(event, x, y) {
    const hit = gantt.stretchAt(x, y);
    if (!hit) return hideTip();
    const where = [["GPU", `${hit.band.name} / ${hit.row - hit.band.first} (${hit.band.type})`]];
    if (hit.stretch === null) return showTip(event, "idle", [...where, ["time", moment(hit.at, view.to - view.from)]]);
    const bars = gantt.columns(), job = bars.job[hit.stretch], { table, jobs } = view.run;
    const start = bars.start[hit.stretch], end = bars.end[hit.stretch], exactly = (seconds) => moment(seconds, Math.min(end - start, 86400));
    showTip(event, table.names[job], [
      ["job type", table.kinds[table.kind[job]] || "–"],
      ["user", table.users[table.user[job]] || "–"],
      ["workers", String(table.workers[job])],
      ...where,
      ["on the GPU", `${exactly(start)} to ${exactly(end)}`],
      ["for", duration(end - start)],
      ["submitted", exactly(table.submitted[job])],
      ["completion time", duration(jobs.jct[job])],
    ]);
  }
}
