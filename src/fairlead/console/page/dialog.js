// One dialog for every change: it says what will happen, may ask for values, and shows the control plane's refusal in place.
export const dialog = document.getElementById("dialog");

// fields: [{name, label, value, type, hint, required, options}]; act(values) is awaited, and an error of it is shown.
// preview(values, signal): elements that say what the change would do, shown before it is confirmed.
export function confirmChange({ title, text = "", fields = [], verb, danger = false, act, preview = null }) {
  const opener = document.activeElement;
  const problem = make("p", { class: "problem", role: "alert", hidden: "" });
  const inputs = fields.map((field) => {
    const tag = field.type === "textarea" ? "textarea" : field.options ? "select" : "input";
    const input = make(tag, {
      id: `field-${field.name}`,
      name: field.name,
      type: tag === "input" ? (field.type ?? "text") : null,
      autocomplete: "off",
      step: field.type === "number" ? "any" : null,
      required: field.required ? "" : null,
      rows: tag === "textarea" ? 8 : null,
      list: field.list ?? null,
    });
    for (const option of field.options ?? []) input.append(make("option", { value: option, text: option }));
    input.value = field.value ?? "";
    return input;
  });
  const go = make("button", { class: danger ? "primary danger" : "primary", type: "submit", text: verb });
  const foreseen = make("div", { class: "preview", role: "status", "aria-live": "polite" }),
    closed = new AbortController(),
    look = make("button", { type: "button", text: "Preview", id: "preview", onclick: foresee });
  const valuesOf = () => Object.fromEntries(inputs.map((input) => [input.name, input.value]));
  const form = make(
    "form",
    { method: "dialog" },
    make("h2", { id: "dialog-title", text: title }),
    make("p", { text }),
    ...fields.map((field, i) =>
      make(
        "p",
        { class: "field" },
        make("label", { for: `field-${field.name}`, text: field.label }),
        inputs[i],
        ...(field.hint ? [make("small", { text: field.hint })] : []),
      ),
    ),
    foreseen,
    problem,
    make(
      "div",
      { class: "dialog-buttons" },
      make("button", { type: "button", text: "Back", onclick: () => dialog.close() }),
      ...(preview ? [look] : []),
      go,
    ),
  );
  async function foresee() {
    look.disabled = true;
    problem.hidden = true;
    foreseen.replaceChildren(make("p", { class: "muted", text: "The control plane simulates, for at most a minute …" }));
    try {
      foreseen.replaceChildren(...(await preview(valuesOf(), closed.signal)));
      foreseen.scrollIntoView({ block: "nearest" });
    } catch (refused) {
      foreseen.replaceChildren();
      problem.textContent = refused.message;
      problem.hidden = false;
    }
    look.disabled = false;
  }
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    problem.hidden = true;
    try {
      await act(valuesOf());
      dialog.close();
    } catch (refused) {
      problem.textContent = refused.message;
      problem.hidden = false;
    } finally {
      go.disabled = false;
    }
  });
  dialog.replaceChildren(form);
  dialog.showModal();
  dialog.addEventListener(
    "close",
    () => {
      closed.abort(); // a preview that is still simulated
      opener?.focus?.();
    },
    { once: true },
  );
  (inputs[0] ?? go).focus();
}

// A list of names and values.
export function facts(pairs) {
  return make(
    "dl",
    { class: "facts" },
    ...pairs
      .filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) =>
        make(
          "div",
          {},
          make("dt", { text: name }),
          value instanceof Node ? make("dd", {}, value) : make("dd", { text: String(value) }),
        ),
      ),
  );
}

// A plain table; the columns in `numbers` are right-aligned. At small widths each row becomes a block with labels.
export function plainTable(headings, rows, numbers = []) {
  const cell = (tag, value, i) => {
    const kind = numbers.includes(i) ? null : "text",
      made = make(tag, { class: kind, scope: tag === "th" ? "col" : null });
    if (tag === "td" && i) made.dataset.label = headings[i];
    made.append(value instanceof Node ? value : String(value ?? "–"));
    return made;
  };
  return make(
    "div",
    { class: "scroll" },
    make(
      "table",
      { class: "figures" },
      make("thead", {}, make("tr", {}, ...headings.map((text, i) => cell("th", text, i)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((value, i) => cell("td", value, i))))),
    ),
  );
}
