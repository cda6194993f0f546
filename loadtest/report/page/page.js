// The switches, the legend, and the figures that appear under the pointer. The drawings
// themselves are part of the document.
"use strict";
(() => {
  const html = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const data = JSON.parse(document.getElementById("data").textContent);
  const remember = (name, value) => {
    try {
      localStorage.setItem("holdfast-" + name, value);
    } catch {
      // Storage is switched off: the choice lasts as long as the page.
    }
  };
  const press = (buttons, pressed) => buttons.forEach((b) => b.setAttribute("aria-pressed", String(pressed(b))));

  // Language and colours.
  const languages = all("[data-language]");
  const speak = (language) => {
    html.lang = language;
    press(languages, (b) => b.dataset.language === language);
    document.title = document.querySelector("h1").innerText.trim() + " · Holdfast";
  };
  const themes = all("[data-theme-choice]");
  const paint = (theme) => {
    if (theme === "auto") delete html.dataset.theme;
    else html.dataset.theme = theme;
    press(themes, (b) => b.dataset.themeChoice === theme);
  };
  languages.forEach((b) => b.addEventListener("click", () => {
    speak(b.dataset.language);
    remember("language", b.dataset.language === "en" ? "en" : "zh");
  }));
  themes.forEach((b) => b.addEventListener("click", () => {
    paint(b.dataset.themeChoice);
    remember("theme", b.dataset.themeChoice);
  }));
  speak(html.lang);
  paint(html.dataset.theme || "auto");

  // The legend hides strategies everywhere, and points at their lines.
  const entries = all("[data-toggle]");
  const everything = document.querySelector(".legend .all");
  const hidden = new Set();
  const toggle = () => {
    all("[data-strategy]").forEach((e) => e.classList.toggle("off", hidden.has(e.dataset.strategy)));
    press(entries, (b) => !hidden.has(b.dataset.toggle));
    everything.hidden = hidden.size === 0;
  };
  const point = (strategy) => {
    const curves = document.querySelector(".curves");
    if (!curves) return;
    curves.classList.toggle("faded", strategy !== null && !hidden.has(strategy));
    all("[data-strategy]", curves).forEach((e) => e.classList.toggle("strong", e.dataset.strategy === strategy));
  };
  entries.forEach((b) => {
    const strategy = b.dataset.toggle;
    b.addEventListener("click", () => {
      if (!hidden.delete(strategy)) hidden.add(strategy);
      toggle();
      point(null);
    });
    b.addEventListener("pointerenter", () => point(strategy));
    b.addEventListener("pointerleave", () => point(null));
    b.addEventListener("focus", () => point(strategy));
    b.addEventListener("blur", () => point(null));
  });
  all(".curves .tag").forEach((tag) => {
    tag.addEventListener("pointerenter", () => point(tag.dataset.strategy));
    tag.addEventListener("pointerleave", () => point(null));
  });
  if (everything) everything.addEventListener("click", () => {
    hidden.clear();
    toggle();
    entries[0].focus();
  });

  const millis = (n) => (n < 999.995 ? n.toFixed(2) : Math.round(n).toLocaleString("en")) + " ms";
  const share = (plot, event) => {
    const box = plot.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  const cross = (line, at) => {
    line.hidden = false;
    line.style.left = at * 100 + "%";
  };

  // Stock over time: the units left at the time under the pointer.
  all("[data-panel]").forEach((plot) => {
    const series = data.stock[plot.dataset.panel];
    const reading = plot.parentElement.querySelector(".reading");
    const line = plot.appendChild(Object.assign(document.createElement("i"), { className: "cross", hidden: true }));
    const last = series.seconds[series.seconds.length - 1];
    plot.addEventListener("pointermove", (event) => {
      const at = share(plot, event);
      let i = series.seconds.findIndex((s) => s > at * last) - 1;
      if (i < 0) i = at > 0 ? series.seconds.length - 1 : 0;
      cross(line, at);
      const left = series.left[i].toLocaleString("en").replace("-", "−");
      reading.textContent = `${(at * last).toFixed(2)} s: ${data.left[html.lang].replace("{1}", left)}`;
      reading.classList.toggle("alarm", series.left[i] < 0);
    });
    plot.addEventListener("pointerleave", () => {
      line.hidden = true;
      reading.textContent = "";
    });
  });

  // Latency: all visible strategies at the percentile under the pointer.
  const plot = document.getElementById("latency-plot");
  if (plot) {
    const line = plot.querySelector(".cross");
    const readout = plot.querySelector(".readout");
    const stops = data.latency;
    let current = -1;
    const show = (i) => {
      current = i;
      const stop = stops[i];
      const title = document.createElement("b");
      title.textContent = stop.name;
      const rows = stop.millis
        .map((value, strategy) => ({ value, strategy }))
        .filter(({ value, strategy }) => value !== null && !hidden.has(String(strategy)))
        .sort((a, b) => b.value - a.value)
        .map(({ value, strategy }) => {
          const row = document.createElement("div");
          row.append(...document.querySelector(`[data-toggle="${strategy}"]`).cloneNode(true).childNodes);
          row.append(Object.assign(document.createElement("span"), { textContent: millis(value) }));
          return row;
        });
      readout.replaceChildren(title, ...rows);
      readout.hidden = false;
      cross(line, stop.at);
      readout.style.left = stop.at > 0.5 ? "auto" : `calc(${stop.at * 100}% + .8rem)`;
      readout.style.right = stop.at > 0.5 ? `calc(${100 - stop.at * 100}% + .8rem)` : "auto";
    };
    const hide = () => {
      current = -1;
      line.hidden = readout.hidden = true;
    };
    plot.addEventListener("pointermove", (event) => {
      const at = share(plot, event);
      let nearest = 0;
      stops.forEach((stop, i) => {
        if (Math.abs(stop.at - at) < Math.abs(stops[nearest].at - at)) nearest = i;
      });
      if (nearest !== current) show(nearest);
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step) return;
      event.preventDefault();
      show(Math.min(stops.length - 1, Math.max(0, current < 0 ? 0 : current + step)));
    });
  }

  // Paper shows the tables, too.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details:not([open])");
    opened.forEach((d) => { d.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach((d) => { d.open = false; }));
})();
