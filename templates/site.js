"use strict";
// Filters rows by lists and words. What is chosen stands behind the # of the address, so that it can be linked.
(() => {
  const fields = [...document.querySelectorAll("[data-filter]")];
  const rows = [...document.querySelectorAll("#rows tbody tr")];
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const chosen = () => fields.filter((field) => field.value.trim()).map((field) => [field.dataset.filter, field.value]);
  const fits = (row, [name, value]) => name === "words"
    ? value.toLowerCase().split(" ").every((word) => texts.get(row).includes(word))
    : row.getAttribute("data-" + name.replace(" ", "-")) === value;

  function show() {
    const wanted = chosen();
    rows.forEach((row) => { row.hidden = !wanted.every((one) => fits(row, one)); });
    const count = rows.filter((row) => !row.hidden).length;
    document.getElementById("shown").textContent = `${count} of ${rows.length} rows`;
    document.getElementById("none").hidden = count > 0;
  }
  function restore() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    for (const field of fields) {
      field.value = wanted.get(field.dataset.filter) ?? "";
      if (field.selectedIndex === -1) field.selectedIndex = 0; // what a row of another day had
    }
    show();
  }
  function keep() {
    history.replaceState(null, "", "#" + new URLSearchParams(chosen()));
    show();
  }
  for (const event of ["input", "change"]) document.getElementById("bar").addEventListener(event, keep);
  document.getElementById("clear").addEventListener("click", () => { fields.forEach((field) => { field.value = ""; }); keep(); });
  addEventListener("hashchange", () => { if (!document.getElementById(location.hash.slice(1))) restore(); });
  document.getElementById("bar").hidden = false;
  restore();
})();
