// All samples that fit the filter, a page at a time.

const PAGE = 25;
const { index } = samples;
const OUTCOMES = {
  all: ["All", () => true],
  right: ["Right", (number) => index.status[number] === 2 && index.score[number] === 1],
  partly: ["Partly right", (number) => index.status[number] === 2 && index.score[number] > 0 && index.score[number] < 1],
  wrong: ["Wrong", (number) => index.status[number] === 2 && index.score[number] === 0],
  skipped: ["Skipped", (number) => index.status[number] === 0],
  failed: ["Failed", (number) => index.status[number] === 1],
};

function isLoss(number) {
  return runNames[index.run[number]].chapter?.kind === "losses";
}

function outcomeOf(number) {
  if (index.status[number] !== 2) return ["skipped", "failed"][index.status[number]];
  const score = index.score[number];
  if (isLoss(number)) return `${score.toFixed(3)} nats a token`;
  return score === 1 ? "right" : score === 0 ? "wrong" : `${Math.min(Math.max(Math.round(100 * score), 1), 99)}%`;
}

// A text of a sample: whole, or [what is kept of it, how many characters are not].
function beginning(text, most) {
  const kept = Array.isArray(text) ? text[0] : text;
  return kept.length > most ? `${kept.slice(0, most)}…` : kept;
}

function buildSamples() {
  const outcome = byId("outcome");
  const place = byId("sample-list");
  let [fitting, page] = [[], 0];
  for (const [name, [title]] of Object.entries(OUTCOMES)) outcome.append(element("option", { value: name }, title));

  const select = () => {
    const fits = OUTCOMES[outcome.value][1];
    fitting = [];
    for (let number = 0; number < sampleCount; number += 1) {
      if (!showsRun(index.run[number]) || !showsLength(index.length[number]) || !fits(number)) continue;
      if (isLoss(number) && !["all", "skipped", "failed"].includes(outcome.value)) continue;
      fitting.push(number);
    }
    page = 0;
    render();
  };
  const render = () => {
    const pages = Math.max(1, Math.ceil(fitting.length / PAGE));
    byId("page-number").textContent = `Page ${page + 1} of ${pages.toLocaleString("en")}, ${counted(fitting.length, "sample")}`;
    byId("page-back").disabled = page === 0;
    byId("page-on").disabled = page === pages - 1;
    const numbers = fitting.slice(page * PAGE, (page + 1) * PAGE);
    if (!numbers.length) {
      place.replaceChildren(element("p", { class: "notice" }, "Nothing fits this filter."));
      return;
    }
    const heads = ["Sample", "Model", "Task", "Length", "Depth %", "Outcome", "Reference", "Prediction"];
    const numeric = new Set(["Length", "Depth %"]);
    const table = element(
      "table",
      { class: "list" },
      element("caption", { class: "unseen" }, "Samples"),
      element("thead", {}, element("tr", {}, heads.map((name) => element("th", { scope: "col", class: numeric.has(name) ? "number" : "" }, name)))),
      element("tbody", {}, numbers.map((number) => sampleRow(number, numbers))),
    );
    place.replaceChildren(scrolling("Samples", table));
  };
  const turn = (step) => () => {
    page += step;
    render();
  };
  outcome.addEventListener("change", select);
  byId("page-back").addEventListener("click", turn(-1));
  byId("page-on").addEventListener("click", turn(1));

  const notes = [];
  if (samples.left_out) notes.push(`The scores are of all samples; here are the first ${sampleCount.toLocaleString("en")}, as ${counted(samples.left_out, "sample")} more would make the page too large: they are in the results.`);
  if (!canUnpack) notes.push("This browser cannot unpack the texts of samples (Chrome 80, Firefox 113, Safari 16.4 and later can). All scores are shown all the same.");
  byId("samples-notes").replaceChildren(notes.join(" "));
  byId("samples-notes").hidden = !notes.length;
  return select;
}

function sampleRow(number, numbers) {
  const { label, group } = runNames[index.run[number]];
  const open = () => openSamples(numbers, number, "Samples");
  const button = element("button", { type: "button", class: "plain", "aria-label": `Sample ${index.sample[number]} of ${label}, ${group}, ${lengthName(index.length[number])}`, onclick: open }, `#${index.sample[number]}`);
  const outcome = outcomeOf(number);
  const said = [element("td", { class: "said" }), element("td", { class: "said" })];
  const row = element(
    "tr",
    { class: "opens", onclick: (event) => event.target.closest("button") || open() },
    element("td", {}, button),
    element("td", {}, element("bdi", {}, label)),
    element("td", {}, element("bdi", {}, group)),
    element("td", { class: "number" }, lengthName(index.length[number])),
    element("td", { class: "number" }, beginning(index.depth[number], 16)),
    element("td", {}, element("span", { class: outcome === "right" || outcome === "wrong" ? `verdict ${outcome}` : "" }, outcome)),
    said,
  );
  if (canUnpack) {
    wholeSample(number).then((sample) => {
      said[0].textContent = sample.references.map((text) => beginning(text, 40)).join(", ");
      said[1].textContent = beginning(sample.prediction ?? sample.error ?? "", 60);
    });
  }
  return row;
}
