// What is bound, the latest news and what goes on; and a word where Python does not answer, as it can't while a cell
// runs.

const QUIET = 400; // milliseconds that Python may take to hear of a click
const GONE = "The kernel that this panel belongs to has ended: run the cell again.";
const BUSY = "A cell is running, or no kernel is there: what you pressed is done as soon as Python is free.";

function render({ model, el }) {
  el.classList.add("memscope-panel", "ms-status");
  const bound = make("div", { class: "ms-bound" });
  const news = make("div", {});
  const progress = make("div", {});
  const waiting = make("div", { class: "ms-waiting" });
  const lines = make("div", { role: "status" }, bound, news, progress, waiting);
  el.append(lines);

  let asked = 0;
  let heard = 0;

  const draw = (data) => {
    if (!data || data.bound === undefined) return;
    bound.textContent = data.bound;
    const said = data.news && make("span", { class: `ms-${data.news.tone}` }, data.news.text);
    news.replaceChildren(...(said ? [said, data.news.next ? ` ${data.news.next}` : ""] : []));
    progress.replaceChildren(...(data.progress ? [make("span", { class: "ms-spinner" }), data.progress] : []));
  };

  /** ipywidgets marks what has lost its kernel. */
  const gone = () => el.closest(".jupyter-widgets-disconnected") !== null;

  const wait = () => {
    const words = gone() ? [GONE] : [make("span", { class: "ms-spinner" }), BUSY];
    waiting.replaceChildren(...(heard < asked ? words : []));
  };

  const hear = (message) => {
    if (message.type !== "pong") return;
    heard = Math.max(heard, message.id);
    wait();
  };

  /** A closed panel makes way for its report at once, whatever Python does; it frees what it holds when it hears of it. */
  const hide = (frame) => {
    frame.style.display = "none";
    frame.classList.remove(...[...frame.classList].filter((name) => name.startsWith("memscope-frame-")));
    if (gone()) return;
    const words = make("div", { class: "memscope-panel ms-note" }, "Closed. What the panel holds is freed as soon as Python is free.");
    setTimeout(() => frame.isConnected && frame.after(words), QUIET);
  };

  const press = (event) => {
    const frame = el.closest(".memscope-frame");
    if (!frame?.contains(event.target)) return;
    const id = (asked += 1);
    setTimeout(wait, QUIET);
    if (!gone()) model.send({ type: "ping", id });
    if (event.type === "click" && event.target.closest(".ms-close")) hide(frame);
  };

  const events = ["click", "change"];
  for (const event of events) document.addEventListener(event, press);
  model.on("msg:custom", hear);
  const stop = drawOnChange(model, draw);
  return () => {
    for (const event of events) document.removeEventListener(event, press);
    model.off("msg:custom", hear);
    stop();
  };
}

export default { render };
