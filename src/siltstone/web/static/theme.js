// Dark or light: as the system says, until somebody chooses. Loaded before the page is drawn, so that it never flashes.
"use strict";
(() => {
  const root = document.documentElement;
  // Buttons that only scripts can serve are shown where there are scripts.
  root.dataset.scripts = "on";
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("siltstone-theme"); } catch { /* storage is not allowed */ }
  const isDark = () => (chosen ? chosen === "dark" : system.matches);
  const apply = () => {
    if (chosen) root.dataset.theme = chosen;
    const button = document.getElementById("theme");
    if (!button) return;
    button.hidden = false;
    button.textContent = isDark() ? "Switch to light" : "Switch to dark";
  };
  apply();
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      chosen = isDark() ? "light" : "dark";
      try { localStorage.setItem("siltstone-theme", chosen); } catch { /* it holds for this page */ }
      apply();
    });
  });
  system.addEventListener("change", apply);
})();
