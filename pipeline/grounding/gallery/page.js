"use strict";
// Cards are in the page as text; what waits for the reader is decoding pictures, and the filters.
const form = document.querySelector(".filters");
const cards = [...document.querySelectorAll(".card")];

// One entry a phrase or drop: what filters look at, and where it stands.
const rows = cards.map((card) =>
  [...card.querySelectorAll("[data-score], [data-reason]")].map((element) => ({
    element,
    caption: element.closest("details"),
    phrase: (element.querySelector(".phrase")?.textContent ?? "").toLowerCase(),
    score: element.dataset.score === undefined ? null : Number(element.dataset.score),
    reason: element.dataset.reason,
  })),
);

function number(input, otherwise) {
  return input.value === "" || Number.isNaN(input.valueAsNumber) ? otherwise : input.valueAsNumber;
}

function matcher() {
  const words = form.phrase.value.trim().toLowerCase();
  const least = number(form.least, -Infinity), most = number(form.most, Infinity);
  const scored = least !== -Infinity || most !== Infinity;
  const [kind, reason] = form.reason.value.split(" ");
  return (row) =>
    row.phrase.includes(words) &&
    (row.score === null ? !scored : row.score >= least && row.score <= most) &&
    (kind === "" ||
      (kind === "kept" && row.reason === undefined) ||
      (kind === "dropped" && row.reason !== undefined) ||
      (kind === "reason" && row.reason === reason));
}

function apply() {
  const matches = matcher();
  let images = 0, phrases = 0, dropped = 0;
  cards.forEach((card, i) => {
    const live = new Set();
    for (const row of rows[i]) {
      const match = matches(row);
      row.element.classList.toggle("faded", !match);
      if (!match) continue;
      live.add(row.caption);
      if (row.reason === undefined) phrases += 1;
      else dropped += 1;
    }
    card.hidden = live.size === 0;
    if (card.hidden) return;
    images += 1;
    const captions = [...card.querySelectorAll("details")];
    for (const caption of captions) caption.hidden = !live.has(caption);
    if (!captions.some((caption) => caption.open && !caption.hidden)) {
      captions.find((caption) => !caption.hidden).open = true;
    }
  });
  const say = (count, word) => `${count.toLocaleString("en")} ${word}`;
  const parts = [say(images, images === 1 ? "image" : "images")];
  parts.push(say(phrases, phrases === 1 ? "phrase" : "phrases"));
  if (dropped) parts.push(say(dropped, "dropped"));
  form.count.value = parts.join(", ");
  document.getElementById("nothing").hidden = images > 0;
}

function layers() {
  document.body.classList.toggle("no-masks", !form.masks.checked);
  document.body.classList.toggle("no-boxes", !form.boxes.checked);
}

let waiting;
form.addEventListener("input", () => {
  layers();
  clearTimeout(waiting);
  waiting = setTimeout(apply, 80);
});
form.addEventListener("reset", () => setTimeout(() => { layers(); apply(); }));
form.addEventListener("submit", (event) => event.preventDefault());

// Pictures and outlines are made when their card comes near, and taken away when it is far.
const near = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const drawing = isIntersecting ? JSON.parse(target.lastElementChild.textContent) : null;
      show(target.querySelector(".photo"), drawing?.photo);
      for (const image of target.querySelectorAll("[data-cutout]")) {
        show(image, drawing?.cutouts[image.dataset.cutout]);
      }
      const picture = target.querySelector("svg"), edge = picture.viewBox.baseVal.width;
      picture.replaceChildren(...(drawing?.captions ?? []).map(
        (objects, caption) => layer(drawing, objects, caption, edge),
      ));
      choose(target);
    }
  },
  { rootMargin: "1500px" },
);
function show(image, source) {
  if (source) image.src = source;
  else image.removeAttribute("src");
}
cards.forEach((card) => near.observe(card));

function svg(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Masks lie under all boxes, and these under all numbers.
function layer({ shapes, unit }, objects, caption, edge) {
  const masks = [], boxes = [], badges = [], places = [];
  for (const { number, colour, shape, box: [x, y, width, height] } of objects) {
    const of = { "data-number": number };
    if (shape !== null) {
      masks.push(svg("path", { ...of, class: `object mask c${colour}`, d: shapes[shape] }));
    }
    const place = { x, y, width, height }, wide = 13 + 7 * `${number}`.length;
    boxes.push(svg("g", { ...of, class: `object c${colour}` },
      svg("rect", { class: "halo", ...place }),
      svg("rect", { class: "box", ...place })));
    const { left, top } = badgePlace(places, x, y, wide * unit, 20 * unit, edge);
    badges.push(svg("g", { ...of, class: `object badge c${colour}`,
      transform: `translate(${left} ${top}) scale(${unit})` },
      svg("rect", { width: wide, height: 20, rx: 4 }),
      svg("text", { x: wide / 2, y: 14.5 }, number)));
  }
  return svg("g", { "data-caption": caption }, ...masks, ...boxes, ...badges);
}

// On the box's upper left corner, inside the picture, and beside a number that is there already.
function badgePlace(places, x, y, width, height, edge) {
  let left = Math.max(0, Math.min(x, edge - width)), top = Math.max(0, y - height);
  const taken = (at) => places.some((other) =>
    at < other.left + other.width && other.left < at + width &&
    top < other.top + other.height && other.top < top + height);
  const free = [left, ...places.flatMap((other) => [other.left + other.width, other.left - width])]
    .filter((at) => at >= 0 && at + width <= edge && !taken(at));
  if (free.length) left = free.reduce((a, b) => Math.abs(b - x) < Math.abs(a - x) ? b : a);
  places.push({ left, top, width, height });
  return { left, top };
}

// The open caption's objects are drawn; the one that is pointed at or focused stands out.
function choose(card) {
  const open = card.querySelector("details[open]")?.dataset.caption;
  for (const group of card.querySelectorAll("g[data-caption]")) {
    group.toggleAttribute("hidden", group.dataset.caption !== open);
  }
}
document.addEventListener("toggle", ({ target }) => {
  if (target.open) choose(target.closest(".card"));
}, true);

function light(from, on) {
  const marked = from.closest?.("[data-number]");
  const card = marked?.closest(".card");
  if (!card) return;
  card.classList.toggle("lit", on);
  const open = card.querySelector("details[open]")?.dataset.caption;
  for (const element of card.querySelectorAll(`[data-number="${marked.dataset.number}"]`)) {
    const caption = element.closest("[data-caption]").dataset.caption;
    element.classList.toggle("lit", on && caption === open);
  }
}
for (const [name, on] of [["pointerover", true], ["pointerout", false], ["focusin", true], ["focusout", false]]) {
  document.addEventListener(name, (event) => light(event.target, on));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "/") form.phrase.focus();
  else if (event.key === "m" || event.key === "b") form[event.key === "m" ? "masks" : "boxes"].click();
  else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
  else return;
  event.preventDefault();
});
function step(by) {
  const shown = cards.filter((card) => !card.hidden);
  const current = shown.indexOf(document.activeElement.closest(".card"));
  const next = shown[current < 0 ? 0 : Math.min(Math.max(current + by, 0), shown.length - 1)];
  next?.focus({ preventScroll: true });
  next?.scrollIntoView({ block: "start" });
}

layers();
apply();
