// A chart of lines over time: SVG that the page stretches, with its labels as text beside
// it. Its colours are those of the style sheets, so a new size or theme changes nothing
// here.
import { byID, make, setText } from "./dom.js";
import { number, t } from "./i18n.js";

const minSpan = 60; // seconds that a chart shows at first
const maxSpan = 180; // and at most
const gap = 5; // seconds without a sample that interrupt the lines

export class Plot {
  // A line has a text for the legend, a custom property with its colour, and the value of
  // a sample, which is null if there is none. It may be dashed.
  constructor(id, lines) {
    this.lines = lines;
    const drawing = byID("plot").content.cloneNode(true);
    this.levels = drawing.querySelectorAll(".y span");
    this.times = drawing.querySelectorAll(".x span");
    const first = drawing.querySelector(".line");
    this.paths = lines.map((line) => styled(first.cloneNode(), line));
    first.replaceWith(...this.paths);
    byID("chart-" + id).append(drawing);
    byID("legend-" + id).append(...lines.map((l) =>
      make("li", {}, styled(make("i"), l), make("span", { "data-text": l.text }, t(l.text)))));
  }

  draw(samples) {
    const newest = samples.at(-1)?.t ?? 0;
    const shown = samples.filter((s) => s.t > newest - maxSpan);
    const seen = newest - (shown[0]?.t ?? newest);
    const span = Math.min(maxSpan, Math.max(minSpan, Math.ceil(seen / 30) * 30));
    const values = this.lines.map((l) => shown.map(l.value));
    const most = top(Math.max(0, ...values.flat()));
    const points = (column) => column.map((v, i) => [shown[i].t - newest + span, v]);
    this.paths.forEach((p, i) => {
      // A line that is zero all the time would only cover the first one.
      const covers = i > 0 && values[i].every((v) => !v);
      p.setAttribute("d", covers ? "" : path(points(values[i]), span, most));
    });
    this.levels.forEach((e, i) => setText(e, number(most * (1 - i / 2))));
    this.times.forEach((e, i) => setText(e, ago(span * (1 - i / 3))));
  }
}

function styled(e, line) {
  e.style.color = `var(${line.colour})`;
  if (line.dashed) e.classList.add("dashed");
  return e;
}

// path draws [second, value] points into a square of 100 by 100. A sample is about the
// second before it, and so a value without a neighbour is drawn as long as a second.
export function path(points, span, most) {
  const x = (second) => ((Math.max(second, 0) / span) * 100).toFixed(2);
  const y = (value) => (100 - (value / most) * 100).toFixed(2);
  let d = "";
  let last = -Infinity;
  for (const [second, value] of points) {
    if (value === null) {
      last = -Infinity;
      continue;
    }
    d += second - last > gap ? `M${x(second - 1)} ${y(value)}H${x(second)}` : `L${x(second)} ${y(value)}`;
    last = second;
  }
  return d;
}

// top returns the upper end of a chart: 1, 2 or 5 times a power of ten.
export function top(most) {
  if (most <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10, 20].map((n) => n * power).find((n) => n >= most * 1.02);
}

// ago writes how many seconds ago something was: −1:20.
function ago(seconds) {
  const whole = Math.round(seconds);
  return whole ? "−" + Math.floor(whole / 60) + ":" + String(whole % 60).padStart(2, "0") : "0";
}
