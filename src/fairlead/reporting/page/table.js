// A table of any length: only the rows in view exist. Columns: {heading, least (pixels), share, value(row), text(row), left, meaning}.
const rowHeight = 30;

function makeTable(box, columns, options = {}) {
  const state = { rows: [], order: [], by: options.by ?? 0, up: options.up ?? true, chosen: -1 };
  const least = (column) => column.least || 78;
  const template = columns.map((column) => `minmax(${least(column)}px, ${column.share || 1}fr)`).join(" ");
  box.style.setProperty("--least", `${columns.reduce((sum, column) => sum + least(column), 0)}px`);
  const head = make("div", { class: "head" }), body = make("div", { class: "body" });
  head.style.gridTemplateColumns = template;
  columns.forEach((column, number) => {
    const cell = make("span", { class: column.left ? "left" : "", role: "button", onclick: () => sort(number) });
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
    const keys = new Map(state.rows.map((row) => [row, value(row)]));
    state.order = Array.from(state.rows).sort((a, b) => {
      const one = keys.get(a), other = keys.get(b);
      if (missing(one) || missing(other)) return missing(one) - missing(other);
      return sign * (typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : one - other);
    });
    [...head.children].forEach((cell, i) => {
      cell.textContent = columns[i].heading + (i === state.by ? (state.up ? " ▲" : " ▼") : "");
    });
    body.style.height = `${state.order.length * rowHeight}px`;
    paint();
  }

  function paint() {
    const first = Math.max(0, Math.floor(box.scrollTop / rowHeight) - 4), last = Math.min(state.order.length, first + 28);
    body.replaceChildren();
    if (!state.order.length) body.append(make("div", { class: "none", text: "none" }));
    for (let place = first; place < last; place++) {
      const row = state.order[place];
      const line = make("div", { class: "row" + (options.onClick ? " link" : "") + (row === state.chosen ? " chosen" : "") });
      line.style.top = `${place * rowHeight}px`;
      line.style.gridTemplateColumns = template;
      for (const column of columns) {
        const text = column.text(row);
        line.append(make("span", { class: column.left ? "left" : null, text, title: column.left ? text : null }));
      }
      if (options.onClick) line.addEventListener("click", () => options.onClick(row));
      body.append(line);
    }
    box.dataset.rows = state.order.length;
  }

  return {
    show(rows) { state.rows = rows; box.scrollTop = 0; arrange(); },
    choose(row) { state.chosen = row; paint(); },
  };
}
