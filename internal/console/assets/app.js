// The page: what is shown when, the connection, the language and the theme.
import { setToken, token } from "./api.js";
import { byID, setText } from "./dom.js";
import { Facts } from "./facts.js";
import { Flow } from "./flow.js";
import { current, onLanguage, t, toggle, translate } from "./i18n.js";
import { OrderLookup } from "./order.js";
import { Rush } from "./rush.js";
import { Stock } from "./stock.js";
import { Stream } from "./stream.js";

const facts = new Facts();
const flow = new Flow();
const stock = new Stock(() => stream.open());
const rush = new Rush();
const order = new OrderLookup();
let link = { state: "connecting", detail: "" };

const stream = new Stream(
  () => "stream" + stock.query(),
  (name, data) => {
    switch (name) {
      case "hello":
        facts.show(data.service);
        flow.begin(data.samples, data.resumed);
        stock.useService(data.service);
        rush.refresh();
        break;
      case "sample":
        flow.add(data);
        break;
      case "stock":
        stock.show(data);
        order.offer(facts.service.embedded ? stock.available() : "");
        break;
      case "jobs":
        facts.showJobs(data.jobs);
        break;
      case "rush":
        rush.show(data);
        break;
    }
  },
  (state, detail = "") => {
    if (state === link.state && detail === link.detail) return;
    // While it tries again, the page says that the service is unreachable, not that it connects.
    if (state === "connecting" && link.state === "unreachable") return;
    link = { state, detail };
    showLink();
  },
);

// showLink shows the state of the connection, and the sign-in form if it is needed.
function showLink() {
  const chip = byID("link");
  chip.dataset.state = link.state;
  setText(byID("link-text"), t("link." + link.state));
  const denied = link.state === "denied";
  byID("sign-in").hidden = !denied;
  if (denied) {
    byID("content").hidden = true;
    setText(byID("sign-in-error"), token() ? t("signIn.wrong", { detail: link.detail }) : "");
    setToken("");
  } else if (link.state === "live" && byID("content").hidden) {
    byID("content").hidden = false;
  }
  document.body.classList.toggle("stale", link.state === "unreachable" || link.state === "paused");
  byID("sign-out").hidden = !token();
}

function showTools() {
  document.title = t("title");
  setText(byID("language"), t("language.other"));
  byID("language").lang = current() === "en" ? "zh-CN" : "en";
  byID("language").setAttribute("aria-label", t("language.label"));
  setText(byID("theme"), t(window.theme.dark() ? "theme.light" : "theme.dark"));
}

byID("language").addEventListener("click", toggle);
byID("theme").addEventListener("click", () => window.theme.toggle());
byID("sign-out").addEventListener("click", () => {
  setToken("");
  stream.close();
  location.reload();
});
byID("sign-in-form").addEventListener("submit", (e) => {
  e.preventDefault();
  setToken(byID("token").value.trim());
  byID("token").value = "";
  stream.open();
});

window.theme.onChange(showTools);
onLanguage(() => {
  showTools();
  showLink();
  facts.draw();
  stock.draw();
  rush.draw();
  order.draw();
  flow.draw();
});

translate();
showTools();
showLink();
stream.open();
setInterval(() => facts.drawUptime(), 1000);
