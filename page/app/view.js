// The canvas: two layers with a divider, zoom and pan by mouse, touch and keyboard.

const LARGEST_ZOOM = 40;
const GRIP = 14;
const CLICK = 5;
/** Where the handle of the divider is: a mark in the middle stays in sight. */
const HANDLE = 0.8;
/** Shown where the removed noise is not known; zero is brighter. */
const UNKNOWN = "#4a4f52";

export class View {
  constructor(canvas, { onPick, onSplit, onMoved }) {
    Object.assign(this, { canvas, onPick, onSplit, onMoved });
    this.layers = { before: null, after: null, noise: null };
    this.mode = "split";
    this.split = 0.5;
    this.scale = 1;
    this.centre = { x: 0, y: 0 };
    this.part = null;
    this.mark = null;
    this.pointers = new Map();
    this.#listen();
    new ResizeObserver(() => this.#resized()).observe(canvas);
  }

  /** Show another image; `part` of it has the layers after and noise. */
  open(before, part) {
    this.layers = { before, after: null, noise: null };
    this.part = part;
    this.mark = null;
    this.fit(part);
  }

  get size() {
    return { width: this.canvas.clientWidth || 1, height: this.canvas.clientHeight || 1 };
  }

  fit(part) {
    const { before } = this.layers;
    if (!before) return;
    const box = part ?? { x: 0, y: 0, width: before.width, height: before.height };
    const { width, height } = this.size;
    this.scale = Math.min(width / box.width, height / box.height, LARGEST_ZOOM);
    this.fitted = box;
    this.centre = { x: box.x + box.width / 2, y: box.y + box.height / 2 };
    this.draw();
  }

  /** Zoom by a factor, keeping a place of the canvas where it is. */
  zoom(factor, at = null) {
    const { width, height } = this.size;
    const place = at ?? { x: width / 2, y: height / 2 };
    const { before } = this.layers;
    if (!before) return;
    const smallest = Math.min(width / before.width, height / before.height) / 2;
    const scale = Math.min(Math.max(this.scale * factor, smallest), LARGEST_ZOOM);
    const fixed = this.toImage(place);
    this.scale = scale;
    this.centre.x = fixed.x - (place.x - width / 2) / scale;
    this.centre.y = fixed.y - (place.y - height / 2) / scale;
    this.#moved();
  }

  pan(dx, dy) {
    this.centre.x -= dx / this.scale;
    this.centre.y -= dy / this.scale;
    this.#moved();
  }

  #moved() {
    const { before } = this.layers;
    if (!before) return;
    this.fitted = null;
    this.centre.x = Math.min(Math.max(this.centre.x, 0), before.width);
    this.centre.y = Math.min(Math.max(this.centre.y, 0), before.height);
    this.draw();
    this.onMoved?.();
  }

  toImage({ x, y }) {
    const { width, height } = this.size;
    return {
      x: this.centre.x + (x - width / 2) / this.scale,
      y: this.centre.y + (y - height / 2) / this.scale,
    };
  }

  #resized() {
    const ratio = globalThis.devicePixelRatio || 1;
    const { width, height } = this.size;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    if (this.fitted) this.fit(this.fitted);
    else this.draw();
  }

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = null;
      this.#draw();
    });
  }

  #draw() {
    const context = this.canvas.getContext("2d");
    const ratio = globalThis.devicePixelRatio || 1;
    const { width, height } = this.size;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const { before, after, noise } = this.layers;
    if (!before) return;
    const origin = {
      x: width / 2 - this.centre.x * this.scale,
      y: height / 2 - this.centre.y * this.scale,
    };
    context.imageSmoothingEnabled = this.scale < 1.5;
    context.imageSmoothingQuality = "high";
    const onCanvas = ({ x, y, width, height }) => [
      origin.x + x * this.scale,
      origin.y + y * this.scale,
      width * this.scale,
      height * this.scale,
    ];
    const whole = onCanvas({ x: 0, y: 0, width: before.width, height: before.height });
    if (this.mode === "noise") {
      context.fillStyle = UNKNOWN;
      context.fillRect(...whole);
    } else context.drawImage(before, ...whole);
    const top = this.mode === "noise" ? noise : after;
    if (top && this.part) {
      const line = this.mode === "split" ? this.split * width : 0;
      context.save();
      context.beginPath();
      context.rect(line, 0, width - line, height);
      context.clip();
      context.drawImage(top, ...onCanvas(this.part));
      context.restore();
      if (this.part.width < before.width || this.part.height < before.height) {
        context.strokeStyle = "rgb(255 255 255 / 60%)";
        context.lineWidth = 1;
        context.setLineDash([5, 4]);
        context.strokeRect(...onCanvas(this.part));
        context.setLineDash([]);
      }
      if (this.mode === "split") this.#drawDivider(context, line, height);
    }
    if (this.mark) this.#drawMark(context, origin);
  }

  #drawDivider(context, x, height) {
    context.fillStyle = "rgb(255 255 255 / 90%)";
    context.fillRect(x - 1, 0, 2, height);
    const y = HANDLE * height;
    context.beginPath();
    context.arc(x, y, 13, 0, 2 * Math.PI);
    context.fill();
    context.strokeStyle = "#1f5f7a";
    context.lineWidth = 2;
    context.beginPath();
    for (const side of [-1, 1]) {
      context.moveTo(x + side * 3, y - 4);
      context.lineTo(x + side * 7, y);
      context.lineTo(x + side * 3, y + 4);
    }
    context.stroke();
  }

  #drawMark(context, origin) {
    const [x, y] = [origin.x + this.mark.x * this.scale, origin.y + this.mark.y * this.scale];
    for (const [colour, width] of [
      ["#000", 4],
      ["#ffd24a", 2],
    ]) {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.beginPath();
      context.arc(x, y, 7, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  #place(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  #listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      const place = this.#place(event);
      this.pointers.set(event.pointerId, place);
      if (this.pointers.size === 1) {
        const line = this.split * this.size.width;
        this.gesture = {
          start: place,
          divides: this.mode === "split" && Math.abs(place.x - line) <= GRIP,
          moved: false,
        };
      } else this.gesture = { moved: true };
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = this.pointers.get(event.pointerId);
      if (!before || !this.gesture) return;
      const place = this.#place(event);
      const others = [...this.pointers.entries()].filter(([id]) => id !== event.pointerId);
      this.pointers.set(event.pointerId, place);
      if (others.length) {
        const other = others[0][1];
        const distance = (a) => Math.hypot(a.x - other.x, a.y - other.y) || 1;
        this.zoom(distance(place) / distance(before), {
          x: (place.x + other.x) / 2,
          y: (place.y + other.y) / 2,
        });
        return;
      }
      const { start } = this.gesture;
      if (start && Math.hypot(place.x - start.x, place.y - start.y) > CLICK) this.gesture.moved = true;
      if (!this.gesture.moved) return;
      if (this.gesture.divides) this.onSplit(place.x / this.size.width);
      else this.pan(place.x - before.x, place.y - before.y);
    });
    const end = (event) => {
      const place = this.pointers.get(event.pointerId);
      this.pointers.delete(event.pointerId);
      if (event.type === "pointerup" && place && this.gesture && !this.gesture.moved)
        this.onPick(this.toImage(place));
      if (!this.pointers.size) this.gesture = null;
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.zoom(Math.exp(-event.deltaY / 400), this.#place(event));
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (moves[event.key]) this.pan(...moves[event.key]);
      else if (event.key === "+" || event.key === "=") this.zoom(1.25);
      else if (event.key === "-") this.zoom(0.8);
      else if (event.key === "0") this.fit();
      else if (event.key === "Enter") this.onPick({ ...this.centre });
      else return;
      event.preventDefault();
    });
  }
}
