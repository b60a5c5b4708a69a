"use strict";
// Draws a chart when it comes into view, filters by GPU, benchmark and use case, and switches the theme.
(() => {
  const content = JSON.parse(document.getElementById("charts").textContent);
  const options = { renderer: "svg", actions: false, logLevel: 1 }; // errors only
  const smallMultiple = 270; // pixels
  const filters = ["device", "benchmark", "use-case"].map((name) => document.getElementById("filter-" + name));

  const chosen = () => Object.fromEntries(filters.map((select) => [select.dataset.field, select.value]));
  const fits = (values) => Object.entries(chosen()).every(([field, value]) => !value || String(values[field]) === value);

  async function draw(element) {
    const { chart, place } = element.dataset;
    const [looks, points] = content.data[place][chart];
    const specification = structuredClone(content.specifications[looks]);
    specification.datasets = { [chart]: points };
    if (specification.columns) {
      specification.columns = Math.max(1, Math.floor(element.clientWidth / smallMultiple));
    }
    element.replaceChildren();
    try {
      await vegaEmbed(element, specification, options);
      element.dataset.drawn = "yes";
    } catch (error) {
      element.textContent = "This chart cannot be drawn: " + error.message;
      element.dataset.drawn = "failed";
    }
  }

  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watcher.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "300px" });
  const charts = [...document.querySelectorAll("[data-chart]")];
  charts.forEach((element) => watcher.observe(element));

  function filter() {
    for (const element of document.querySelectorAll("[data-device]")) element.hidden = !fits(element.dataset);
    for (const group of document.querySelectorAll("[data-group]")) {
      group.hidden = ![...group.querySelectorAll("[data-device]")].some((element) => !element.hidden);
    }
    const places = [...document.querySelectorAll(".place")];
    const visible = places.filter((place) => !place.hidden).length;
    document.getElementById("shown").textContent =
      visible === places.length ? "" : `${visible} of ${places.length} sections are shown.`;
  }
  // A link to a folded section opens the section.
  const open = () => { const target = document.querySelector(location.hash || "nothing"); if (target) target.open = true; };
  addEventListener("hashchange", open);
  open();
  filters.forEach((select) => select.addEventListener("change", filter));

  const root = document.documentElement;
  const toggle = document.getElementById("theme");
  const systemIsDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
  const isDark = () => (root.dataset.theme || (systemIsDark() ? "dark" : "light")) === "dark";
  const name = () => { toggle.textContent = isDark() ? "Light" : "Dark"; toggle.setAttribute("aria-pressed", isDark()); };
  toggle.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  name();
  document.getElementById("bar").hidden = false;
  document.getElementById("no-script").hidden = true;

  // Paper has no scrolling: everything is drawn and opened before it is printed.
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((element) => { element.open = true; });
    charts.filter((element) => !element.dataset.drawn).forEach(draw);
  });
})();
