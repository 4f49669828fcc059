// A table of any length: only the rows in view exist. Columns: {heading, least (pixels), share, value(row), text(row), left, meaning,
// kind(row)}. Rows that lead somewhere (`onClick`) are reached with the keyboard too.
const rowHeight = 30;
const collator = new Intl.Collator("en", { numeric: true });

function makeTable(box, columns, options = {}) {
  const state = { rows: [], order: [], by: options.by ?? 0, up: options.up ?? true, chosen: -1 };
  const least = (column) => column.least || 78;
  const template = columns.map((column) => `minmax(${least(column)}px, ${column.share || 1}fr)`).join(" ");
  box.style.setProperty("--least", `${columns.reduce((sum, column) => sum + least(column), 0)}px`);
  const head = make("div", { class: "head" }), body = make("div", { class: "body" });
  const lines = [];
  head.style.gridTemplateColumns = template;
  columns.forEach((column, number) => {
    const cell = make("span", { class: column.left ? "left" : "", role: "button", tabindex: "0", onclick: () => sort(number) });
    cell.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(number); } });
    if (column.meaning) {
      cell.addEventListener("pointermove", (event) => showTip(event, column.heading, [], column.meaning));
      cell.addEventListener("pointerleave", hideTip);
    }
    head.append(cell);
  });
  box.replaceChildren(head, body);
  box.addEventListener("scroll", paint);

  function sort(number) {
    if (state.by === number) state.up = !state.up;
    else { state.by = number; state.up = Boolean(columns[number].left); }
    arrange();
  }

  function arrange() {
    const value = columns[state.by].value, sign = state.up ? 1 : -1;
    // What is not a number stands last, whichever way the rest is sorted.
    const missing = (v) => v === null || v === undefined || (typeof v === "number" && Number.isNaN(v));
    const keyed = Array.from(state.rows, (row) => [value(row), row]);
    keyed.sort(([one], [other]) => {
      if (missing(one) || missing(other)) return missing(one) - missing(other);
      return sign * (typeof one === "string" ? collator.compare(one, other) : one - other);
    });
    state.order = keyed.map(([, row]) => row);
    [...head.children].forEach((cell, i) => {
      cell.textContent = columns[i].heading + (i === state.by ? (state.up ? " ▲" : " ▼") : "");
    });
    body.style.height = `${Math.max(1, state.order.length) * rowHeight}px`;
    paint();
  }

  function shownRange() {
    const first = Math.max(0, Math.floor(box.scrollTop / rowHeight) - 4);
    return [first, Math.min(state.order.length, first + Math.max(28, Math.ceil(box.clientHeight / rowHeight) + 8))];
  }

  // A line of the page keeps its place in the table while that is in view, so that it also keeps the keyboard's focus.
  function paint() {
    const [first, last] = shownRange(), wanted = Math.max(28, last - first);
    while (lines.length < wanted) lines.push(newLine());
    const shown = [];
    for (let place = first; place < last; place++) {
      const line = lines[place % lines.length];
      fillLine(line, place, state.order[place]);
      shown.push(line.element);
    }
    if (!state.order.length) shown.push(make("div", { class: "none", text: options.none ?? "none" }));
    const kept = new Set(shown);
    for (const child of [...body.children]) if (!kept.has(child)) child.remove();
    for (const element of shown) if (element.parentElement !== body) body.append(element);
    box.dataset.rows = state.order.length;
  }

  function newLine() {
    const line = { element: make("div", options.onClick ? { tabindex: "0", role: "link" } : {}), place: -1, row: null };
    line.cells = columns.map((column) => line.element.appendChild(make("span", { class: column.left ? "left" : null })));
    line.element.style.gridTemplateColumns = template;
    if (options.onClick) {
      line.element.addEventListener("click", () => options.onClick(line.row));
      line.element.addEventListener("keydown", (event) => move(event, line));
    }
    return line;
  }

  function fillLine(line, place, row) {
    line.element.className = "row" + (options.onClick ? " link" : "") + (row === state.chosen ? " chosen" : "");
    if (line.place !== place) line.element.style.top = `${place * rowHeight}px`;
    line.place = place;
    line.row = row;
    columns.forEach((column, i) => {
      const text = column.text(row), cell = line.cells[i];
      if (cell.textContent !== text) { cell.textContent = text; if (column.left) cell.title = text; }
      if (column.kind) cell.className = `${column.left ? "left " : ""}${column.kind(row)}`;
    });
  }

  function move(event, line) {
    if (event.key === "Enter") {
      event.preventDefault(); // or the same press would also send a form that opens
      return options.onClick(line.row);
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], place = line.place + step;
    if (!step || place < 0 || place >= state.order.length) return undefined;
    event.preventDefault();
    const top = place * rowHeight;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top > box.scrollTop + box.clientHeight - 3 * rowHeight) box.scrollTop = top - box.clientHeight + 3 * rowHeight;
    paint();
    return lines[place % lines.length].element.focus({ preventScroll: true });
  }

  return {
    show(rows) { state.rows = rows; box.scrollTop = 0; arrange(); },
    renew(rows) { state.rows = rows; arrange(); }, // where it was scrolled to stays
    paint,
    shown: () => { const [first, last] = shownRange(); return state.order.slice(first, last); },
    choose(row) { state.chosen = row; paint(); },
  };
}
