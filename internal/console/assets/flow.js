// Orders over time: numbers and charts.
import { byID, make, pairs } from "./dom.js";
import { integer, milliseconds, number, t } from "./i18n.js";

const minSpan = 60; // seconds that the charts show at first
const maxSpan = 180; // and at most
const height = 170;

// What becomes of orders, as the charts group it. Other results are refusals.
const accepted = ["accepted", "queued", "replayed"];
const failed = ["busy", "unavailable", "superseded"];
const sum = (orders, results) => results.reduce((n, r) => n + (orders[r] ?? 0), 0);
const all = (orders) => Object.values(orders).reduce((n, rate) => n + rate, 0);

// The charts. Each line has the colour of a custom property in console.css.
const charts = [
  {
    id: "orders",
    lines: [
      { text: "flow.accepted", colour: "--good", value: (s) => sum(s.orders, accepted) },
      { text: "flow.soldOut", colour: "--line-2", value: (s) => s.orders.sold_out ?? 0 },
      { text: "flow.refused", colour: "--line-3", dash: [4, 3], value: (s) => all(s.orders) - sum(s.orders, [...accepted, ...failed, "sold_out"]) },
      { text: "flow.failed", colour: "--bad", value: (s) => sum(s.orders, failed) },
    ],
  },
  {
    id: "times",
    lines: [
      { text: "flow.answer50", colour: "--line-1", dash: [4, 3], value: (s) => s.answer?.p50 ?? null },
      { text: "flow.answer99", colour: "--line-1", value: (s) => s.answer?.p99 ?? null },
      { text: "flow.gate99", colour: "--line-2", value: (s) => s.gate?.p99 ?? null },
      { text: "flow.ledger99", colour: "--line-3", value: (s) => s.ledger?.p99 ?? null },
    ],
  },
  { id: "group", lines: [{ text: "flow.groupSize", colour: "--line-1", value: (s) => s.group }] },
];

export class Flow {
  constructor() {
    this.samples = [];
    this.plots = new Map();
    this.observer = new ResizeObserver(() => this.resize());
    for (const c of charts) this.observer.observe(byID("chart-" + c.id));
  }

  // begin takes the samples that the service kept. resumed says that they follow those
  // that the page has.
  begin(samples, resumed) {
    this.samples = resumed ? this.samples.concat(samples) : samples;
    this.draw();
  }

  add(sample) {
    this.samples.push(sample);
    this.draw();
  }

  // data returns the columns of a chart. A gap in the samples is a gap in the lines.
  data(chart) {
    const newest = this.samples.at(-1)?.t ?? Date.now() / 1000;
    const shown = this.samples.filter((s) => s.t > newest - maxSpan);
    const columns = [[], ...chart.lines.map(() => [])];
    let last = null;
    for (const s of shown) {
      if (last !== null && s.t - last > 5) {
        columns[0].push(last + 1);
        for (let i = 1; i < columns.length; i++) columns[i].push(null);
      }
      last = s.t;
      columns[0].push(s.t);
      chart.lines.forEach((l, i) => columns[i + 1].push(l.value(s)));
    }
    // A line that is zero all the time would only cover the others.
    return columns.map((column, i) => (i > 1 && column.every((v) => !v) ? column.map(() => null) : column));
  }

  draw() {
    this.samples = this.samples.slice(-2 * maxSpan);
    this.drawNumbers();
    for (const c of charts) {
      const box = byID("chart-" + c.id);
      if (!box.clientWidth) continue; // not shown yet
      const plot = this.plots.get(c.id) ?? this.newPlot(c, box);
      const data = this.data(c);
      const newest = data[0].at(-1) ?? Date.now() / 1000;
      plot.batch(() => {
        plot.setData(data, false);
        const seen = newest - (data[0][0] ?? newest);
        plot.setScale("x", { min: newest - Math.min(maxSpan, Math.max(minSpan, Math.ceil(seen / 30) * 30)), max: newest });
        plot.setScale("y", { min: 0, max: top(data) });
      });
    }
  }

  drawNumbers() {
    const s = this.samples.at(-1);
    const empty = { orders: {}, retries: 0, refills: 0, guard: 0, recoveries: 0, waiting: 0, journal: 0 };
    const n = s ?? empty;
    pairs(byID("flow-rates"), [
      [t("flow.now"), number(all(n.orders))],
      [t("flow.now.accepted"), number(sum(n.orders, accepted))],
      [t("flow.p50"), n.answer ? milliseconds(n.answer.p50) : "–"],
      [t("flow.p99"), n.answer ? milliseconds(n.answer.p99) : "–"],
      [t("flow.groupNow"), n.group ? number(n.group) : "–"],
    ]);
    pairs(byID("flow-counts"), [
      [t("flow.waiting"), integer(n.waiting)],
      [t("flow.journal"), integer(n.journal)],
      [t("flow.retries"), integer(n.retries)],
      [t("flow.refills"), integer(n.refills)],
      [t("flow.guard"), integer(n.guard), n.guard ? "warn" : ""],
      [t("flow.recoveries"), integer(n.recoveries)],
    ]);
  }

  newPlot(chart, box) {
    const colours = chart.lines.map((l) => colour(l.colour));
    byID("legend-" + chart.id).replaceChildren(...chart.lines.map((l, i) => {
      const key = make("i", { class: l.dash ? "dashed" : "" });
      key.style.borderColor = colours[i];
      return make("li", {}, key, t(l.text));
    }));
    const grid = { stroke: colour("--edge"), width: 1 };
    const axis = { stroke: colour("--muted"), grid, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const plot = new window.uPlot({
      width: box.clientWidth,
      height,
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false, auto: false }, y: { auto: false } },
      axes: [
        { ...axis, size: 24, grid: { show: false }, splits: (u) => thirds(u.scales.x), values: (u, values) => values.map((v) => ago(u.scales.x.max - v)) },
        { ...axis, size: 52, splits: (u) => ticks(u.scales.y.max), values: (_, values) => values.map((v) => number(v)) },
      ],
      series: [{}, ...chart.lines.map((l, i) => ({ stroke: colours[i], width: 1.75, dash: l.dash, points: { show: false, filter: alone, fill: colours[i], size: 5 } }))],
    }, [[], ...chart.lines.map(() => [])], box);
    this.plots.set(chart.id, plot);
    return plot;
  }

  resize() {
    for (const c of charts) {
      const width = byID("chart-" + c.id).clientWidth;
      const plot = this.plots.get(c.id);
      if (plot && width && width !== plot.width) plot.setSize({ width, height });
    }
    if (this.plots.size < charts.length) this.draw();
  }

  // recolour draws the charts in the colours of the theme, which the browser has set by
  // the next frame.
  recolour() {
    requestAnimationFrame(() => this.relabel());
  }

  // relabel draws everything again.
  relabel() {
    for (const plot of this.plots.values()) plot.destroy();
    this.plots.clear();
    this.draw();
  }
}

// top returns the upper end of a chart: one of 1, 2, 5 times a power of ten.
export function top(data) {
  let most = 0;
  for (const column of data.slice(1)) for (const v of column) most = Math.max(most, v ?? 0);
  if (most <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10, 20].map((n) => n * power).find((n) => n >= most * 1.02);
}

// alone returns the places of the values without a neighbour, which no line would show.
function alone(plot, series) {
  const values = plot.data[series];
  return values.flatMap((v, i) => (v != null && values[i - 1] == null && values[i + 1] == null ? [i] : []));
}

function thirds({ min, max }) {
  return [0, 1, 2, 3].map((n) => min + (n * (max - min)) / 3);
}

// ago writes how many seconds ago something was: −1:20.
function ago(seconds) {
  const whole = Math.round(seconds);
  return whole ? "−" + Math.floor(whole / 60) + ":" + String(whole % 60).padStart(2, "0") : "0";
}

function ticks(most) {
  return [0, most / 2, most];
}

// colour returns the colour of a custom property as the browser computes it.
function colour(property) {
  const probe = make("span", { hidden: true });
  probe.style.color = `var(${property})`;
  document.body.append(probe);
  const computed = getComputedStyle(probe).color;
  probe.remove();
  return computed;
}
