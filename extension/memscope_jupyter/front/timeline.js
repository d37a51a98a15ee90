// Bytes in use over the schedule, as written and as rewritten, drawn with Plotly. Each step of the schedule is a bar,
// so that every piece of every buffer can be pointed at.

/** Plotly itself, asked of Python once for each page: it is too large to travel with every panel and notebook. */
function loadPlotly(model) {
  if (globalThis.Plotly) return globalThis.Plotly;
  return new Promise((resolve, reject) => {
    const receive = (message, buffers) => {
      if (message.type !== "plotly") return;
      model.off("msg:custom", receive);
      const url = URL.createObjectURL(new Blob([buffers[0]], { type: "text/javascript" }));
      const tag = make("script", { src: url });
      tag.onload = () => resolve(globalThis.Plotly);
      tag.onerror = reject;
      document.head.append(tag);
    };
    model.on("msg:custom", receive);
    model.send({ type: "plotly?" });
  });
}

function colours(el) {
  const style = getComputedStyle(el);
  const get = (name) => style.getPropertyValue(name).trim();
  return { text: get("--ms-text"), line: get("--ms-line-solid"), peak: get("--ms-peak"), ground: get("--ms-ground") };
}

function hover(band, side) {
  return side.steps.map((step, k) => [
    `<b>${formatBytes(band.values[k])}</b> ${band.label}`,
    band.detail,
    `step ${step} of ${side.of}: ${side.instructions[k]}`,
    `${formatBytes(side.totals[k])} in use`,
  ].filter(Boolean).join("<br>"));
}

function traces(side, axis, selected) {
  return side.bands.map((band) => ({
    type: "bar", name: band.label, xaxis: `x${axis}`, yaxis: `y${axis}`, width: 1, offset: 0,
    x: side.steps.map((_, k) => k), y: band.values.map((v) => v || null),
    marker: { color: band.colour, line: { width: 0 }, opacity: selected === "" || band.ids.includes(selected) ? 1 : 0.35 },
    customdata: band.values.map(() => [side.side, band.ids[0] ?? ""]),
    hovertext: hover(band, side), hovertemplate: "%{hovertext}<extra></extra>",
  }));
}

/** Four round values of bytes up to a maximum. */
function byteTicks(most) {
  const unit = 1024 ** Math.floor(Math.log(Math.max(1, most)) / Math.log(1024));
  const rough = Math.max(most / unit / 4, unit === 1 ? 1 : 0); // no fractions of a byte
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= rough) * unit;
  const tickvals = [];
  for (let at = 0; at <= most * 1.02; at += step) tickvals.push(at);
  return { tickvals, ticktext: tickvals.map((v) => (v === 0 ? "0" : formatBytes(v))) };
}

function stepTicks(side, most) {
  const count = side.steps.length;
  const every = Math.max(1, Math.ceil(count / most));
  const ks = side.steps.map((_, k) => k).filter((k) => k % every === 0);
  return { tickvals: ks.map((k) => k + 0.5), ticktext: ks.map((k) => String(side.steps[k])) };
}

/** The ground of the figure; each side adds its own axes to it. */
function ground(width, colour) {
  return {
    barmode: "stack", bargap: 0, showlegend: false, hovermode: "closest", dragmode: false,
    margin: { l: 68, r: 12, t: 30, b: 38 }, height: 300, width,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour.text, family: "system-ui, sans-serif", size: 12 },
    hoverlabel: { align: "left", bgcolor: colour.ground, bordercolor: colour.text, font: { color: colour.text, size: 12 } },
  };
}

function axes(side, place, most, width, colour) {
  const lines = { gridcolor: colour.line, zerolinecolor: colour.line, linecolor: colour.line, fixedrange: true };
  const room = width * (place.span[1] - place.span[0]);
  return {
    [`xaxis${place.axis}`]: {
      ...lines, domain: place.span, anchor: `y${place.axis}`, showgrid: false, range: [0, side.steps.length],
      title: { text: "step of the schedule", standoff: 4, font: { size: 11 } }, ...stepTicks(side, Math.max(3, Math.floor(room / 60))),
    },
    [`yaxis${place.axis}`]: {
      ...lines, anchor: `x${place.axis}`, range: [0, Math.max(most, 1) * 1.12], ...byteTicks(most), showticklabels: place.labelled,
    },
  };
}

/** Title, peak and limit of one side: lines and words in the chart. */
function marks(side, place, most, limit, colour) {
  const [x, y] = [`x${place.axis}`, `y${place.axis}`];
  const peakAt = side.peak + 0.5;
  const peakIsRight = peakAt > side.steps.length / 2;
  const line = (dash, color, ends) => ({ type: "line", yref: y, line: { color, width: 2, dash }, ...ends });
  const word = (text, place) => ({ text, showarrow: false, yanchor: "bottom", ...place });
  const shapes = [line("dot", colour.peak, { xref: x, x0: peakAt, x1: peakAt, y0: 0, y1: side.top })];
  const words = [
    word(`<b>${side.title}</b>`, { x: place.span[0], xref: "paper", y: 1, yref: "paper", xanchor: "left" }),
    word(side.peakWords, {
      x: peakAt, xref: x, y: side.top, yref: y, xanchor: peakIsRight ? "right" : "left",
      font: { color: colour.peak }, bgcolor: colour.ground,
    }),
  ];
  if (limit > 0 && limit <= most * 1.1) {
    shapes.push(line("dash", colour.text, { xref: `${x} domain`, x0: 0, x1: 1, y0: limit, y1: limit }));
    if (place.labelled) words.push(word(`limit ${formatBytes(limit)}`, {
      x: peakIsRight ? 0 : 1, xref: `${x} domain`, y: limit, yref: y, xanchor: peakIsRight ? "left" : "right",
      bgcolor: colour.ground, font: { size: 11 },
    }));
  }
  return { shapes, words };
}

const sidesOf = (data) => [data.before, data.after].filter(Boolean);

function layoutOf(data, limit, sameScale, width, colour) {
  const sides = sidesOf(data);
  const gap = sameScale ? 0.53 : 0.5 + 55 / width;
  const spans = sides.length === 1 ? [[0, 1]] : [[0, 0.47], [gap, 1]];
  const top = Math.max(...sides.map((side) => side.top));
  const layout = { ...ground(width, colour), shapes: [], annotations: [] };
  sides.forEach((side, k) => {
    const place = { axis: k === 0 ? "" : "2", span: spans[k], labelled: k === 0 || !sameScale };
    const most = sameScale ? top : side.top;
    Object.assign(layout, axes(side, place, most, width, colour));
    const { shapes, words } = marks(side, place, most, limit, colour);
    layout.shapes.push(...shapes);
    layout.annotations.push(...words);
  });
  return layout;
}

function barsOf(data) {
  const [chosenSide, chosen] = data.selected;
  return sidesOf(data).flatMap((side, k) => traces(side, k === 0 ? "" : "2", chosenSide === side.side ? chosen : ""));
}

function render({ model, el }) {
  el.classList.add("memscope-panel");
  const same = make("input", { type: "checkbox" });
  same.checked = true;
  const choice = make("label", { class: "ms-scale" }, same, " one scale for both");
  const chart = make("div", { class: "ms-chart" });
  const legend = make("div", { class: "ms-legend" });
  el.append(choice, chart, legend);

  let drawn = false;
  let waiting = false;

  const key = (side, band, selected) => {
    const pressed = String(side.side === selected[0] && band.ids.includes(selected[1]));
    const button = make("button", { type: "button", title: [band.label, band.detail].filter(Boolean).join(", "), "aria-pressed": pressed },
      make("span", { class: "ms-key", style: `background:${band.colour}` }), `${formatBytes(band.most)} ${band.short}`);
    button.addEventListener("click", () => model.send({ type: "select", side: side.side, id: band.ids[0] }));
    return button;
  };

  const drawLegend = (data) => {
    legend.replaceChildren(...sidesOf(data).flatMap((side) => {
      const keys = side.bands.filter((band) => band.ids.length > 0).map((band) => key(side, band, data.selected));
      return [make("span", {}, side.side === "before" ? "as written" : data.change), make("div", {}, ...keys)];
    }));
  };

  const layout = () => layoutOf(model.get("data"), model.get("limit") || 0, same.checked, el.clientWidth, colours(el));

  const paint = async () => {
    const Plotly = await loadPlotly(model);
    waiting = false;
    if (!model.get("data")?.before?.top || el.clientWidth === 0 || !el.isConnected) return;
    if (!drawn) chart.replaceChildren();
    await Plotly.react(chart, barsOf(model.get("data")), layout(), { displayModeBar: false, responsive: false });
    if (!drawn) chart.on("plotly_click", onClick);
    drawn = true;
    el.dataset.drawn = "true";
  };

  const onClick = (event) => {
    const [side, id] = event.points[0].customdata;
    if (id) model.send({ type: "select", side, id });
  };

  /** The bars stay as they are, so that the line keeps up with the slider. */
  const moveLimit = () => {
    if (!drawn || waiting || el.clientWidth === 0) return;
    const { shapes, annotations } = layout();
    globalThis.Plotly.relayout(chart, { shapes, annotations });
  };

  const schedule = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(paint);
  };

  const draw = (data) => {
    if (!data || !data.before) return;
    choice.hidden = !data.after;
    if (!drawn && !chart.firstChild) chart.innerHTML = data.fallback;
    if (data.before.top === 0 && !data.after) {
      chart.replaceChildren(make("p", { class: "ms-note" }, "No buffer is in use at any step."));
      el.dataset.drawn = "true";
      return;
    }
    drawLegend(data);
    schedule();
  };

  same.addEventListener("change", schedule);
  const resized = new ResizeObserver(schedule);
  resized.observe(el);
  const themed = new MutationObserver(schedule);
  themed.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name"] });
  model.on("change:limit", moveLimit);
  const stop = drawOnChange(model, draw);
  return () => {
    resized.disconnect();
    themed.disconnect();
    model.off("change:limit", moveLimit);
    stop();
    if (drawn) globalThis.Plotly.purge(chart);
  };
}

export default { render };
