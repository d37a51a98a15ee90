// The HLO graph in a page. Python lays it out and writes the SVG; here it is moved, searched and marked.

const SLOW_MS = 400; // before a word on waiting for Python
const LOST_MS = 8000;
const READABLE = 0.6; // below this scale text can't be read

const element = (tag, className, properties = {}) =>
  Object.assign(document.createElement(tag), { className, ...properties });

/** JupyterLab: keys typed here are no commands of the notebook. It looks at the focused element first. */
const ownKeys = (focusable) => {
  focusable.dataset.lmSuppressShortcuts = "true";
  return focusable;
};

const button = (text, title, onclick) =>
  ownKeys(element("button", "", { type: "button", textContent: text, title, onclick }));

class GraphView {
  constructor(model, root) {
    this.model = model;
    this.root = root;
    this.node = ""; // the instruction that was clicked; "" where the selection came from outside
    this.touched = false;
    this.found = [];
    this.at = -1;
    this.build();
    this.listen();
    this.camera = new Camera(this.canvas);
    this.texts = new Map(model.get("_index").map(([name, text]) => [name, text.toLowerCase()]));
    this.show(model.get("_first"));
    this.sized = new ResizeObserver(() => this.resize());
    this.sized.observe(this.canvas);
    this.ask({ kind: "ready" }, false);
  }

  // --- the parts ---

  build() {
    this.root.classList.add("mg-graph", "mg-widget");
    this.trail = element("div", "mg-trail");
    this.expand = button("Expand", "Draw all neighbours of the selected node (E)", () => this.expandNode(this.node));
    this.opens = element("span", "mg-opens");
    this.whole = button("", "Draw every instruction of this computation", () => this.ask({ kind: "whole" }));
    this.input = ownKeys(element("input", "", { type: "search", placeholder: "Search op, name, shape, line or its text" }));
    this.input.setAttribute("aria-label", "Search the graph by op, instruction, buffer, shape, source line or its text");
    this.count = element("span", "mg-found");
    const search = element("div", "mg-search");
    search.append(this.input, this.count);
    const bar = element("div", "mg-bar");
    bar.append(
      button("−", "Zoom out (-)", () => this.camera.zoom(1 / 1.3)),
      button("+", "Zoom in (+, or ctrl and the wheel)", () => this.camera.zoom(1.3)),
      button("Fit", "See all of the picture (F)", () => this.camera.fit()),
      button("Peak", "Back to the peak (P)", () => this.peak()),
      search,
      this.expand,
      this.opens,
      this.whole,
    );
    this.canvas = ownKeys(element("div", "mg-canvas", { tabIndex: 0 }));
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute(
      "aria-label",
      "HLO graph. Arrow keys move, plus and minus zoom, N selects the next instruction, E expands it, O opens it.",
    );
    this.tip = element("div", "mg-tip", { hidden: true });
    this.canvas.append(this.tip);
    this.status = element("div", "mg-status");
    this.status.setAttribute("aria-live", "polite");
    this.legend = element("div", "");
    this.caption = element("p", "mg-caption");
    this.root.append(bar, this.trail, this.canvas, this.status, this.legend, this.caption);
  }

  listen() {
    this.onSelected = () => this.followSelection();
    this.onMessage = (message) => this.receive(message);
    this.model.on("change:selected", this.onSelected);
    this.model.on("msg:custom", this.onMessage);
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => this.grab(event));
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.canvas.addEventListener("dblclick", (event) => this.openNode(event.target.closest("[data-node]")));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.input.addEventListener("input", () => this.search());
    this.input.addEventListener("keydown", (event) => this.searchKey(event));
  }

  close() {
    this.model.off("change:selected", this.onSelected);
    this.model.off("msg:custom", this.onMessage);
    this.sized.disconnect();
    clearTimeout(this.slow);
    clearTimeout(this.lost);
  }

  // --- pictures ---

  show(picture) {
    this.scene = new Scene(picture, this.canvas);
    this.camera.aim(this.scene.svg);
    this.legend.innerHTML = picture.legend;
    this.caption.textContent = picture.caption;
    this.whole.textContent = `Show ${picture.hidden.toLocaleString("en")} more`;
    this.whole.hidden = !picture.hidden;
    this.trail.replaceChildren(...picture.trail.flatMap((step, k) => this.step(step, k, picture.trail.length)));
    this.trail.hidden = picture.trail.length < 2;
    if (picture.focus && this.scene.byNode.has(picture.focus)) this.choose(picture.focus);
    this.mark();
    this.search();
    this.seen = false;
    this.look(picture.focus);
  }

  step([name, text], k, count) {
    const link = button(text, name, () => this.ask({ kind: "open", name }));
    link.disabled = k === count - 1;
    return k ? [element("span", "", { textContent: "›" }), link] : [link];
  }

  /** Where to look first: at what was asked for, else at all of it if that can be read, else at the peak. */
  look(focus) {
    if (!this.canvas.clientWidth) return; // in a hidden tab: `resize` looks again
    this.seen = true;
    this.camera.measure();
    const svg = this.scene.svg;
    const target = this.scene.main(this.scene.byNode.get(focus));
    const peak = svg.querySelector(".mg-box.mg-summit") ?? svg.querySelector(".mg-box.mg-on-path");
    this.camera.fit();
    if (!target && this.camera.scale >= READABLE) return;
    this.camera.scale = Math.max(this.camera.scale, 0.8);
    const on = target ?? peak ?? this.scene.boxes[0];
    if (on) this.camera.centre(...this.scene.middle(on));
  }

  resize() {
    if (this.seen) this.camera.resize();
    else this.look(this.scene.picture.focus);
  }

  peak() {
    if (!this.scene.picture.is_peak) this.ask({ kind: "peak" });
    else this.look("");
  }

  // --- talking with Python ---

  ask(request, waits = true) {
    clearTimeout(this.slow);
    clearTimeout(this.lost);
    if (waits) {
      this.slow = setTimeout(() => this.say("Waiting for Python ..."), SLOW_MS);
      this.lost = setTimeout(() => this.say("No answer from Python: is the kernel running, and idle?"), LOST_MS);
    }
    this.model.send(request);
  }

  receive(message) {
    if (message.kind !== "state") {
      clearTimeout(this.slow);
      clearTimeout(this.lost);
    }
    if (message.kind === "failed") this.say(`That could not be shown: ${message.reason}`);
    if (message.picture) this.show(message.picture);
    if (message.kind === "state" && !this.touched && message.selected !== this.model.get("selected")) {
      this.model.set("selected", message.selected); // an update that came before this page was up
    }
  }

  // --- selection ---

  choose(name) {
    this.touched = true;
    this.node = name;
    const buffers = this.scene.picture.nodes[name]?.buffers ?? [];
    if (!buffers.includes(this.model.get("selected"))) {
      this.model.set("selected", buffers[0] ?? "");
      this.model.save_changes();
    }
    this.mark();
  }

  /** A selection made elsewhere: marked, and moved into view. */
  followSelection() {
    const selected = this.model.get("selected");
    const own = this.scene.picture.nodes[this.node]?.buffers ?? [];
    if (this.node && (selected ? own.includes(selected) : !own.length)) return;
    this.node = "";
    this.mark();
    const main = this.scene.main(this.scene.byBuffer.get(selected));
    if (main && this.seen) this.camera.centre(...this.scene.middle(main));
  }

  mark() {
    const scene = this.scene;
    const selected = this.model.get("selected");
    const same = (selected && scene.byBuffer.get(selected)) || [];
    const own = this.node ? (scene.byNode.get(this.node) ?? []) : [scene.main(same)].filter(Boolean);
    scene.mark("mg-same", same);
    scene.mark("mg-chosen", own);
    scene.light(own.filter((n) => n.classList.contains("mg-box")).map((n) => +n.dataset.box));
    this.tools(own[0]);
    this.describe(selected, scene.main(own));
  }

  tools(node) {
    const name = node?.dataset.node;
    this.expand.disabled = !node?.querySelector(".mg-more");
    this.expand.onclick = () => this.expandNode(name);
    const opens = this.scene.picture.nodes[name]?.opens ?? [];
    this.opens.replaceChildren(
      ...opens.map(([inner, role]) =>
        button(`Open ${role}`, `${inner} (O, or double click)`, () => this.ask({ kind: "open", name: inner })),
      ),
    );
  }

  describe(selected, node) {
    if (node) {
      this.say(node.dataset.tip.replaceAll("\n", " · "));
    } else if (this.scene.picture.trail.some(([, , caller]) => caller && caller === this.node)) {
      this.say(`Inside ${this.node}.`);
    } else if (selected) {
      const row = this.model.get("_index").find(([, , buffers]) => buffers.includes(selected));
      this.say(row ? `${selected} is not in this picture.` : `The graph has no buffer ${selected}.`);
      if (row) this.status.append(button("Show it", "", () => this.ask({ kind: "show", name: row[0] })));
    } else {
      this.say("");
    }
  }

  say(text) {
    this.status.textContent = text;
  }

  expandNode(name) {
    if (name) this.ask({ kind: "expand", name });
  }

  openNode(node) {
    const [first] = this.scene.picture.nodes[node?.dataset.node]?.opens ?? [];
    if (first) this.ask({ kind: "open", name: first[0] });
  }

  // --- search ---

  search() {
    const words = this.input.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (text) => words.length > 0 && words.every((word) => text.includes(word));
    const textOf = (box) => `${box.dataset.tip.toLowerCase()} ${this.texts.get(box.dataset.node) ?? ""}`;
    this.at = -1;
    const here = this.scene.boxes.filter((box) => matches(textOf(box)));
    this.scene.mark("mg-hit", here);
    const drawn = here.map((box) => box.dataset.node);
    const known = [...this.texts].filter(([, text]) => matches(text));
    this.found = [...new Set([...drawn, ...known.map(([name]) => name)])];
    this.count.textContent = words.length ? `${this.found.length} found, ${drawn.length} drawn` : "";
  }

  searchKey(event) {
    event.stopPropagation();
    if (event.key === "Escape") {
      this.input.value = "";
      this.search();
      this.canvas.focus();
    } else if (event.key === "Enter" && this.found.length) {
      const count = this.found.length;
      if (event.shiftKey) this.at = this.at > 0 ? this.at - 1 : count - 1;
      else this.at = (this.at + 1) % count;
      this.count.textContent = `${this.at + 1} of ${count}`;
      this.goTo(this.found[this.at]);
    }
  }

  goTo(name) {
    const node = this.scene.main(this.scene.byNode.get(name));
    if (!node) {
      this.ask({ kind: "show", name });
      return;
    }
    this.choose(name);
    this.camera.scale = Math.max(this.camera.scale, READABLE);
    this.camera.centre(...this.scene.middle(node));
  }

  // --- mouse and keys ---

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    const frame = this.canvas.getBoundingClientRect();
    this.camera.zoom(Math.exp(-event.deltaY / 300), [event.clientX - frame.left, event.clientY - frame.top]);
  }

  grab(event) {
    if (event.button !== 0) return;
    const start = [event.clientX, event.clientY];
    let [x, y] = start;
    let moved = false;
    const move = (now) => {
      moved ||= Math.hypot(now.clientX - start[0], now.clientY - start[1]) > 4;
      if (!moved) return;
      this.canvas.classList.add("mg-dragging");
      this.camera.pan(now.clientX - x, now.clientY - y);
      [x, y] = [now.clientX, now.clientY];
    };
    const drop = (now) => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", drop);
      window.removeEventListener("pointercancel", drop);
      this.canvas.classList.remove("mg-dragging");
      if (!moved && now.type === "pointerup") this.click(event.target);
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", drop);
    window.addEventListener("pointercancel", drop);
  }

  click(target) {
    const node = target.closest("[data-node]");
    this.choose(node?.dataset.node ?? "");
    if (target.closest(".mg-more")) this.expandNode(node.dataset.node);
  }

  hover(event) {
    const tip = event.target.closest("[data-tip]")?.dataset.tip;
    this.tip.hidden = !tip || this.canvas.classList.contains("mg-dragging");
    if (this.tip.hidden) return;
    this.tip.textContent = tip;
    const frame = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left + 14, event.clientY - frame.top + 16];
    this.tip.style.left = `${Math.max(0, Math.min(x, frame.width - this.tip.offsetWidth - 4))}px`;
    this.tip.style.top = `${y + this.tip.offsetHeight > frame.height ? Math.max(0, y - this.tip.offsetHeight - 26) : y}px`;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = {
      ArrowLeft: () => this.camera.pan(60, 0),
      ArrowRight: () => this.camera.pan(-60, 0),
      ArrowUp: () => this.camera.pan(0, 60),
      ArrowDown: () => this.camera.pan(0, -60),
      "+": () => this.camera.zoom(1.3),
      "=": () => this.camera.zoom(1.3),
      "-": () => this.camera.zoom(1 / 1.3),
      0: () => this.camera.fit(),
      f: () => this.camera.fit(),
      p: () => this.peak(),
      n: () => this.walk(1),
      N: () => this.walk(-1),
      e: () => this.expand.disabled || this.expand.click(),
      o: () => this.opens.firstChild?.click(),
      Enter: () => this.opens.firstChild?.click(),
      Escape: () => this.choose(""),
      "/": () => this.input.focus(),
    };
    if (!Object.hasOwn(steps, event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    steps[event.key]();
  }

  /** To the next instruction of the schedule, or the one before. */
  walk(by) {
    const { boxes, svg } = this.scene;
    if (!boxes.length) return;
    const now = boxes.indexOf(svg.querySelector(".mg-box.mg-chosen"));
    const next = now < 0 ? 0 : (now + by + boxes.length) % boxes.length;
    this.goTo(boxes[next].dataset.node);
  }
}

function render({ model, el }) {
  const view = new GraphView(model, el);
  return () => view.close();
}

export default { render };
