// Curves against length, a panel a group. The mouse finds the nearest point; arrow keys go from one to the next.

const MARKERS = {
  o: (r) => `M${-r},0a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0z`,
  s: (r) => `M${-r},${-r}H${r}V${r}H${-r}z`,
  "^": (r) => `M0,${-1.25 * r}L${1.15 * r},${r}H${-1.15 * r}z`,
  v: (r) => `M0,${1.25 * r}L${1.15 * r},${-r}H${-1.15 * r}z`,
  "<": (r) => `M${-1.25 * r},0L${r},${1.15 * r}V${-1.15 * r}z`,
  ">": (r) => `M${1.25 * r},0L${-r},${1.15 * r}V${-1.15 * r}z`,
  D: (r) => `M0,${-1.35 * r}L${1.35 * r},0L0,${1.35 * r}L${-1.35 * r},0z`,
  P: (r) => `M${-r / 2.5},${-1.2 * r}h${r / 1.25}v${0.8 * r}h${0.8 * r}v${r / 1.25}h${-0.8 * r}v${0.8 * r}h${-r / 1.25}v${-0.8 * r}h${-0.8 * r}v${-r / 1.25}h${0.8 * r}z`,
  X: (r) => `M${-r},${-0.5 * r}l${0.5 * r},${-0.5 * r}L0,${-0.45 * r}L${0.5 * r},${-r}l${0.5 * r},${0.5 * r}L${0.45 * r},0L${r},${0.5 * r}l${-0.5 * r},${0.5 * r}L0,${0.45 * r}L${-0.5 * r},${r}l${-0.5 * r},${-0.5 * r}L${-0.45 * r},0z`,
  p: (r) => `M0,${-1.2 * r}L${1.15 * r},${-0.35 * r}L${0.7 * r},${r}H${-0.7 * r}L${-1.15 * r},${-0.35 * r}z`,
};
const MARGIN = { left: 42, right: 10, top: 12, bottom: 36 };
const STEPS = { scores: 0.09, losses: 0.03 }; // octaves between neighbouring lines: scores meet at 0 and at 100%
const SPAN = 0.45; // and between the first and the last at most

function markOf(look) {
  return graphic("path", { class: look.hollow ? "marker hollow" : "marker", d: MARKERS[look.marker](look.thin ? 2.6 : 3.4) });
}

function curveClass(look) {
  return `curve${look.dashed ? " dashed" : ""}${look.thin ? " thin" : ""}`;
}

function painted(node, look) {
  node.style.color = `var(--c${look.colour})`;
  return node;
}

function swatch(look) {
  const line = graphic("path", { class: curveClass(look), d: "M0,6H32" });
  const mark = graphic("g", { transform: "translate(16,6)" }, markOf(look));
  return painted(graphic("svg", { width: 32, height: 12, "aria-hidden": "true" }, line, mark), look);
}

function curveNotes(chapter) {
  const beyond = "beyond the train length the ground is grey.";
  if (chapter.kind === "losses") return `Bars are 95% intervals; those that reach the frame go on outside it. Dashed: in a window; ${beyond}`;
  const hollow = chapter.groups.some((group) => group.lines.some((line) => line.look?.hollow));
  return [
    "Bars are 95% intervals. Lines stand side by side at each length, so that none hides another.",
    `The thin line across is the threshold of ${Math.round(1000 * chapter.threshold) / 10}%; ${beyond}`,
    hollow ? "Hollow: has not learned its train length." : "",
  ].join(" ").trim();
}

function buildCurves(section, chapter) {
  section.querySelector("[data-curve-notes]").textContent = curveNotes(chapter);
  const legend = section.querySelector("[data-legend]");
  const place = section.querySelector("[data-panels]");
  let width = 0;
  const render = () => {
    const columns = shownColumns(chapter);
    const groups = shownGroups(chapter)
      .map((group) => ({ ...group, lines: group.lines.filter((line) => line.look && columns.some((at) => line.points[at]?.value !== undefined)) }))
      .filter((group) => group.lines.length);
    const looks = new Map(groups.flatMap((group) => group.lines.map((line) => [line.label, line.look])));
    legend.replaceChildren(...[...looks].map(([label, look]) => element("li", {}, swatch(look), element("bdi", {}, label))));
    place.classList.toggle("one", groups.length === 1);
    const figures = groups.map((group) => element("figure", {}, panelTitle(group)));
    place.replaceChildren(...figures);
    width = figures[0]?.clientWidth ?? 0;
    figures.forEach((figure, number) => figure.append(drawPanel(chapter, groups[number], columns, width)));
  };
  new ResizeObserver(() => {
    const now = place.querySelector("figure")?.clientWidth ?? 0;
    if (now && Math.abs(now - width) > 8) render();
  }).observe(place);
  return render;
}

function panelTitle(group) {
  const conditions = group.conditions.length ? element("span", { class: "conditions" }, ` ${group.conditions.join(", ")}`) : null;
  return element("figcaption", {}, element("h3", {}, element("bdi", {}, group.title), conditions));
}

// Where values lie: x of a length in tokens, y of a share or of nats a token.
function scalesOf(chapter, group, columns, width, height) {
  const used = columns.filter((at) => group.lines.some((line) => line.points[at]));
  const lengths = used.map((at) => chapter.lengths[at]);
  const [first, last] = [Math.log2(lengths[0]) - 0.4, Math.log2(lengths[lengths.length - 1]) + 0.4];
  const x = (length) => MARGIN.left + ((Math.log2(length) - first) / (last - first)) * (width - MARGIN.left - MARGIN.right);
  let [low, high, ticks] = [0, 1, [0, 0.25, 0.5, 0.75, 1]];
  if (chapter.kind === "losses") {
    const values = group.lines.flatMap((line) => used.map((at) => line.points[at]?.value).filter((value) => value !== undefined));
    const apart = niceStep(Math.max(Math.max(...values) - Math.min(...values), 0.1) / 4);
    low = Math.floor(Math.min(...values) / apart - 0.2) * apart;
    high = Math.ceil(Math.max(...values) / apart + 0.2) * apart;
    ticks = [...Array(Math.round((high - low) / apart) + 1).keys()].map((step) => low + step * apart);
  }
  const free = chapter.kind === "losses" ? 0 : 0.03;
  const y = (value) => {
    const share = (Math.min(Math.max(value, low), high) - low + free * (high - low)) / ((high - low) * (1 + 2 * free));
    return height - MARGIN.bottom - share * (height - MARGIN.top - MARGIN.bottom);
  };
  return { x, y, ticks, used };
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((times) => times * power >= rough) * power;
}

function drawPanel(chapter, group, columns, width) {
  const height = Math.round(Math.min(Math.max(width * 0.64, 200), 340));
  const scales = scalesOf(chapter, group, columns, width, height);
  const drawing = graphic("svg", {
    width,
    height,
    role: "group",
    "aria-label": `${group.title}: ${chapter.kind === "losses" ? "loss against position" : "score against length"}. Arrow keys go from point to point, Enter opens the samples.`,
  });
  drawing.append(drawAxes(chapter, group, scales, width, height));
  const step = Math.min(STEPS[chapter.kind], SPAN / Math.max(1, group.lines.length - 1));
  const points = group.lines.map((line, place) => {
    const shift = 2 ** (step * (place - (group.lines.length - 1) / 2));
    return scales.used.map((at) => {
      const point = line.points[at];
      if (point?.value === undefined) return null;
      return { at, line, point, x: scales.x(chapter.lengths[at] * shift), y: scales.y(point.value) };
    });
  });
  const marks = [];
  points.forEach((of, place) => {
    drawing.append(drawLine(group.lines[place], of, scales));
    marks.push(of.map((spot) => spot && drawPoint(chapter, group, spot, points)));
  });
  drawing.append(...marks.flat().filter(Boolean).map((mark) => mark.node));
  followPointer(drawing, marks);
  followKeys(drawing, marks);
  return drawing;
}

function drawAxes(chapter, group, { x, y, ticks, used }, width, height) {
  const base = height - MARGIN.bottom;
  const [left, right] = [MARGIN.left, width - MARGIN.right];
  const parts = [];
  const trained = [...new Set(group.lines.map((line) => line.train_length).filter(Boolean))];
  for (const length of trained) {
    const at = x(length);
    if (at < left || at > right) continue;
    parts.push(graphic("rect", { class: "beyond", x: at, y: MARGIN.top, width: right - at, height: base - MARGIN.top }));
    parts.push(graphic("line", { class: "train", x1: at, x2: at, y1: MARGIN.top, y2: base }));
    parts.push(graphic("text", { class: "aside", transform: `translate(${at + 10},${base - 5}) rotate(-90)` }, "train length"));
  }
  const percent = chapter.kind === "scores";
  const decimals = percent ? 0 : Math.max(0, -Math.floor(Math.log10(ticks[1] - ticks[0]) + 1e-9));
  for (const tick of ticks) {
    parts.push(graphic("line", { x1: left, x2: right, y1: y(tick), y2: y(tick) }));
    parts.push(graphic("text", { x: left - 6, y: y(tick) + 3.5, "text-anchor": "end" }, percent ? `${100 * tick}%` : tick.toFixed(decimals)));
  }
  if (chapter.threshold) {
    const at = y(chapter.threshold);
    parts.push(graphic("line", { class: "threshold", x1: left, x2: right, y1: at, y2: at }));
  }
  parts.push(graphic("line", { class: "base", x1: left, x2: right, y1: base, y2: base }));
  const widest = 6.6 * Math.max(...used.map((column) => chapter.names[column].length)) + 8;
  const every = Math.ceil(used.length / Math.max(1, Math.floor((right - left) / widest)));
  for (const column of used.filter((_, place) => place % every === 0)) {
    const [at, name] = [x(chapter.lengths[column]), chapter.names[column]];
    parts.push(graphic("line", { class: "base", x1: at, x2: at, y1: base, y2: base + 4 }));
    parts.push(graphic("text", { x: at, y: base + 16, "text-anchor": "middle" }, name));
  }
  const what = percent ? "prompt length (tokens)" : "position (tokens); loss in nats a token";
  parts.push(graphic("text", { class: "aside", x: right, y: height - 4, "text-anchor": "end" }, what));
  return graphic("g", { class: "axis", "aria-hidden": "true" }, parts);
}

function drawLine(line, spots, { y }) {
  let path = "";
  spots.forEach((spot, place) => {
    if (spot) path += `${spots[place - 1] ? "L" : "M"}${spot.x.toFixed(1)},${spot.y.toFixed(1)}`;
  });
  const bars = spots
    .filter((spot) => spot && spot.point.low !== undefined && spot.point.high !== undefined)
    .map(({ x, point }) => graphic("line", { class: "bar", x1: x, x2: x, y1: y(point.low), y2: y(point.high) }));
  return painted(graphic("g", { class: "line", "aria-hidden": "true" }, bars, graphic("path", { class: curveClass(line.look), d: path })), line.look);
}

function drawPoint(chapter, group, spot, points) {
  const { line, point, at } = spot;
  const open = () => openCell(line, chapter.lengths[at], group.title);
  const node = graphic(
    "g",
    {
      class: "point",
      transform: `translate(${spot.x.toFixed(1)},${spot.y.toFixed(1)})`,
      tabindex: -1,
      role: "button",
      "aria-label": `${line.label}, ${chapter.names[at]}: ${point.detail}`,
      onclick: open,
      onkeydown: (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        open();
      },
    },
    graphic("circle", { class: "halo", r: 8 }),
    markOf(line.look),
  );
  painted(node, line.look);
  const tell = () => {
    const beside = points.map((of) => of.find((other) => other?.at === at)).filter(Boolean);
    beside.sort((a, b) => b.point.value - a.point.value);
    const rows = beside.map((other) =>
      element(
        "tr",
        { class: other === spot ? "near" : "" },
        element("td", {}, swatch(other.line.look)),
        element("td", {}, element("bdi", {}, other.line.label)),
        element("td", {}, other.point.text),
      ),
    );
    const table = rows.length > 1 ? [element("table", {}, element("tbody", {}, rows.slice(0, 12)))] : [];
    showTip(node, element("b", {}, `${group.title}, ${line.label}, ${chapter.names[at]}`), element("div", {}, point.detail), ...table);
  };
  return { node, spot, tell, open };
}

// The nearest point is told of, wherever in the panel the mouse or the finger is.
function followPointer(drawing, marks) {
  const all = marks.flat().filter(Boolean);
  let near = null;
  const leave = () => {
    near?.node.classList.remove("near");
    near = null;
    hideTip();
  };
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let [found, least] = [null, 60];
    for (const mark of all) {
      const distance = Math.hypot(mark.spot.x - x, mark.spot.y - y);
      if (distance < least) [found, least] = [mark, distance];
    }
    if (found === near) return;
    leave();
    near = found;
    near?.node.classList.add("near");
    near?.tell();
  });
  drawing.addEventListener("pointerleave", leave);
  drawing.addEventListener("click", (event) => {
    if (near && !event.target.closest(".point")) near.open();
  });
}

function followKeys(drawing, marks) {
  const first = marks.flat().find(Boolean);
  if (first) first.node.setAttribute("tabindex", 0);
  drawing.addEventListener("focusin", (event) => {
    const mark = marks.flat().find((candidate) => candidate?.node === event.target);
    if (!mark) return;
    for (const other of marks.flat()) other?.node.setAttribute("tabindex", other === mark ? 0 : -1);
    if (mark.node.matches(":focus-visible")) mark.tell();
  });
  drawing.addEventListener("focusout", hideTip);
  drawing.addEventListener("keydown", (event) => {
    const row = marks.findIndex((of) => of.some((mark) => mark?.node === event.target));
    if (row < 0) return;
    const column = marks[row].findIndex((mark) => mark?.node === event.target);
    const along = (step) => {
      for (let at = column + step; at >= 0 && at < marks[row].length; at += step) if (marks[row][at]) return marks[row][at];
      return null;
    };
    const across = (step) => {
      for (let at = row + step; at >= 0 && at < marks.length; at += step) if (marks[at][column]) return marks[at][column];
      return null;
    };
    const next = { ArrowRight: () => along(1), ArrowLeft: () => along(-1), ArrowUp: () => across(-1), ArrowDown: () => across(1) }[event.key];
    if (!next) return;
    event.preventDefault();
    next()?.node.focus();
  });
}
