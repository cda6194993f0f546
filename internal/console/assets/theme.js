// Sets the theme before the page is drawn, so that it does not flash. The page itself
// imports nothing from here: app.js finds it as window.theme.
(() => {
  "use strict";
  const key = "holdfast-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const listeners = [];

  const read = () => {
    try {
      return localStorage.getItem(key);
    } catch {
      return null; // storage is turned off
    }
  };
  let chosen = read();

  const apply = () => {
    if (chosen === "light" || chosen === "dark") {
      document.documentElement.dataset.theme = chosen;
    } else {
      delete document.documentElement.dataset.theme;
    }
    for (const listener of listeners) listener();
  };
  system.addEventListener("change", apply);
  apply();

  window.theme = {
    // dark reports whether the page is dark now.
    dark: () => (chosen ? chosen === "dark" : system.matches),
    // toggle changes between light and dark, and remembers it.
    toggle() {
      chosen = this.dark() ? "light" : "dark";
      try {
        localStorage.setItem(key, chosen);
      } catch {
        // It holds until the page is closed.
      }
      apply();
    },
    onChange: (listener) => listeners.push(listener),
  };
})();
