// Depth against length, a table a run, those of a group under one heading; built when that is opened.

function buildHeatmaps() {
  const place = byId("heatmaps");
  const open = new Map();
  byId("depths-notes").replaceChildren(...heatmapNotes());
  return () => {
    const groups = new Map();
    for (const map of content.heatmaps.maps) {
      if (!showsRun(map.run) || !map.lengths.some(showsLength)) continue;
      const { group } = runNames[map.run];
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(map);
    }
    if (!groups.size) {
      place.replaceChildren(element("p", { class: "notice" }, "Nothing fits this filter."));
      return;
    }
    place.replaceChildren(
      ...[...groups].map(([group, maps], number) => {
        const inside = element("div", { class: "maps" });
        const summary = element("summary", {}, element("h3", {}, element("bdi", {}, group)), element("span", { class: "count" }, counted(maps.length, "run")));
        const box = element("details", { open: open.get(group) ?? number === 0 }, summary, inside);
        const fill = () => {
          open.set(group, box.open);
          if (box.open && !inside.hasChildNodes()) inside.append(...maps.map(heatmap));
        };
        box.addEventListener("toggle", fill);
        if (box.open) fill();
        return box;
      }),
    );
  };
}

function heatmapNotes() {
  const scale = element("span", { class: "scale", "aria-hidden": "true" }, [0, 1, 2, 3, 4, 5].map((step) => element("i", { class: `s${step}` })));
  const notes = [
    "Depth is where the needle lies: 0% at the prompt's start, 100% at its end. Score in %, from 0",
    scale,
    "to 100, which alone has the last colour. Where lengths were skipped there is nothing. ",
  ];
  if (content.heatmaps.left_out.length) notes.push(`Without a heatmap, as no answer is about one needle alone: ${content.heatmaps.left_out.join(", ")}.`);
  return notes;
}

function heatmap(map) {
  const { group, label } = runNames[map.run];
  const columns = [...map.lengths.keys()].filter((column) => showsLength(map.lengths[column]));
  const head = element(
    "tr",
    {},
    element("th", { scope: "col" }, element("span", { class: "unseen" }, "depth in %")),
    columns.map((column) => element("th", { scope: "col" }, lengthName(map.lengths[column]))),
  );
  const rows = map.depths.map((depth, row) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, `${depth}%`),
      columns.map((column) => depthCell(map, row, column, `${label}, depth ${depth}%, ${lengthName(map.lengths[column])}`, group)),
    ),
  );
  const table = element("table", { class: "grid" }, element("caption", { class: "unseen" }, `${label}, ${group}: score in % by depth and length`), element("thead", {}, head), element("tbody", {}, rows));
  rove(table);
  return element("div", { class: "map" }, element("h4", {}, element("bdi", {}, label)), scrolling(`${label}, ${group}`, table));
}

function depthCell(map, row, column, title, group) {
  const cell = map.cells[row][column];
  if (!cell) return element("td", {}, element("span", { class: "cell quiet" }, element("span", { class: "unseen" }, "no sample")));
  const length = map.lengths[column];
  const button = element(
    "button",
    { type: "button", class: cell.step === undefined ? "cell quiet" : "cell", tabindex: -1, "aria-label": `${title}: ${cell.detail}`, onclick: () => openDepth(map.run, row, map.depths[row], length, group) },
    cell.text,
  );
  explain(button, title, cell.detail);
  return element("td", { class: cell.step === undefined ? "" : `s${cell.step}` }, button);
}
