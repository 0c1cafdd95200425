"use strict";
// Everything can be read without this script; it adds the choice of attack, hints, sorting and hiding of arms.
for (const part of document.querySelectorAll(".needs-js")) part.hidden = false;

// One attack's plot at a time.
const choice = document.getElementById("attack");
const panels = [...document.querySelectorAll(".panel")];
function showPanel() {
  panels.forEach((panel, i) => panel.classList.toggle("is-off", i !== Number(choice.value)));
}
if (choice) {
  choice.addEventListener("change", showPanel);
  showPanel();
}

// What a mark says, for pointers, fingers and keyboards.
const tip = document.getElementById("tip");
function say(mark) {
  tip.textContent = mark.dataset.tip;
  tip.hidden = false;
  const box = mark.getBoundingClientRect();
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  const left = Math.max(8, Math.min(box.left + box.width / 2 - tip.offsetWidth / 2, room));
  const above = box.top - tip.offsetHeight - 8;
  tip.style.left = `${left + scrollX}px`;
  tip.style.top = `${(above > 4 ? above : box.bottom + 8) + scrollY}px`;
}
function hush() {
  tip.hidden = true;
}
function markOf(event) {
  return event.target instanceof Element ? event.target.closest("[data-tip]") : null;
}
for (const kind of ["pointerover", "focusin", "click"]) {
  document.addEventListener(kind, (event) => {
    const mark = markOf(event);
    if (mark) say(mark);
    else if (kind === "click") hush();
  });
}
for (const kind of ["pointerout", "focusout"]) {
  document.addEventListener(kind, (event) => {
    if (markOf(event) && !(kind === "pointerout" && event.pointerType === "touch")) hush();
  });
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hush();
});

// Arms are shown and hidden in every chart and table at once.
for (const button of document.querySelectorAll("[data-toggle]")) {
  button.addEventListener("click", () => {
    const isShown = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", String(isShown));
    for (const part of document.querySelectorAll(`[data-arm="${button.dataset.toggle}"]`)) {
      part.classList.toggle("is-off", !isShown);
    }
  });
}

// Tables are sorted by a click on a heading; what has no number stands last.
function keyOf(row, column) {
  const cell = row.cells[column];
  const text = cell ? (cell.dataset.sort ?? cell.textContent.trim()) : "";
  const number = text === "" ? NaN : Number(text.split(" ")[0]);
  return { text, number };
}
function compare(a, b, sign) {
  const [isA, isB] = [!Number.isNaN(a.number), !Number.isNaN(b.number)];
  if (isA && isB) return sign * (a.number - b.number);
  if (isA !== isB) return isA ? -1 : 1;
  return sign * a.text.localeCompare(b.text);
}
function sortBy(table, column) {
  const heading = table.tHead.rows[0].cells[column];
  const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, key: keyOf(row, column) }));
  rows.sort((a, b) => compare(a.key, b.key, sign));
  for (const { row } of rows) table.tBodies[0].append(row);
}
for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => sortBy(table, column));
  });
}

// A link to a run opens it.
function openTarget() {
  const target = location.hash ? document.getElementById(location.hash.slice(1)) : null;
  if (target instanceof HTMLDetailsElement) target.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();
