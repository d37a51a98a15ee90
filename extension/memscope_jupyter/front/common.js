// Shared by every view of the panel; each view's own file follows it in one module.

/** Three digits and a unit, as memscope.sizes.format_bytes writes them. */
function formatBytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let k = 0;
  while (Math.abs(value) >= 999.5 && k < units.length - 1) {
    value /= 1024;
    k += 1;
  }
  if (k === 0) return `${Math.trunc(value)} B`;
  const digits = Math.max(0, 3 - String(Math.trunc(Math.abs(value))).length);
  return `${value.toFixed(digits)} ${units[k]}`;
}

/** An element with attributes ("class", "aria-label", ...) and children (elements or text). */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/**
 * Draws now and whenever the model's `data` changes; gives back what to call when the view goes.
 *
 * A change that Python sent while the page was still loading this module may be lost, so the view
 * asks for the state once it is there.
 */
function drawOnChange(model, draw) {
  const redraw = () => draw(model.get("data"));
  model.on("change:data", redraw);
  redraw();
  model.send({ type: "hello" });
  return () => model.off("change:data", redraw);
}
