// The buffer under the eye: what it is, and its line in the user's own source.

function render({ model, el }) {
  el.classList.add("memscope-panel");
  const title = make("div", { class: "ms-chosen", "aria-live": "polite" });
  const code = make("pre", { class: "ms-source", tabindex: 0 });
  el.append(title, code);

  const line = ([number, text], marked) => {
    const attributes = { class: "ms-line", "data-line": number, "aria-current": number === marked ? "true" : null };
    return make("span", attributes, make("span", { class: "ms-number" }, String(number)), text || " ");
  };

  /** Brings the marked line into view, once there is a height to bring it into. */
  const look = () => {
    const current = code.querySelector('[aria-current="true"]');
    if (current) code.scrollTop = current.offsetTop - code.clientHeight / 2;
    looked = code.clientHeight > 0;
  };

  let looked = false;
  const draw = (data) => {
    if (!data || data.facts === undefined) return;
    const file = data.file ? make("span", { class: "ms-file" }, data.file) : null;
    title.replaceChildren(...[make("span", {}, data.facts), file].filter(Boolean));
    code.hidden = data.lines.length === 0;
    code.replaceChildren(...data.lines.map((pair) => line(pair, data.marked)));
    look();
  };
  const sized = new ResizeObserver(() => looked || look());
  sized.observe(code);
  const stop = drawOnChange(model, draw);
  return () => {
    sized.disconnect();
    stop();
  };
}

export default { render };
