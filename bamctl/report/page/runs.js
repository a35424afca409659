// What defines the runs: what they share once, and what they differ in a row each.

function buildRuns() {
  const { common, header, rows } = content.runs;
  const facts = common.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, element("bdi", {}, value))));
  byId("runs-common").replaceChildren(...facts);
  byId("runs-common").hidden = !facts.length;
  const numeric = header.map((_, column) => rows.every((row) => /^[\d.,e+-]*$/.test(row[column])) && column > 1);
  const cell = (text, column) => element(column ? "td" : "th", { scope: column ? null : "row", class: numeric[column] ? "number" : column && !/digest/.test(header[column]) ? "" : "code" }, element("bdi", {}, text));
  return () => {
    const lines = rows.filter((_, run) => showsRun(run)).map((row) => element("tr", {}, row.map(cell)));
    const heads = header.map((name, column) => element("th", { scope: "col", class: numeric[column] ? "number" : "" }, name));
    const table = element("table", { class: "list wide" }, element("caption", { class: "unseen" }, "Runs"), element("thead", {}, element("tr", {}, heads)), element("tbody", {}, lines));
    byId("runs-table").replaceChildren(scrolling("Runs", table));
  };
}
