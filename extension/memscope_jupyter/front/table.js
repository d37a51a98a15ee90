// A table that is sorted, filtered and walked through with the arrow keys; Python hears of the row chosen.

const MOST = 300; // rows in the page at once
const FEW = 20; // rows that need no filter

function render({ model, el }) {
  el.classList.add("memscope-panel");
  const filter = make("input", { type: "search", class: "ms-filter", placeholder: "filter", "aria-label": "Filter the rows" });
  const count = make("span", { class: "ms-note", "aria-live": "polite" });
  const switches = make("span", { class: "ms-switches", role: "group" });
  const head = make("thead");
  const body = make("tbody");
  const table = make("table", { role: "grid" }, head, body);
  const scroll = make("div", { class: "ms-rows" }, table);
  const bar = make("div", { class: "ms-bar" }, switches, filter, count);
  const note = make("div", { class: "ms-note" });
  el.append(bar, scroll, note);

  let data = { columns: [], rows: [], sides: [], side: "", selected: "", empty: "" };
  let sort = null;

  const chosenRow = () => body.querySelector('tr[aria-selected="true"]');

  const select = (id) => model.send({ type: "select", id });

  const mark = () => {
    const selected = model.get("selected");
    for (const row of body.rows) {
      const is = row.dataset.id === selected;
      row.setAttribute("aria-selected", String(is));
      row.tabIndex = is ? 0 : -1;
    }
    const row = chosenRow() ?? body.rows[0];
    if (row) row.tabIndex = 0;
    chosenRow()?.scrollIntoView({ block: "nearest" });
  };

  const cell = (row, column, k) => {
    const text = row.cells[k];
    const content = column.code ? make("code", {}, text) : text;
    const key = k === 0 && row.colour ? make("span", { class: "ms-key", style: `background:${row.colour}` }) : null;
    return make("td", { class: column.numeric ? "ms-n" : column.wide ? "ms-wide" : null }, key, content);
  };

  const line = (row) => {
    const tr = make("tr", { "aria-selected": "false", title: row.title, class: row.marked ? "ms-marked" : null });
    tr.dataset.id = row.id;
    tr.append(...data.columns.map((column, k) => cell(row, column, k)));
    return tr;
  };

  const wanted = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = data.rows.filter((row) => {
      const text = [...row.cells, row.title].join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    });
    if (sort === null) return rows;
    const by = (row) => row.keys[sort.column];
    return rows.sort((a, b) => (by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : 0) * sort.sign);
  };

  const drawRows = () => {
    const rows = wanted();
    const selected = rows.findIndex((row) => row.id === model.get("selected"));
    const shown = rows.slice(0, MOST);
    if (selected >= MOST) shown.push(rows[selected]);
    body.replaceChildren(...shown.map(line));
    const less = rows.length > shown.length ? `, the first ${shown.length} shown` : "";
    count.textContent = data.rows.length === 0 ? data.empty : `${rows.length} of ${data.rows.length}${less}`;
    mark();
  };

  const drawHead = () => {
    const cells = data.columns.map((column, k) => {
      const direction = sort?.column === k ? (sort.sign > 0 ? "ascending" : "descending") : "none";
      const arrow = make("span", { class: "ms-sort", "aria-hidden": "true" }, { ascending: "▲", descending: "▼", none: "↕" }[direction]);
      const button = make("button", { type: "button", title: `Sort by ${column.label}` }, column.label, arrow);
      button.addEventListener("click", () => {
        const first = column.numeric ? -1 : 1;
        sort = { column: k, sign: sort?.column === k ? -sort.sign : first };
        drawHead();
        drawRows();
      });
      return make("th", { "aria-sort": direction, scope: "col", class: column.numeric ? "ms-n" : null }, button);
    });
    head.replaceChildren(make("tr", {}, ...cells));
  };

  const drawSides = () => {
    switches.hidden = data.sides.length < 2;
    const buttons = data.sides.map(([side, label]) => {
      const button = make("button", { type: "button", "aria-pressed": String(side === data.side) }, label);
      button.addEventListener("click", () => model.send({ type: "side", side }));
      return button;
    });
    switches.replaceChildren(...buttons);
  };

  const draw = (next) => {
    if (!next || !next.columns) return;
    data = next;
    scroll.hidden = data.rows.length === 0;
    bar.hidden = data.sides.length < 2 && data.rows.length < FEW;
    filter.hidden = data.rows.length < FEW;
    note.textContent = data.note;
    note.hidden = !data.note;
    drawSides();
    drawHead();
    drawRows();
  };

  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row) {
      row.focus();
      select(row.dataset.id);
    }
  });
  body.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr");
    const to = { ArrowDown: row?.nextElementSibling, ArrowUp: row?.previousElementSibling, Home: body.rows[0] }[event.key];
    if (event.key === "Enter" || event.key === " ") select(row.dataset.id);
    else if (to) {
      to.focus();
      select(to.dataset.id);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  filter.addEventListener("input", drawRows);
  filter.addEventListener("keydown", (event) => event.stopPropagation());
  model.on("change:selected", mark);
  const stop = drawOnChange(model, draw);
  return () => {
    model.off("change:selected", mark);
    stop();
  };
}

export default { render };
