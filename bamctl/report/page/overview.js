// A chapter's table: a row a run, a column a length; each cell opens its samples.

function shownColumns(chapter) {
  return [...chapter.lengths.keys()].filter((column) => showsLength(chapter.lengths[column]));
}

function buildTable(section, chapter) {
  const place = section.querySelector("[data-table]");
  const notes = section.querySelector("[data-notes]");
  const withIntervals = section.querySelector("[data-intervals]");
  const render = () => {
    const groups = shownGroups(chapter);
    const columns = shownColumns(chapter);
    if (!groups.length || !columns.length) {
      place.replaceChildren(element("p", { class: "notice" }, "Nothing fits this filter."));
      notes.replaceChildren();
      return;
    }
    const behind = shownBehind(chapter, groups);
    const table = element(
      "table",
      { class: "grid" },
      element("caption", { class: "unseen" }, section.querySelector("h2").textContent),
      tableHead(chapter, columns, behind),
      groups.map((group) => tableGroup(chapter, group, columns, behind, withIntervals.checked)),
    );
    rove(table);
    place.replaceChildren(scrolling(section.querySelector("h2").textContent, table));
    const caption = withIntervals.checked ? chapter.interval_caption : chapter.caption;
    notes.replaceChildren(...caption.map((sentence) => element("p", {}, element("bdi", {}, sentence))));
  };
  withIntervals.addEventListener("change", render);
  return render;
}

// The columns behind the lengths in which any row has something.
function shownBehind(chapter, groups) {
  return [...chapter.after.keys()].filter((column) => groups.some((group) => group.lines.some((line) => line.after[column])));
}

function tableHead(chapter, columns, behind) {
  const names = ["model", ...chapter.before, ...columns.map((column) => chapter.names[column]), ...behind.map((column) => chapter.after[column])];
  return element("thead", {}, element("tr", {}, names.map((name) => element("th", { scope: "col" }, name))));
}

function tableGroup(chapter, group, columns, behind, intervals) {
  const width = 1 + chapter.before.length + columns.length + behind.length;
  const conditions = group.conditions.length ? element("span", { class: "conditions" }, ` ${group.conditions.join(", ")}`) : null;
  const heading = element(
    "tr",
    {},
    element("th", { scope: "rowgroup", colspan: width }, element("span", {}, element("bdi", {}, group.title), conditions)),
  );
  const text = (value) => element("td", { class: "text" }, value);
  const rows = group.lines.map((line) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, element("bdi", {}, line.label)),
      line.before.map(text),
      columns.map((column) => pointCell(chapter, group, line, column, intervals)),
      behind.map((column) => text((intervals ? line.interval_after : line.after)[column])),
    ),
  );
  return element("tbody", { class: "headed" }, heading, rows);
}

function pointCell(chapter, group, line, column, intervals) {
  const point = line.points[column];
  if (!point) return element("td", {}, element("span", { class: "cell quiet" }, "–", element("span", { class: "unseen" }, " not run")));
  const rest = intervals ? point.interval.slice(point.text.length).trim() : "";
  const title = `${line.label}, ${chapter.names[column]}`;
  const button = element(
    "button",
    {
      type: "button",
      class: point.value === undefined ? "cell quiet" : "cell",
      tabindex: -1,
      "aria-label": `${group.title}, ${title}: ${point.detail}`,
      onclick: () => openCell(line, chapter.lengths[column], group.title),
    },
    point.text,
    rest ? element("small", {}, rest) : null,
  );
  explain(button, title, point.detail);
  return element("td", { class: point.step === undefined ? "" : `s${point.step}` }, button);
}
