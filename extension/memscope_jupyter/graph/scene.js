const SVG = "http://www.w3.org/2000/svg";

const append = (map, key, values) => map.set(key, [...(map.get(key) ?? []), ...values]);

/** One picture in the page: which elements stand for which instruction and buffer. */
class Scene {
  constructor(picture, canvas) {
    this.picture = picture;
    canvas.querySelector("svg")?.remove();
    canvas.insertAdjacentHTML("afterbegin", picture.svg);
    this.svg = canvas.querySelector("svg");
    this.nodes = [...this.svg.querySelectorAll("[data-node]")];
    this.boxes = this.nodes.filter((node) => node.classList.contains("mg-box"));
    this.byNode = new Map();
    for (const node of this.nodes) append(this.byNode, node.dataset.node, [node]);
    this.byBuffer = new Map();
    for (const [name, { buffers }] of Object.entries(picture.nodes)) {
      for (const buffer of buffers) append(this.byBuffer, buffer, this.byNode.get(name) ?? []);
    }
    this.wiresAt = new Map();
    for (const wire of this.svg.querySelectorAll(".mg-wire")) {
      append(this.wiresAt, +wire.dataset.tail, [wire]);
      append(this.wiresAt, +wire.dataset.head, [wire]);
    }
    this.marked = new Map();
    for (const title of this.svg.querySelectorAll("title")) {
      title.parentNode.dataset.tip = title.textContent;
      title.remove(); // the browser's own tip would stand on ours
    }
  }

  /** The element that stands for a node: its own box where it has one. */
  main(elements) {
    return elements?.find((e) => e.classList.contains("mg-box")) ?? elements?.[0];
  }

  /** The centre of the box that an element belongs to: known, not measured, so that it is right in a hidden tab. */
  middle(node) {
    return this.picture.centres[node.dataset.box];
  }

  /** Gives a class to these elements, and takes it from those that had it. */
  mark(name, elements) {
    for (const marked of this.marked.get(name) ?? []) marked.classList.remove(name);
    for (const element of elements) element.classList.add(name);
    this.marked.set(name, elements);
  }

  /** Marks the edges at some boxes, and draws those that were too long for the layout. */
  light(places) {
    this.mark(
      "mg-lit",
      places.flatMap((place) => this.wiresAt.get(place) ?? []),
    );
    this.svg.querySelector(".mg-long")?.remove();
    const layer = document.createElementNS(SVG, "g");
    layer.setAttribute("class", "mg-long");
    for (const [tail, head] of this.picture.long) {
      if (places.includes(tail) || places.includes(head)) layer.append(this.longEdge(tail, head));
    }
    this.svg.insertBefore(layer, this.svg.querySelector(".mg-boxes"));
  }

  longEdge(tail, head) {
    const [[x0, y0], [x1, y1]] = [this.picture.centres[tail], this.picture.centres[head]];
    const bend = (y1 - y0) / 3;
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", `M${x0} ${y0}C${x0} ${y0 + bend} ${x1} ${y1 - bend} ${x1} ${y1}`);
    return path;
  }
}
