// The rush: many clients buy the last units of one SKU, in stores of their own.
import { call } from "./api.js";
import { byID, make, pairs, setText } from "./dom.js";
import { integer, known, milliseconds, number, t } from "./i18n.js";

const path = "rush";
const maxRuns = 8; // runs that are listed
const minBelow = 25; // per cent of a bar that lie below zero at least
const maxBelow = 92; // and at most
const ended = ["ended", "failed", "stopped"];

export class Rush {
  constructor() {
    this.settings = null; // what the service offers
    this.run = null; // the latest progress
    this.runs = []; // that have ended, the latest first
    this.error = null; // [text, values]
    byID("rush-form").addEventListener("submit", (e) => {
      e.preventDefault();
      this.start();
    });
    byID("rush-stop").addEventListener("click", () => this.stop());
    byID("rush-strategy").addEventListener("change", () => this.drawStrategy());
  }

  // refresh asks the service what it offers. It is called when a stream begins.
  async refresh() {
    const { status, value } = await call("GET", path);
    if (status !== 200) return;
    byID("rush").hidden = !value.available;
    if (!value.available) return;
    if (!this.settings) this.offer(value);
    if (value.current) this.show(value.current);
    else this.draw();
  }

  // offer fills in the form.
  offer(settings) {
    this.settings = settings;
    const { strategies, defaults, limits } = settings;
    byID("rush-strategy").replaceChildren(...strategies.map((name) => make("option", { value: name, selected: name === defaults.strategy }, name)));
    byID("rush-clients").max = limits.clients;
    byID("rush-clients").value = defaults.clients;
    byID("rush-units").max = limits.units;
    byID("rush-units").value = defaults.units;
    this.draw();
  }

  async start(strategy = byID("rush-strategy").value) {
    byID("rush-strategy").value = strategy;
    this.error = null;
    this.drawStrategy();
    byID("rush-start").disabled = true; // until the service answers
    const { status, value } = await call("POST", path, {
      strategy,
      clients: byID("rush-clients").valueAsNumber,
      units: byID("rush-units").valueAsNumber,
    });
    if (status === 202) this.show(value);
    else this.fail(status, value);
  }

  async stop() {
    const { status, value } = await call("DELETE", path);
    if (status === 200) this.show(value);
    else this.fail(status, value);
  }

  fail(status, problem) {
    const detail = problem.errors?.map((e) => e.field + " " + e.detail).join("; ") || problem.detail;
    this.error = status ? ["rush.invalid", { detail }] : ["rush.unreachable", {}];
    this.draw();
  }

  // show shows the progress of a rush.
  show(progress) {
    this.run = progress;
    if (ended.includes(progress.state)) this.keep(progress);
    this.draw();
  }

  // keep adds a run that has ended to the list.
  keep(progress) {
    const known = this.runs.findIndex((r) => r.id === progress.id);
    if (known >= 0) this.runs[known] = progress;
    else this.runs = [progress, ...this.runs].slice(0, maxRuns);
  }

  draw() {
    if (!this.settings) return;
    this.drawStrategy();
    const running = this.run !== null && !ended.includes(this.run.state);
    byID("rush-start").hidden = running;
    byID("rush-start").disabled = false;
    byID("rush-stop").hidden = !running;
    setText(byID("rush-error"), this.error ? t(...this.error) : "");
    byID("flow-rush").hidden = this.run === null;
    this.drawStage();
    this.drawSentence();
    this.drawRuns();
  }

  drawStrategy() {
    const name = byID("rush-strategy").value;
    setText(byID("rush-strategy-detail"), known("strategy." + name) ? t("strategy." + name) : "");
  }

  drawStage() {
    const r = this.run;
    byID("rush-stage").hidden = !r || r.state === "failed";
    if (!r || r.state === "failed") return;
    const left = r.units - r.sold;
    byID("rush-stage").classList.toggle("bad", left < 0);
    setText(byID("rush-left"), integer(left));
    setText(byID("rush-left-caption"), left < 0 ? t("rush.below") : t("rush.left", { n: left }));
    setText(byID("rush-full"), integer(r.units));
    const zero = below([r]);
    byID("rush-full").hidden = zero > 80; // it would stand on the zero
    fillTank(byID("rush-tank"), r, zero);
    pairs(byID("rush-numbers"), [
      [t("rush.accepted"), integer(r.accepted), left < 0 ? "bad" : ""],
      [t("rush.refused"), integer(r.refused)],
      [t("rush.failed"), integer(r.failed), r.failed ? "warn" : ""],
      [t("rush.rate"), number(r.orders_per_second)],
      [t("rush.p50"), milliseconds(r.p50_ms)],
      [t("rush.p99"), milliseconds(r.p99_ms)],
      [t("rush.elapsed"), milliseconds(r.elapsed_ms)],
    ]);
  }

  // drawSentence says in one sentence what happens, or what has happened, and offers the
  // same rush with a strategy that does the opposite. After an oversell, that is what most
  // visitors want next.
  drawSentence() {
    const line = byID("rush-sentence");
    const r = this.run;
    const text = r ? sentence(r) : "";
    const other = r && r.state === "ended" ? this.opposite(r) : "";
    if (line.dataset.shown === text + other) return; // screen readers hear it once
    line.dataset.shown = text + other;
    const cure = Boolean(other) && r.oversold > 0;
    byID("rush-start").classList.toggle("primary", !cure);
    line.classList.toggle("bad", Boolean(r) && r.state === "ended" && r.oversold > 0);
    line.classList.toggle("good", Boolean(r) && r.state === "ended" && r.oversold === 0);
    line.replaceChildren(text);
    if (other) {
      const again = make("button", { type: "button", class: cure ? "primary" : "quiet" }, t("rush.again", { strategy: other }));
      again.addEventListener("click", () => this.start(other));
      line.append(" ", again);
    }
  }

  // opposite returns the strategy that shows the difference to a run, or "".
  opposite(r) {
    const other = r.oversold > 0 ? "lua" : "none";
    return other !== r.strategy && this.settings.strategies.includes(other) ? other : "";
  }

  drawRuns() {
    const box = byID("rush-runs");
    if (!this.runs.length) {
      box.replaceChildren();
      return;
    }
    const zero = below(this.runs); // all runs have the same scale
    const list = make("ol", { class: "runs" }, ...this.runs.map((r) => this.drawRun(r, zero)));
    box.replaceChildren(make("h3", {}, t("rush.runs")), list);
  }

  drawRun(r, zero) {
    const over = r.oversold > 0;
    const result = r.state === "failed" ? t("rush.run.failed")
      : over ? t("rush.run.oversold", { n: r.oversold })
      : r.state === "stopped" ? t("rush.run.stopped")
      : r.sold === r.units ? t("rush.run.exact") : t("rush.run.left", { n: r.units - r.sold });
    const tank = make("div", { class: "tank small", role: "img" }, make("div", { class: "below" }), make("div", { class: "above" }), make("div", { class: "zero" }));
    fillTank(tank, r, zero);
    return make("li", { class: over ? "bad" : "" },
      make("p", { class: "run-head" }, make("code", {}, r.strategy), make("strong", { class: over ? "bad" : r.state === "ended" ? "good" : "" }, result)),
      tank,
      make("p", { class: "muted small" }, t("rush.run.settings", r)),
      make("dl", { class: "mini" },
        ...[[t("rush.run.sold"), integer(r.sold)], [t("rush.run.rate"), number(r.orders_per_second)], [t("rush.run.p99"), milliseconds(r.p99_ms)]]
          .map(([term, value]) => make("div", {}, make("dt", {}, term), make("dd", {}, value)))));
  }
}

// sentence says what a rush does or did.
function sentence(r) {
  switch (r.state) {
    case "preparing":
      return t("rush.preparing", r);
    case "running":
      return t("rush.running", r);
    case "failed":
      return t("rush.failedRun", r);
    case "stopped":
      return t("rush.stopped", r);
  }
  if (r.oversold > 0) return t("rush.oversold", r);
  return t(r.sold >= r.units ? "rush.exact" : "rush.partly", { ...r, available: r.units - r.sold });
}

// below returns how many per cent of a bar lie below zero, so that all of the runs fit.
function below(runs) {
  const most = Math.max(0, ...runs.map((r) => r.sold / r.units - 1)); // oversold, in multiples of the units
  return Math.min(maxBelow, Math.max(minBelow, (100 * most) / (1 + most)));
}

// fillTank draws the units left to the right of zero, and those sold twice to its left,
// on the same scale.
function fillTank(tank, r, zero) {
  const left = r.units - r.sold;
  tank.style.setProperty("--zero", zero + "%");
  const [under, over] = tank.children;
  over.style.width = ((100 - zero) * Math.max(0, left)) / r.units + "%";
  under.style.width = Math.min(zero, ((100 - zero) * Math.max(0, -left)) / r.units) + "%";
  const label = left < 0 ? t("rush.tank.below", { oversold: -left }) : t("rush.tank.left", { left, units: r.units });
  if (tank.getAttribute("aria-label") !== label) tank.setAttribute("aria-label", label);
}
