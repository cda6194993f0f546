// Orders over time: numbers and charts.
import { byID, pairs } from "./dom.js";
import { integer, milliseconds, number, t } from "./i18n.js";
import { Plot } from "./plot.js";

const kept = 360; // samples; the charts show half of them

// What becomes of orders, as the charts group it. Other results are refusals.
const accepted = ["accepted", "queued", "replayed"];
const failed = ["busy", "unavailable", "superseded"];
const sum = (orders, results) => results.reduce((n, r) => n + (orders[r] ?? 0), 0);
const all = (orders) => Object.values(orders).reduce((n, rate) => n + rate, 0);

// The charts, by their elements in the page.
const charts = [
  {
    id: "orders",
    lines: [
      { text: "flow.accepted", colour: "--good", value: (s) => sum(s.orders, accepted) },
      { text: "flow.soldOut", colour: "--line-2", value: (s) => s.orders.sold_out ?? 0 },
      { text: "flow.refused", colour: "--line-3", dashed: true, value: (s) => all(s.orders) - sum(s.orders, [...accepted, ...failed, "sold_out"]) },
      { text: "flow.failed", colour: "--bad", value: (s) => sum(s.orders, failed) },
    ],
  },
  {
    id: "times",
    lines: [
      { text: "flow.answer50", colour: "--line-1", dashed: true, value: (s) => s.answer?.p50 ?? null },
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
    this.plots = charts.map((c) => new Plot(c.id, c.lines));
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

  draw() {
    this.samples = this.samples.slice(-kept);
    this.drawNumbers();
    for (const plot of this.plots) plot.draw(this.samples);
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
}
