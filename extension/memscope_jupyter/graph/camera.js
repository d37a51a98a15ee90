// How the page looks at a picture. The parts of the graph's page follow one another in one module.

const [LEAST, MOST] = [0.004, 6]; // scale

/** Where a view of some length starts that shows as little as can be of what lies beside the drawing. */
const within = (start, length, from, size) =>
  size <= length ? from + (size - length) / 2 : Math.min(Math.max(start, from), from + size - length);

/** Pan and zoom of an SVG by its viewBox: scale is screen pixels to one of the drawing's. */
class Camera {
  constructor(canvas) {
    this.canvas = canvas;
    this.x = this.y = 0;
    this.scale = 1;
    this.measure();
  }

  /** The canvas's size, kept: to ask for it between two changes has the page laid out each time. */
  measure() {
    this.view = [Math.max(1, this.canvas.clientWidth), Math.max(1, this.canvas.clientHeight)];
  }

  aim(svg) {
    this.svg = svg;
    const { x, y, width, height } = svg.viewBox.baseVal;
    this.whole = { x, y, width, height };
    svg.removeAttribute("width");
    svg.removeAttribute("height");
    svg.setAttribute("preserveAspectRatio", "xMinYMin");
  }

  draw() {
    const [width, height] = this.view.map((pixels) => pixels / this.scale);
    this.svg.setAttribute("viewBox", `${this.x} ${this.y} ${width} ${height}`);
    this.canvas.dataset.scale = this.scale.toFixed(3);
  }

  get fitting() {
    const [width, height] = this.view;
    return Math.min(width / this.whole.width, height / this.whole.height, 1.1);
  }

  fit() {
    this.scale = this.fitting;
    this.centre(this.whole.x + this.whole.width / 2, this.whole.y + this.whole.height / 2);
  }

  /** Puts a point in the middle, or as near to it as the drawing's edge allows. */
  centre(x, y) {
    const [width, height] = this.view.map((pixels) => pixels / this.scale);
    this.x = within(x - width / 2, width, this.whole.x, this.whole.width);
    this.y = within(y - height / 2, height, this.whole.y, this.whole.height);
    this.draw();
  }

  /** Keeps what is in the middle there. */
  resize() {
    const [width, height] = this.view;
    this.measure();
    this.pan((this.view[0] - width) / 2, (this.view[1] - height) / 2);
  }

  pan(dx, dy) {
    this.x -= dx / this.scale;
    this.y -= dy / this.scale;
    this.draw();
  }

  /** Zooms about a point of the screen, by default the middle. */
  zoom(factor, at = this.view.map((pixels) => pixels / 2)) {
    const scale = Math.min(MOST, Math.max(LEAST, this.scale * factor));
    this.x += at[0] / this.scale - at[0] / scale;
    this.y += at[1] / this.scale - at[1] / scale;
    this.scale = scale;
    this.draw();
  }
}
