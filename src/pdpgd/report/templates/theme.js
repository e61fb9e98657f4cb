"use strict";
// Light or dark theme: that of the system, until the reader chooses one.
const Theme = (() => {
  const root = document.documentElement;
  const listeners = [];
  // Okabe and Ito's palette, which color-blind readers can distinguish; on dark, lighter variants of it.
  const palettes = {
    light: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#000000", "#7A5195"],
    dark: ["#56B4E9", "#E69F00", "#2FC79A", "#E29CC4", "#F0E442", "#4D9BD6", "#FFFFFF", "#B79AD8"],
  };
  const named = {
    light: { text: "#1b1f24", grid: "#dfe3e8", line: "#8b949e", back: "#ffffff" },
    dark: { text: "#e7eaee", grid: "#313943", line: "#7d8793", back: "#1d2229" },
  };
  const remembered = () => { try { return localStorage.getItem("pdpgd-theme"); } catch { return null; } };
  const remember = (name) => { try { localStorage.setItem("pdpgd-theme", name); } catch { /* a file may have no storage */ } };
  const asked = matchMedia("(prefers-color-scheme: dark)");
  let current = remembered() || (asked.matches ? "dark" : "light");

  function apply(name) {
    current = name;
    root.dataset.theme = name;
    const button = document.getElementById("theme");
    if (button) {
      button.textContent = name === "dark" ? "Light" : "Dark";
      button.setAttribute("aria-pressed", String(name === "dark"));
      button.setAttribute("aria-label", `Switch to ${name === "dark" ? "light" : "dark"} colors`);
    }
    listeners.forEach((listener) => listener());
  }

  function color(code) {
    const [name, opacity] = code.slice(1).split(":");
    const palette = palettes[current];
    const found = /^\d+$/.test(name) ? palette[Number(name) % palette.length] : named[current][name];
    if (opacity === undefined) return found;
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(found.slice(at, at + 2), 16));
    return `rgba(${red},${green},${blue},${opacity})`;
  }

  // Copy a chart with every "@..." replaced by a color of the theme; only keys that hold colors are examined.
  function resolved(value, key = "") {
    if (Array.isArray(value)) return value.map((each) => (typeof each === "object" ? resolved(each) : each));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, resolved(each, name)]));
    }
    return /color$/.test(key) && typeof value === "string" && value[0] === "@" ? color(value) : value;
  }

  apply(current);
  asked.addEventListener("change", () => { if (!remembered()) apply(asked.matches ? "dark" : "light"); });
  document.getElementById("theme").addEventListener("click", () => {
    const next = current === "dark" ? "light" : "dark";
    remember(next);
    apply(next);
  });
  return { apply, color, resolved, get current() { return current; }, changed: (listener) => listeners.push(listener) };
})();
