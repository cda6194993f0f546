// The life of one order.
import { call } from "./api.js";
import { byID, make, setText } from "./dom.js";
import { milliseconds, moment, t, time } from "./i18n.js";

const good = ["paid"];
const bad = ["refused", "void", "expired", "cancelled"];

export class OrderLookup {
  constructor() {
    this.answer = null; // the latest {status, value}
    this.sku = ""; // can be ordered here
    byID("order-form").addEventListener("submit", (e) => {
      e.preventDefault();
      this.look(byID("order-id").value.trim());
    });
    byID("order-place").addEventListener("click", () => this.place());
  }

  // offer lets a visitor who has no order ID order one unit of a SKU. No SKU: it does not.
  offer(sku) {
    if (sku === this.sku) return;
    this.sku = sku;
    this.draw();
  }

  async look(id) {
    this.show(await call("GET", "../orders/" + encodeURIComponent(id)));
  }

  async place() {
    const order = { buyer_id: "console", lines: [{ sku: this.sku, quantity: 1 }] };
    const once = { "Idempotency-Key": newKey() }; // browsers repeat a call whose answer was lost
    let answer = await call("POST", "../orders", order, once);
    if (answer.status === 0) answer = await call("POST", "../orders", order, once);
    if (answer.status !== 201 && answer.status !== 202) {
      this.show(answer);
      return;
    }
    byID("order-id").value = answer.value.id;
    await this.look(answer.value.id);
  }

  show(answer) {
    this.answer = answer;
    this.draw();
  }

  draw() {
    byID("order-try").hidden = !this.sku;
    setText(byID("order-place"), t("order.place", { sku: this.sku }));
    setText(byID("order-error"), this.error());
    byID("order").replaceChildren(...(this.answer?.status === 200 ? life(this.answer.value) : []));
  }

  error() {
    if (!this.answer || this.answer.status === 200) return "";
    const texts = { 0: "order.unreachable", 404: "order.unknown" };
    return t(texts[this.answer.status] ?? "order.refused", { detail: this.answer.value.detail });
  }
}

// newKey returns a random key. crypto.randomUUID needs HTTPS, except on loopback.
function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");
}

// life returns the elements that show an order.
function life(order) {
  const steps = order.history.length ? order.history : [{ status: order.status, at: order.created_at }];
  const line = make("ol", { class: "life" }, ...steps.map((step, i) => {
    const at = new Date(step.at);
    const since = i ? t("order.after", { duration: duration(at - new Date(steps[i - 1].at)) }) : moment(at);
    const kind = good.includes(step.status) ? "good" : bad.includes(step.status) ? "bad" : "";
    return make("li", { class: kind }, make("strong", {}, t("status." + step.status)),
      make("time", { dateTime: step.at }, time(at)), make("span", { class: "muted small" }, since));
  }));
  const facts = [
    [t("order.buyer"), order.buyer_id],
    [t("order.lines"), order.lines.map((l) => l.quantity + " × " + l.sku).join(", ")],
    [t("order.strategy"), order.strategy],
  ];
  if (order.payment_id) facts.push([t("order.payment"), order.payment_id]);
  if (order.expires_at && order.status === "pending") facts.push([t("order.expires"), moment(new Date(order.expires_at))]);
  return [line, make("dl", { class: "list" }, ...facts.map(([term, text]) => make("div", {}, make("dt", {}, term), make("dd", {}, text))))];
}

function duration(ms) {
  if (ms < 60000) return milliseconds(ms);
  const minutes = Math.round(ms / 60000);
  return minutes < 120 ? minutes + " min" : Math.round(minutes / 60) + " h";
}
