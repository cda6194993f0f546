// The language of the page. All texts are in text/, one file for each language.
import en from "./text/en.js";
import zh from "./text/zh.js";

const texts = { en, zh };
const key = "holdfast-language";
const listeners = [];
let language = stored() ?? (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");

function stored() {
  try {
    const found = localStorage.getItem(key);
    return found in texts ? found : null;
  } catch {
    return null; // storage is turned off
  }
}

// current returns the language: en or zh.
export function current() {
  return language;
}

// t returns a text. {name} stands for a value, and {name?one|many} for one of two words,
// by whether the value is 1.
export function t(name, values = {}) {
  const text = texts[language][name] ?? name;
  return text
    .replace(/\{(\w+)\?([^|}]*)\|([^}]*)\}/g, (_, n, one, many) => (values[n] === 1 ? one : many))
    .replace(/\{(\w+)\}/g, (_, n) => (typeof values[n] === "number" ? integer(values[n]) : (values[n] ?? "")));
}

// known reports whether there is such a text.
export function known(name) {
  return name in texts[language];
}

// translate fills in the texts of the elements with data-text, and the placeholders of
// those with data-placeholder.
export function translate() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const e of document.querySelectorAll("[data-text]")) e.textContent = t(e.dataset.text);
  for (const e of document.querySelectorAll("[data-placeholder]")) e.placeholder = t(e.dataset.placeholder);
}

// toggle changes the language, and remembers it.
export function toggle() {
  language = language === "en" ? "zh" : "en";
  try {
    localStorage.setItem(key, language);
  } catch {
    // It holds until the page is closed.
  }
  translate();
  for (const listener of listeners) listener();
}

// onLanguage calls the listener after each change of the language.
export function onLanguage(listener) {
  listeners.push(listener);
}

const formats = {};

function format(options) {
  const name = language + JSON.stringify(options);
  return (formats[name] ??= new Intl.NumberFormat(language === "zh" ? "zh-CN" : "en", options));
}

// integer writes a whole number; below zero with a minus sign, not with a hyphen.
export function integer(n) {
  return format({ maximumFractionDigits: 0 }).format(n).replace("-", "−");
}

// number writes a number with about three digits.
export function number(n) {
  const digits = Math.abs(n) >= 100 ? 0 : Math.abs(n) >= 10 ? 1 : 2;
  return format({ maximumFractionDigits: digits }).format(n).replace("-", "−");
}

// milliseconds writes a duration.
export function milliseconds(ms) {
  return ms >= 1000 ? number(ms / 1000) + " s" : number(ms) + " ms";
}

// time writes the time of day, with milliseconds.
export function time(date) {
  return date.toLocaleTimeString(language === "zh" ? "zh-CN" : "en-GB", {
    hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3,
  });
}

// moment writes a date with its time.
export function moment(date) {
  return date.toLocaleString(language === "zh" ? "zh-CN" : "en-GB", { dateStyle: "medium", timeStyle: "medium" });
}
