// The table of stock, and the alarm when more was sold than there is.
import { call } from "./api.js";
import { byID, make, setText } from "./dom.js";
import { integer, t } from "./i18n.js";

// The columns after the SKU. gate says that a column needs a gate.
const columns = [
  { key: "total" },
  { key: "gate", gate: true, value: (r) => r.gate },
  { key: "inFlight", gate: true, value: (r) => r.in_flight },
  { key: "ledger" },
  { key: "sold" },
  { key: "oversold" },
  { key: "drift" },
];
const maxAlarms = 3; // SKUs that the alarm names
const searchPause = 250; // milliseconds after the last key

export class Stock {
  // reopen is called when the stream must show other SKUs.
  constructor(reopen) {
    this.reopen = reopen;
    this.page = null;
    this.rows = new Map(); // the elements, by SKU
    this.hasGate = true;
    this.before = new Map(); // the latest counts, by SKU
    this.prefix = "";
    this.from = "";
    byID("stock-search").addEventListener("submit", (e) => {
      e.preventDefault();
      this.search();
    });
    byID("stock-sku").addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.search(), searchPause);
    });
    byID("stock-first").addEventListener("click", () => this.turn(""));
    byID("stock-next").addEventListener("click", () => this.turn(this.page.next));
  }

  // available returns a SKU of the page that has units left, or "".
  available() {
    return this.page?.rows.find((r) => r.ledger > 0)?.sku ?? "";
  }

  // query returns the parameters of the stream.
  query() {
    const q = new URLSearchParams();
    if (this.prefix) q.set("sku", this.prefix);
    if (this.from) q.set("from", this.from);
    return q.size ? "?" + q : "";
  }

  search() {
    clearTimeout(this.timer);
    const prefix = byID("stock-sku").value.trim().replace(/[^A-Za-z0-9._:-]/g, "").replace(/^[._:-]+/, "");
    if (prefix === this.prefix) return;
    this.prefix = prefix;
    this.turn("");
  }

  turn(from) {
    this.from = from;
    this.reopen();
  }

  useService(service) {
    if (this.hasGate === Boolean(service.gate) && this.head) return;
    this.hasGate = Boolean(service.gate);
    this.draw();
  }

  show(page) {
    if (page.sku !== this.prefix || page.from !== this.from) return; // of the view before
    if (page.failed && this.page) {
      this.failed = true;
      page = { ...this.page };
    } else {
      this.failed = page.failed;
    }
    this.page = page;
    this.drawRows();
  }

  // draw draws everything again, in the language of the page.
  draw() {
    const heads = [["sku", "sku"], ["level", "level"], ...this.columns().map((c) => [c.key, "number"]), ["audit", "unseen"]];
    this.head = make("tr", {}, ...heads.map(([key, name]) => make("th", { scope: "col", class: name === "unseen" ? "" : name },
      name === "unseen" ? make("span", { class: "unseen" }, t("stock.audit")) : t("stock." + key))));
    byID("stock").tHead.replaceChildren(this.head);
    this.rows.clear();
    byID("stock").tBodies[0].replaceChildren();
    this.drawRows();
  }

  columns() {
    return columns.filter((c) => this.hasGate || !c.gate);
  }

  drawRows() {
    if (!this.page || !this.head) return;
    const body = byID("stock").tBodies[0];
    const shown = new Set();
    this.page.rows.forEach((r, i) => {
      shown.add(r.sku);
      let row = this.rows.get(r.sku);
      if (!row) {
        row = this.newRow(r);
        this.rows.set(r.sku, row);
      }
      if (body.children[i] !== row.element) body.insertBefore(row.element, body.children[i] ?? null);
      this.fillRow(row, r);
    });
    for (const [sku, row] of this.rows) {
      if (shown.has(sku)) continue;
      row.element.remove();
      this.rows.delete(sku);
      this.before.delete(sku);
    }
    setText(byID("stock-failed"), this.failed ? t("stock.failed") : "");
    setText(byID("stock-empty"), shown.size ? "" : this.prefix ? t("stock.noMatch", { sku: this.prefix }) : t("stock.none"));
    byID("stock-pager").hidden = !this.page.next && !this.from;
    byID("stock-first").disabled = !this.from;
    byID("stock-next").disabled = !this.page.next;
    this.drawAlarm();
  }

  newRow(r) {
    const cells = {};
    const bar = make("div", { class: "bar", role: "img" }, make("i", { class: "left" }), make("i", { class: "flight" }));
    const audit = make("button", { type: "button", class: "quiet", "aria-label": t("stock.auditOf", { sku: r.sku }) }, t("stock.audit"));
    audit.addEventListener("click", () => this.audit(r.sku));
    const element = make("tr", {},
      make("th", { scope: "row" }, make("span", { class: "sku" }, r.sku), make("span", { class: "kind" }, t("stock." + r.kind))),
      make("td", { class: "level" }, bar),
      ...this.columns().map((c) => (cells[c.key] = make("td", { class: "number", "data-label": t("stock." + c.key) }))),
      make("td", { class: "action" }, audit));
    return { element, cells, bar };
  }

  fillRow(row, r) {
    for (const c of this.columns()) {
      const value = c.value ? c.value(r) : r[c.key];
      setText(row.cells[c.key], value === null ? t("stock.unfilled") : integer(value));
    }
    row.element.classList.toggle("oversold", r.oversold > 0);
    row.cells.oversold.classList.toggle("bad", r.oversold > 0);
    row.cells.ledger.classList.toggle("bad", r.ledger < 0);
    row.cells.gate?.classList.toggle("bad", r.gate < 0);
    // Under load, gate and ledger are read at different moments: a drift counts only if
    // nothing has moved.
    const before = this.before.get(r.sku);
    const still = before && before.sold === r.sold && before.gate === r.gate && before.in_flight === r.in_flight;
    row.cells.drift.classList.toggle("warn", r.drift !== 0 && Boolean(still));
    row.cells.drift.classList.toggle("faint", r.drift !== 0 && !still);
    this.before.set(r.sku, r);

    const flight = Math.max(0, r.in_flight ?? 0);
    const left = Math.max(0, r.total - r.sold - flight);
    row.bar.children[0].style.width = (100 * left) / Math.max(1, r.total) + "%";
    row.bar.children[1].style.width = (100 * Math.min(flight, r.total)) / Math.max(1, r.total) + "%";
    const label = t("stock.level.text", { sold: r.sold, total: r.total, flight });
    if (row.bar.getAttribute("aria-label") !== label) row.bar.setAttribute("aria-label", label);
  }

  // drawAlarm says what was oversold. It is the first thing on the page.
  drawAlarm() {
    const over = this.page.rows.filter((r) => r.oversold > 0).sort((a, b) => b.oversold - a.oversold);
    const alarm = byID("alarm");
    if (!over.length) {
      alarm.replaceChildren();
      return;
    }
    if (!alarm.firstChild) alarm.append(make("p", { class: "alarm-head" }), make("p", {}));
    const units = over.reduce((sum, r) => sum + r.oversold, 0);
    setText(alarm.children[0], t("alarm.head", { n: units }));
    const skus = over.slice(0, maxAlarms).map((r) => t("alarm.sku", r));
    if (over.length > maxAlarms) skus.push(t("alarm.more", { n: over.length - maxAlarms }));
    setText(alarm.children[1], skus.join(" · "));
  }

  async audit(sku) {
    const line = byID("audit");
    line.className = "sentence";
    setText(line, t("audit.running", { sku }));
    const { status, value } = await call("GET", "../stock/" + encodeURIComponent(sku) + "/audit");
    if (status !== 200) {
      setText(line, t("audit.failed", { sku, detail: value.detail ?? t("order.unreachable") }));
      return;
    }
    line.classList.toggle("bad", value.oversold > 0);
    setText(line, t(value.oversold > 0 ? "audit.oversold" : value.drift !== 0 ? "audit.drift" : "audit.clean", value));
  }
}
