
"use strict";
// Sorts tables by a heading, hides rows and columns by name, and opens the seeds of a row.
const all = (selector, where = document) => [...where.querySelectorAll(selector)];
const button = (name) => Object.assign(document.createElement("button"), { type: "button", className: name });

for (const table of all("table.grid")) {
  const heads = all("thead th", table);
  heads.forEach((head, column) => {
    const sort = button("sort");
    sort.append(...head.childNodes);
    head.append(sort);
    sort.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const up = now ? now === "descending" : !head.classList.contains("n");
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const keyed = all("tbody", table).map((group) => [key(group.rows[0].cells[column]), group]);
      keyed.sort(([one], [two]) => order(one, two, up));
      table.append(...keyed.map(([, group]) => group));
    });
  });
}

function key(cell) {
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  const text = cell.textContent.trim();
  return ["–", "not defined"].includes(text) ? null : text;
}

// What has no value comes last in either direction.
function order(one, two, up) {
  if (one === null || two === null) return (one === null) - (two === null);
  const numbers = typeof one === "number" && typeof two === "number";
  const found = numbers ? one - two : String(one).localeCompare(String(two), "en", { numeric: true });
  return up ? found : -found;
}

const opened = [];
for (const group of all("tbody")) {
  const seeds = all("tr.seed", group);
  if (!seeds.length) continue;
  const head = group.rows[0].cells[0];
  const open = button("open");
  open.setAttribute("aria-label", `Seeds of ${group.dataset.run ?? head.textContent}`);
  head.prepend(open);
  const show = (yes) => {
    open.setAttribute("aria-expanded", yes);
    seeds.forEach((row) => (row.hidden = !yes));
  };
  open.addEventListener("click", () => show(open.getAttribute("aria-expanded") !== "true"));
  opened.push(show);
  show(false);
}

const names = [...new Set(all("[data-run]").flatMap((each) => each.dataset.run.split("\n")))];
const form = document.querySelector("form.filter");
if (form) {
  const { names: field, seeds } = form.elements;
  const output = form.querySelector("output");
  const filter = () => {
    const words = field.value.toLowerCase().split(",").map((word) => word.trim()).filter(Boolean);
    const wanted = (name) => !words.length || words.some((word) => name.toLowerCase().includes(word));
    all("[data-run]").forEach((each) => (each.hidden = !each.dataset.run.split("\n").some(wanted)));
    output.value = words.length ? `${names.filter(wanted).length} of ${names.length} shown` : "";
  };
  form.hidden = names.length < 2 && !opened.length;
  form.addEventListener("submit", (event) => event.preventDefault());
  field.addEventListener("input", filter);
  seeds.hidden = !opened.length;
  seeds.addEventListener("click", () => {
    const yes = seeds.getAttribute("aria-pressed") !== "true";
    seeds.setAttribute("aria-pressed", yes);
    seeds.textContent = yes ? "Hide seeds" : "Show seeds";
    opened.forEach((show) => show(yes));
  });
}

// What is wider than the window scrolls, so the keyboard must reach it.
const reach = new ResizeObserver(() => all(".scroll").forEach((each) => {
  if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
  else each.removeAttribute("tabindex");
}));
all(".scroll, .scroll > *").forEach((each) => reach.observe(each));
