"use strict";
(() => {
  const tip = document.getElementById("tip");
  const show = (event) => {
    const mark = event.target.closest && event.target.closest(".mark");
    if (!mark) { tip.hidden = true; return; }
    const title = mark.querySelector("title");
    if (title) { mark.dataset.tip = title.textContent; title.remove(); }
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = Math.max(4, event.clientY - box.height - 12) + "px";
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  document.querySelectorAll("[data-toggle]").forEach((button) => button.addEventListener("click", () => {
    const off = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!off));
    button.closest("figure").querySelectorAll("[data-series]").forEach((mark) => {
      if (mark.dataset.series === button.dataset.toggle) mark.classList.toggle("off", off);
    });
  }));

  const theme = document.getElementById("theme");
  const dark = () => document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.hidden = false;
  theme.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; name(); });
  name();
})();
