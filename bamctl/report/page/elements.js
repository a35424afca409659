// Making elements: texts are always texts, never HTML.

const SVG = "http://www.w3.org/2000/svg";

function byId(id) {
  return document.getElementById(id);
}

function element(name, attributes = {}, ...children) {
  return dressed(document.createElement(name), attributes, children);
}

function graphic(name, attributes = {}, ...children) {
  return dressed(document.createElementNS(SVG, name), attributes, children);
}

function dressed(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

function counted(count, what) {
  return `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;
}

// A box that scrolls sideways on its own, so that the page does not; reached by keyboard where it does.
function scrolling(label, child) {
  const box = element("div", { class: "scroll", role: "region", "aria-label": label }, child);
  new ResizeObserver(() => {
    if (box.scrollWidth > box.clientWidth + 1) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }).observe(box);
  return box;
}

// One stop of the Tab key for all buttons of a table; arrows, Home and End go from one to the next.
function rove(table) {
  const rows = () =>
    [...table.rows].map((row) => [...row.cells].map((cell) => cell.querySelector(".cell"))).filter((row) => row.some(Boolean));
  const first = table.querySelector(".cell");
  if (first) first.tabIndex = 0;
  table.addEventListener("focusin", (event) => {
    if (!event.target.matches(".cell")) return;
    for (const other of table.querySelectorAll('.cell[tabindex="0"]')) other.tabIndex = -1;
    event.target.tabIndex = 0;
  });
  table.addEventListener("keydown", (event) => {
    const grid = rows();
    const at = grid.findIndex((row) => row.includes(event.target));
    if (at < 0) return;
    const column = grid[at].indexOf(event.target);
    const inRow = grid[at].filter(Boolean);
    const place = inRow.indexOf(event.target);
    const beyond = (step) => {
      for (let row = at + step; row >= 0 && row < grid.length; row += step) if (grid[row][column]) return grid[row][column];
      return null;
    };
    const next = {
      ArrowRight: () => inRow[place + 1],
      ArrowLeft: () => inRow[place - 1],
      Home: () => inRow[0],
      End: () => inRow[inRow.length - 1],
      ArrowDown: () => beyond(1),
      ArrowUp: () => beyond(-1),
    }[event.key];
    if (!next) return;
    event.preventDefault();
    next()?.focus();
  });
}

// What is said beside what the mouse or the keyboard points at; screen readers have it from the labels.
function showTip(anchor, ...children) {
  const tip = byId("tip");
  tip.replaceChildren(...children);
  tip.hidden = false;
  const box = anchor.getBoundingClientRect();
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left + box.width / 2 - width / 2), document.documentElement.clientWidth - width - 8);
  const above = box.top - height - 10;
  tip.style.left = `${left}px`;
  tip.style.top = `${above >= 8 ? above : box.bottom + 10}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

function explain(target, title, detail) {
  const show = () => showTip(target, element("b", {}, title), element("div", {}, detail));
  target.addEventListener("pointerenter", show);
  target.addEventListener("focus", () => target.matches(":focus-visible") && show());
  target.addEventListener("pointerleave", hideTip);
  target.addEventListener("blur", hideTip);
}
