// Chooses the language and the colours before anything is drawn. The address may name
// them (?language=zh&theme=dark); otherwise the last choice is remembered.
"use strict";
(() => {
  const query = new URLSearchParams(location.search);
  const remembered = (name) => {
    try {
      return localStorage.getItem("holdfast-" + name);
    } catch {
      return null; // storage is switched off
    }
  };
  const chosen = (name) => query.get(name) || remembered(name);
  const html = document.documentElement;
  html.classList.add("js");
  html.lang = (chosen("language") || navigator.language || "en").toLowerCase().startsWith("zh") ? "zh-CN" : "en";
  const theme = chosen("theme");
  if (theme === "light" || theme === "dark") html.dataset.theme = theme;
})();
