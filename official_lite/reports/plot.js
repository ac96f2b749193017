// A chart: its data drawn as SVG, and a tooltip for the values under the pointer. Text from files
// is only inserted as text, never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";
const PALETTE = 8;
const MOST_TIP_ROWS = 10;
const MOST_MARKED_POINTS = 60;
// The minimum length of a drag in pixels; a shorter one is a click.
const LEAST_DRAG = 8;

// The states of the switches, by the part of the page that they belong to.
const switches = new Map();

function switchesOf(node) {
  const part = node.closest(".part");
  if (!switches.has(part)) {
    const nothing = { hiddenRuns: new Set(), hiddenSplits: new Set() };
    switches.set(part, { smoothing: 0, isOverTime: false, ...nothing });
  }
  return switches.get(part);
}

function add(parent, name, attributes = {}, text = null) {
  const isSvg = parent instanceof SVGElement || name === "svg";
  const node = isSvg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  parent.append(node);
  return node;
}

class Plot {
  constructor(figure) {
    this.figure = figure;
    this.data = JSON.parse(figure.querySelector("script").textContent);
    this.area = figure.querySelector(".plot");
    this.switches = switchesOf(figure);
    this.hidden = new Set();
    this.isLog = false;
    // The visible range of the horizontal axis as a pair of values; null shows the whole axis.
    this.zoom = null;
    this.drawnWidth = 0;
    this.tip = add(figure, "div", { class: "tip", role: "status", hidden: "" });
    this.addResetButton();
    this.addLogSwitch();
    this.connectLegend();
    new ResizeObserver(() => {
      if (this.area.clientWidth !== this.drawnWidth) this.draw();
    }).observe(this.area);
  }

  get isOverTime() {
    return this.switches.isOverTime && this.data.series.every((one) => one.minutes.length);
  }

  get xLabel() {
    return this.isOverTime ? "minutes" : this.data.xLabel;
  }

  get hasNamedPoints() {
    return this.data.series.some((one) => one.labels.length > 0);
  }

  get canZoom() {
    return this.data.xNames.length === 0;
  }

  addResetButton() {
    const caption = this.figure.querySelector("figcaption");
    this.reset = add(caption, "button", { type: "button", class: "reset" }, "reset zoom");
    this.reset.addEventListener("click", () => this.zoomTo(null));
  }

  addLogSwitch() {
    const isPositive = (one) => one.y.some((value) => value !== null && value > 0);
    if (this.data.yRange || !this.data.series.some(isPositive)) return;
    const caption = this.figure.querySelector("figcaption");
    const button = add(caption, "button", { type: "button", "aria-pressed": "false" }, "log");
    button.className = "log";
    button.title = "Logarithmic scale";
    button.addEventListener("click", () => {
      this.isLog = !this.isLog;
      button.setAttribute("aria-pressed", String(this.isLog));
      this.draw();
    });
  }

  connectLegend() {
    this.figure.querySelectorAll(".legend button").forEach((button) => {
      const name = button.textContent;
      button.addEventListener("click", () => {
        if (!this.hidden.delete(name)) this.hidden.add(name);
        button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
        this.draw();
      });
    });
  }

  // Return the visible series with the values to draw.
  visible() {
    const shown = this.data.series.filter(
      (one) =>
        !this.hidden.has(one.legend) &&
        !this.switches.hiddenRuns.has(one.run) &&
        !this.switches.hiddenSplits.has(one.split),
    );
    const weight = this.data.smooth ? this.switches.smoothing : 0;
    return shown.map((one) => ({
      ...one,
      x: this.isOverTime ? one.minutes : one.x,
      y: smoothed(one.y, weight),
      raw: one.y,
    }));
  }

  isInView(x) {
    return this.zoom === null || (x >= this.zoom[0] && x <= this.zoom[1]);
  }

  canPlace(x, y) {
    return x !== null && y !== null && (!this.isLog || y > 0) && (!this.data.xLog || x > 0);
  }

  draw() {
    const width = this.area.clientWidth;
    if (!width) return;
    this.drawnWidth = width;
    this.hideTip();
    this.area.replaceChildren();
    if (this.drawnUnit !== this.xLabel) this.zoom = null;
    this.drawnUnit = this.xLabel;
    this.reset.hidden = this.zoom === null;
    const series = this.visible();
    const all = [];
    const xs = [];
    const ys = [];
    for (const one of series) {
      one.x.forEach((x, index) => {
        for (const y of [one.y[index], one.raw[index]]) {
          if (!this.canPlace(x, y)) continue;
          all.push(x);
          if (this.isInView(x)) xs.push(x), ys.push(y);
        }
      });
    }
    this.xs = [...new Set(all)].sort((a, b) => a - b);
    if (!xs.length) {
      add(this.area, "p", { class: "empty" }, "Nothing to show.");
      this.series = [];
      return;
    }
    const height = Math.round(Math.min(280, Math.max(190, width * 0.6)));
    this.layOut(xs, ys, width, height);
    this.drawFrame(series, width, height);
    // When zoomed, lines are cut off at the edge; otherwise, there is room for markers on the edge.
    const room = this.zoom ? 0 : 6;
    const [x, w] = [this.left - room, this.right - this.left + 2 * room];
    const h = this.bottom + 6;
    const view = add(this.svg, "svg", { x, y: 0, width: w, height: h, viewBox: `${x} 0 ${w} ${h}` });
    for (const one of series) this.drawSeries(view, one);
    this.series = series;
    this.cursor = add(this.svg, "g", { class: "cursor" });
    this.listen(width, height);
  }

  layOut(xs, ys, width, height) {
    const names = this.data.xNames;
    this.bottom = height - 34;
    const y = {
      isLog: this.isLog,
      range: this.data.yRange,
      start: this.bottom,
      end: 10,
      count: Math.floor(height / 45),
      margin: 0.05,
    };
    this.y = axis(ys, y);
    const longest = Math.max(...this.y.ticks.map((tick) => tick.text.length), 1);
    this.left = 14 + 6.6 * longest;
    this.right = width - 14;
    this.x = axis(xs, {
      isLog: this.data.xLog,
      range: names.length ? [-0.5, names.length - 0.5] : this.zoom,
      start: this.left,
      end: this.right,
      count: Math.floor((this.right - this.left) / 60),
      margin: this.hasNamedPoints && !this.zoom ? 0.04 : 0,
      // If all values are integers, such as steps or trials, so are their ticks.
      leastStep: xs.every(Number.isInteger) ? 1 : 0,
    });
    if (names.length) this.x.ticks = this.nameTicks(names);
  }

  nameTicks(names) {
    const room = (this.right - this.left) / names.length / 6.6 - 1;
    const cut = (name) => (name.length > room ? name.slice(0, Math.max(1, room - 1)) + "…" : name);
    return names.map((name, at) => ({ at, text: cut(name) }));
  }

  drawFrame(series, width, height) {
    const { title, yLabel } = this.data;
    const box = { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", tabindex: 0 };
    this.svg = add(this.area, "svg", box);
    const named = series.map((one) => one.name).join(", ");
    add(this.svg, "title", {}, title);
    const keys = this.canZoom ? " Arrow keys show values, + and - zoom, Escape resets." : "";
    add(this.svg, "desc", {}, `${yLabel} by ${this.xLabel}: ${named}.${keys}`);
    const grid = add(this.svg, "g", { class: "grid" });
    const texts = add(this.svg, "g", { class: "ticks" });
    for (const tick of this.y.ticks) {
      const y = this.y.place(tick.at);
      add(grid, "line", { x1: this.left, x2: this.right, y1: y, y2: y });
      add(texts, "text", { x: this.left - 6, y: y + 4, "text-anchor": "end" }, tick.text);
    }
    this.drawXTicks(texts);
    add(grid, "line", {
      class: "axis",
      x1: this.left,
      x2: this.right,
      y1: this.bottom,
      y2: this.bottom,
    });
    const middle = (this.left + this.right) / 2;
    add(texts, "text", { x: middle, y: height - 3, "text-anchor": "middle" }, this.xLabel);
  }

  // Draw the ticks of the x axis; the outermost labels are kept within the chart.
  drawXTicks(texts) {
    let free = -Infinity;
    for (const tick of this.x.ticks) {
      const half = tick.text.length * 3.3;
      const x = this.x.place(tick.at);
      const centre = Math.min(Math.max(x, half + 1), this.right + 13 - half);
      if (centre - half < free) continue;
      free = centre + half + 6;
      add(texts, "line", { x1: x, x2: x, y1: this.bottom, y2: this.bottom + 4 });
      const place = { x: centre, y: this.bottom + 16, "text-anchor": "middle" };
      add(texts, "text", place, tick.text);
    }
  }

  drawSeries(parent, one) {
    const group = add(parent, "g", { class: `series ${one.look} c${one.colour % PALETTE}` });
    const isLine = !["dots", "rings"].includes(one.look);
    if (isLine) {
      if (one.raw !== one.y && this.switches.smoothing > 0 && this.data.smooth) {
        add(group, "path", { class: "raw", d: this.path(one, one.raw) });
      }
      add(group, "path", { class: "line", d: this.path(one, one.y) });
    }
    const isMarked = one.look === "solid" && one.x.length <= MOST_MARKED_POINTS;
    const number = one.y.filter((value) => value !== null).length;
    if (!isLine || isMarked || number === 1) {
      one.x.forEach((x, index) => {
        if (this.canPlace(x, one.y[index])) this.mark(group, one, x, one.y[index], 3);
      });
    }
  }

  path(one, values) {
    let text = "";
    let isDown = false;
    one.x.forEach((x, index) => {
      if (!this.canPlace(x, values[index])) {
        // A step function continues over missing values; a curve has a gap there.
        isDown = isDown && one.look === "steps";
        return;
      }
      const [px, py] = [this.x.place(x).toFixed(1), this.y.place(values[index]).toFixed(1)];
      if (!isDown) text += `M${px} ${py}`;
      else text += one.look === "steps" ? `H${px}V${py}` : `L${px} ${py}`;
      isDown = true;
    });
    return text;
  }

  // Draw a marker; series that share a color have different shapes.
  mark(parent, one, x, y, size) {
    const [px, py] = [this.x.place(x), this.y.place(y)];
    const shape = Math.floor(one.colour / PALETTE) % 4;
    const corners = {
      1: `M${px - size} ${py - size}h${2 * size}v${2 * size}h${-2 * size}z`,
      2: `M${px} ${py - size * 1.3}l${size * 1.2} ${size * 2.2}h${-2.4 * size}z`,
      3: `M${px} ${py - size * 1.4}l${size * 1.4} ${size * 1.4}l${-size * 1.4} ${size * 1.4}l${-size * 1.4} ${-size * 1.4}z`,
    };
    if (shape === 0) add(parent, "circle", { class: "mark", cx: px, cy: py, r: size });
    else add(parent, "path", { class: "mark", d: corners[shape] });
  }

  listen(width, height) {
    const hit = add(this.svg, "rect", { class: "hit", x: 0, y: 0, width, height });
    // Without an empty title, browsers would show the title of the SVG next to the tooltip.
    add(hit, "title");
    const place = (event) => {
      const box = this.svg.getBoundingClientRect();
      const scale = width / box.width;
      return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    };
    const point = (event) => this.pointAt(...place(event));
    this.svg.addEventListener("pointermove", point);
    this.svg.addEventListener("pointerdown", point);
    if (this.canZoom) this.listenForZoom(place);
    this.svg.addEventListener("pointerleave", (event) => {
      // After a touch, the tooltip stays, because the finger hides it while touching.
      if (event.pointerType === "mouse") this.hideTip();
    });
    this.svg.addEventListener("blur", () => this.hideTip());
    this.svg.addEventListener("keydown", (event) => this.moveCursor(event));
  }

  // Let dragging select the range to zoom to.
  listenForZoom(place) {
    const selection = add(this.svg, "rect", { class: "selection", y: 0, height: this.bottom });
    let start = null;
    const range = (event) => {
      const inside = (x) => Math.min(Math.max(x, this.left), this.right);
      return [start, place(event)[0]].map(inside).sort((a, b) => a - b);
    };
    const select = (from, to) => {
      selection.setAttribute("x", from);
      selection.setAttribute("width", to - from);
    };
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      start = place(event)[0];
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (start !== null) select(...range(event));
    });
    this.svg.addEventListener("pointerup", (event) => {
      if (start === null) return;
      const [from, to] = range(event);
      start = null;
      select(0, 0);
      if (to - from >= LEAST_DRAG) this.zoomTo([from, to].map(this.x.valueAt));
    });
    // If a touch turns into scrolling, nothing is selected.
    this.svg.addEventListener("pointercancel", () => {
      start = null;
      select(0, 0);
    });
    this.svg.addEventListener("dblclick", () => this.zoomTo(null));
  }

  // Show a range of x values if it contains at least two of them; null shows all values.
  zoomTo(range) {
    if (range && this.xs.filter((x) => x >= range[0] && x <= range[1]).length < 2) return;
    const hadFocus = this.figure.contains(document.activeElement);
    this.zoom = range;
    this.draw();
    // `draw` has replaced the element that had the focus.
    if (hadFocus) this.svg.focus({ preventScroll: true });
  }

  // Zoom around the cursor, or around the middle if there is no cursor.
  zoomBy(factor) {
    const column = this.column;
    const middle = column === undefined ? (this.left + this.right) / 2 : this.x.place(column);
    const width = (this.right - this.left) * factor;
    const first = this.x.place(this.xs[0]);
    const last = this.x.place(this.xs[this.xs.length - 1]);
    const start = Math.min(Math.max(middle - width / 2, first), last - width);
    const isAll = width >= (last - first) * 0.999;
    this.zoomTo(isAll ? null : [start, start + width].map(this.x.valueAt));
    if (column !== undefined && this.isInView(column)) this.showColumn(column, null);
  }

  points() {
    return this.series.flatMap((one) =>
      one.x
        .map((x, index) => ({ one, index, x, y: one.y[index] }))
        .filter(({ x, y }) => this.canPlace(x, y) && this.isInView(x)),
    );
  }

  pointAt(px, py) {
    const points = this.points();
    const away = ({ x, y }) =>
      this.hasNamedPoints
        ? Math.hypot(this.x.place(x) - px, this.y.place(y) - py)
        : Math.abs(this.x.place(x) - px);
    const named = points.filter(({ one }) => !this.hasNamedPoints || one.labels.length);
    if (!named.length) return;
    const nearest = named.reduce((best, point) => (away(point) < away(best) ? point : best));
    if (this.hasNamedPoints) this.showPoint(nearest);
    else this.showColumn(nearest.x, py);
  }

  moveCursor(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
    const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if (event.key === "Escape") {
      this.hideTip();
      this.zoomTo(null);
    }
    if (factor && isPlain && this.canZoom) this.zoomBy(factor);
    if (!by) return;
    event.preventDefault();
    if (this.hasNamedPoints) {
      const named = this.points().filter(({ one }) => one.labels.length);
      named.sort((a, b) => a.x - b.x);
      this.current = Math.min(Math.max((this.current ?? -1) + by, 0), named.length - 1);
      this.showPoint(named[this.current]);
      return;
    }
    const xs = [...new Set(this.points().map(({ x }) => x))].sort((a, b) => a - b);
    const now = this.column === undefined ? -1 : xs.indexOf(this.column);
    this.showColumn(xs[Math.min(Math.max(now + by, 0), xs.length - 1)], null);
  }

  showPoint({ one, index, x, y }) {
    this.cursor.replaceChildren();
    this.mark(add(this.cursor, "g", { class: `c${one.colour % PALETTE}` }), one, x, y, 6);
    const { xNames, yLabel } = this.data;
    const label = one.labels[index];
    const rows = [{ name: yLabel, value: exact(y) }];
    const place = xNames.length ? xNames[x] : exact(x);
    if (`${this.xLabel} ${place}` !== label) rows.unshift({ name: this.xLabel, value: place });
    this.showTip(label, rows, this.x.place(x));
  }

  showColumn(x, py) {
    this.column = x;
    this.cursor.replaceChildren();
    const at = this.x.place(x);
    add(this.cursor, "line", { x1: at, x2: at, y1: 10, y2: this.bottom });
    let rows = this.series.map((one) => this.nearestIn(one, x)).filter((row) => row !== null);
    if (rows.length > MOST_TIP_ROWS && py !== null) {
      const away = ({ y }) => Math.abs(this.y.place(y) - py);
      rows.sort((a, b) => away(a) - away(b));
    }
    rows = rows.slice(0, MOST_TIP_ROWS);
    for (const { one, x: own, y } of rows) {
      this.mark(add(this.cursor, "g", { class: `c${one.colour % PALETTE}` }), one, own, y, 4);
    }
    const label = (row) => (row.x === x ? "" : ` at ${exact(row.x)}`);
    const value = (row) => exact(row.y) + (row.raw === row.y ? "" : ` (${exact(row.raw)})`);
    const shown = rows.map((row) => ({
      one: row.one,
      name: row.one.name + label(row),
      value: value(row),
    }));
    this.showTip(`${this.xLabel} ${exact(x)}`, shown, at);
  }

  // Return the point of a series that is nearest to `x`, or null if `x` is outside of its range.
  nearestIn(one, x) {
    let best = null;
    one.x.forEach((own, index) => {
      if (!this.canPlace(own, one.y[index]) || !this.isInView(own)) return;
      if (best === null || Math.abs(own - x) < Math.abs(best.x - x)) {
        best = { one, x: own, y: one.y[index], raw: one.raw[index] };
      }
    });
    const first = one.x[0];
    const last = one.x[one.x.length - 1];
    return best && (best.x === x || (x >= first && x <= last)) ? best : null;
  }

  showTip(title, rows, at) {
    this.tip.replaceChildren();
    add(this.tip, "strong", {}, title);
    for (const { one, name, value } of rows) {
      const line = add(this.tip, "div");
      const label = add(line, "span");
      if (one) {
        add(label, "span", { class: `swatch ${one.look} c${one.colour % PALETTE}` });
      }
      add(label, "span", {}, name);
      add(line, "b", {}, value);
    }
    this.tip.hidden = false;
    const room = this.figure.clientWidth - this.tip.offsetWidth;
    const left = this.area.offsetLeft + at;
    const beside = left + 14 > room ? left - 14 - this.tip.offsetWidth : left + 14;
    this.tip.style.left = `${Math.max(0, Math.min(beside, room))}px`;
    // A small screen has no room next to the pointer: the tooltip is then below the chart, or above
    // it if there is no room below.
    const isNarrow = this.tip.offsetWidth > this.figure.clientWidth / 2;
    const top = this.area.offsetTop;
    const places = isNarrow ? [top + this.bottom + 20, top - this.tip.offsetHeight - 4] : [top + 4];
    const highest = 4 - this.figure.getBoundingClientRect().top;
    const lowest = highest + window.innerHeight - this.tip.offsetHeight - 8;
    const fits = (one) => one >= highest && one <= lowest;
    const clamped = Math.max(highest, Math.min(places[0], lowest));
    this.tip.style.top = `${places.find(fits) ?? clamped}px`;
  }

  hideTip() {
    this.tip.hidden = true;
    this.column = this.current = undefined;
    if (this.cursor) this.cursor.replaceChildren();
  }
}
