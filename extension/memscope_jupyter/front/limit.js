// The header and the limit slider. The frontier is here, so that each step is answered without Python.

const STEPS = 200;
const REST = 300; // milliseconds without a move after which a limit counts as chosen

/** The slider's positions: logarithmic between two limits, and exactly on a mark that is near. */
class Scale {
  constructor(data) {
    this.low = Math.max(1, data.floor ?? data.held);
    this.high = Math.max(this.low + 1, data.today);
    this.marks = [this.low, ...data.points.map((p) => p.limit), data.capacity, this.high];
    this.marks = this.marks.filter((limit) => this.holds(limit));
  }
  holds(limit) {
    return limit >= this.low && limit <= this.high;
  }
  fraction(limit) {
    const part = Math.log(limit / this.low) / Math.log(this.high / this.low);
    return Math.min(1, Math.max(0, part));
  }
  position(limit) {
    return Math.round(this.fraction(limit) * STEPS);
  }
  limit(position) {
    const near = this.marks.find((mark) => this.position(mark) === position);
    if (near !== undefined) return near;
    return Math.round(this.low * (this.high / this.low) ** (position / STEPS));
  }
}

/** What is known of a limit: confirmed by XLA for it, or predicted from the frontier. */
function outlook(data, limit) {
  const known = data.confirmed;
  if (known !== null && known.limit === limit) return { ...known, how: known.fits ? "confirmed" : "refused" };
  if (limit >= data.today) return { peak: data.today, slowdown: 1, fits: true, how: "predicted" };
  if (data.floor !== null && limit < data.floor) return { peak: data.floor, slowdown: null, fits: false, how: "refused" };
  const below = data.points.filter((point) => point.limit <= limit);
  if (below.length === 0) return { peak: null, slowdown: null, fits: null, how: "unknown" };
  const best = below[below.length - 1];
  return { peak: best.peak, slowdown: best.slowdown, bounded: best.bounded, fits: true, how: "predicted" };
}

const HOW = {
  confirmed: ["✓ confirmed by XLA", "XLA compiled the version for exactly this limit and accounts for this peak."],
  bounded: [
    "✓ confirmed by XLA",
    "XLA compiled the version for exactly this limit. Its account and an upper bound on scratch that it leaves out fit together.",
  ],
  predicted: ["≈ predicted", "From the nearest plan under this limit. Rest the slider and XLA confirms it."],
  refused: ["✓ confirmed by XLA", "No version fits this limit; the peak is the lowest that can be reached."],
  unknown: ["not planned yet", "The lowest peak is still being looked for. Rest the slider to plan for this limit."],
};

function timeText(view) {
  if (view.slowdown === null || view.how === "refused") return "";
  return Math.abs(view.slowdown - 1) < 0.005 ? "the same time" : `about ${view.slowdown.toPrecision(2)}x the time`;
}

/** Whether the limit holds, and whether the target can hold as much. */
function verdict(data, view) {
  if (view.fits === null) return { text: "", fits: null };
  if (!view.fits) return { text: "DOES NOT FIT", fits: false };
  if (view.peak > data.capacity) return { text: `TOO LARGE FOR ${data.target.toUpperCase()}`, fits: false };
  return { text: "FITS", fits: true };
}

/** The line that says what it is and what a limit would come to. */
function makeHeader() {
  const name = make("strong", { class: "ms-name" });
  const place = make("span", { class: "ms-place" });
  const peak = make("span", { class: "ms-peak-change" });
  const fits = make("span", { class: "ms-verdict" });
  const time = make("span", { class: "ms-time" });
  const how = make("span", { class: "ms-how" });
  const element = make("div", { class: "ms-header" }, make("span", {}, name, place), peak, fits, time, how);

  const show = (data, view) => {
    const most = view.bounded ? "at most " : "";
    const same = view.peak === null || (view.peak === data.today && !view.bounded);
    const after = same ? "" : ` → ${most}${formatBytes(view.peak)}`;
    name.textContent = data.name;
    place.textContent = ` on ${data.place}`;
    place.title = data.placeNote;
    peak.textContent = `peak ${formatBytes(data.today)}${after}`;
    const judged = verdict(data, view);
    fits.textContent = judged.text;
    time.textContent = timeText(view);
    [how.textContent, how.title] = HOW[view.bounded && view.how === "confirmed" ? "bounded" : view.how];
    element.dataset.how = view.how;
    element.dataset.fits = String(judged.fits);
  };
  return { element, show };
}

/** The slider's own marks, and the words under its ends. */
function makeScaleMarks() {
  const marks = make("div", { class: "ms-marks", "aria-hidden": "true" });
  const low = make("span", { class: "ms-low" });
  const middle = make("span", { class: "ms-middle" });
  const high = make("span", { class: "ms-high" });
  const ends = make("div", { class: "ms-ends" }, low, middle, high);

  const draw = (data, scale) => {
    const mark = (limit, kind) => make("span", { class: `ms-mark ms-${kind}`, style: `--at:${scale.fraction(limit)}` });
    const points = data.points.map((point) => point.limit).filter((limit) => scale.holds(limit));
    const capacity = [data.capacity].filter((limit) => scale.holds(limit));
    marks.replaceChildren(...points.map((limit) => mark(limit, "point")), ...capacity.map((limit) => mark(limit, "capacity")));
    const least = data.floor === null ? "arguments and results" : "lowest possible";
    const whole = (size) => formatBytes(size).replace(" ", "\u00a0"); // a number stays with its unit
    low.textContent = `${least} ${whole(data.floor ?? data.held)}`;
    middle.textContent = data.note;
    high.textContent = `today ${whole(data.today)}`;
  };
  return { marks, ends, draw };
}

function render({ model, el }) {
  el.classList.add("memscope-panel");
  const header = makeHeader();
  const { marks, ends, draw: drawMarks } = makeScaleMarks();
  const range = make("input", { type: "range", min: 0, max: STEPS, step: 1, "aria-label": "Memory limit" });
  const typed = make("input", {
    type: "text", class: "ms-typed", size: 9, "aria-label": "Memory limit in bytes, such as 512MiB or 25%",
    title: "A limit such as 512MiB, 2GB or 25%; Enter plans for it", spellcheck: "false",
  });
  const slider = make("div", { class: "ms-slider" }, range, marks);
  const control = make("div", { class: "ms-control" }, make("span", { class: "ms-label" }, "limit"), slider, typed);
  const notes = make("div", { class: "ms-account" });
  el.append(header.element, control, ends, notes);

  let data = model.get("data");
  let scale = null;
  let shown = 0; // the limit on show
  let timer = null; // runs while the hand moves
  let sent = null; // the limit that Python has been told of and has not taken up yet

  const show = (limit) => {
    shown = limit;
    const view = outlook(data, limit);
    header.show(data, view);
    notes.replaceChildren(...(view.notes ?? []).map((text) => make("p", {}, text)));
    if (document.activeElement !== typed) typed.value = formatBytes(limit);
    const spoken = [formatBytes(limit), verdict(data, view).text, timeText(view), HOW[view.how][0]];
    range.setAttribute("aria-valuetext", spoken.filter(Boolean).join(", "));
    model.set("preview", limit); // linked to the chart in the browser; Python has no use for it
  };

  const choose = () => {
    if (timer === null) return;
    clearTimeout(timer);
    timer = null;
    sent = shown;
    model.send({ type: "limit", limit: shown });
  };

  const draw = (next) => {
    data = next;
    if (!data || data.today === undefined) return;
    scale = new Scale(data);
    drawMarks(data, scale);
    if (data.limit === sent) sent = null;
    if (timer !== null || sent !== null) return show(shown); // what the hand holds stays
    range.value = scale.position(data.limit);
    show(data.limit);
  };

  range.addEventListener("input", () => {
    show(scale.limit(Number(range.value)));
    clearTimeout(timer);
    timer = setTimeout(choose, REST);
  });
  range.addEventListener("change", () => {
    if (!range.matches(":focus-visible")) choose(); // the mouse let go; keys come one after another
  });
  range.addEventListener("blur", choose);
  typed.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Escape") typed.value = formatBytes(shown);
  });
  typed.addEventListener("change", () => {
    const text = typed.value;
    typed.blur();
    sent = null;
    model.send({ type: "typed", text });
  });
  range.addEventListener("keydown", (event) => event.stopPropagation()); // the notebook has keys of its own

  return drawOnChange(model, draw);
}

export default { render };
