// What runs here: the strategy, the stores, the instances.
import { byID, make, pairs, setText } from "./dom.js";
import { known, t } from "./i18n.js";

export class Facts {
  constructor() {
    this.service = null;
    this.jobs = null;
  }

  show(service) {
    this.service = service;
    this.draw();
  }

  showJobs(jobs) {
    this.jobs = jobs;
    this.drawJobs();
  }

  draw() {
    const s = this.service;
    if (!s) return;
    setText(byID("strategy-name"), s.strategy);
    setText(byID("strategy-detail"), known("strategy." + s.strategy) ? t("strategy." + s.strategy) : "");
    const badge = byID("strategy-badge");
    badge.className = "badge " + (s.sound ? "good" : s.guard ? "warn" : "bad");
    setText(badge, t(s.sound ? "facts.sound" : s.guard ? "facts.guarded" : "facts.unsound"));
    const rows = [
      [t("facts.guard"), t(s.gate ? (s.guard ? "facts.guard.on" : "facts.guard.off") : "facts.guard.none"), s.gate && !s.guard ? "warn" : ""],
      [t("facts.gate"), s.gate ? s.gate_store || t("facts.gate.inProcess") : t("facts.gate.none"), "code"],
      [t("facts.ledger"), s.ledger_store || t("facts.ledger.embedded"), "code"],
    ];
    if (s.lock) {
      const fence = t(s.fence ? "facts.fence.on" : "facts.fence.off");
      rows.push([t("facts.lock"), t("facts.lock.value", { backend: s.lock, lease: s.lease, fence }), s.fence ? "" : "warn"]);
    }
    if (s.segments) rows.push([t("facts.segments"), String(s.segments)]);
    if (s.slots) rows.push([t("facts.slots"), String(s.slots)]);
    rows.push([t("facts.instance"), instanceName(s.instance), "code"]);
    rows.push([t("facts.uptime"), this.uptime()]);
    pairs(byID("facts"), rows);
    setText(byID("version"), "Holdfast " + s.version);
    this.drawJobs();
  }

  drawUptime() {
    if (this.service) setText(byID("facts").lastElementChild.lastElementChild, this.uptime());
  }

  uptime() {
    const seconds = Math.max(0, Math.floor((Date.now() - Date.parse(this.service.started_at)) / 1000));
    const two = (n) => String(n).padStart(2, "0");
    const days = Math.floor(seconds / 86400);
    const clock = two(Math.floor(seconds / 3600) % 24) + ":" + two(Math.floor(seconds / 60) % 60) + ":" + two(seconds % 60);
    return days ? days + " d " + clock : clock;
  }

  drawJobs() {
    if (!this.jobs || !this.service) return;
    const list = byID("jobs");
    const rows = this.jobs.map((j) => {
      const here = j.holder === this.service.instance;
      const name = known("job." + j.name) ? t("job." + j.name) : j.name;
      return make("div", {}, make("dt", {}, name),
        make("dd", {}, make("code", {}, instanceName(j.holder)), ...(here ? [" ", make("span", { class: "badge" }, t("jobs.here"))] : [])));
    });
    list.replaceChildren(...(rows.length ? rows : [make("div", {}, make("dt", {}, t("jobs.none")))]));
  }
}

// instanceName returns host/pid of a name that also has a random part.
function instanceName(holder) {
  return holder.split("/").slice(0, 2).join("/");
}
