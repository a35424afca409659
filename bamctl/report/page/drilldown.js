// One sample after the other of a cell or of a list: what was asked, what came, and how to run it again.

const drilldown = { numbers: [], at: 0 };

function matching(fits) {
  const numbers = [];
  for (let number = 0; number < sampleCount; number += 1) if (fits(number)) numbers.push(number);
  return numbers;
}

function openCell(line, length, group) {
  const runs = new Set(line.runs);
  openSamples(matching((number) => runs.has(index.run[number]) && index.length[number] === length), null, `${line.label} · ${group} · ${lengthName(length)}`);
}

function openDepth(run, row, depth, length, group) {
  const numbers = matching((number) => index.run[number] === run && index.length[number] === length && index.row[number] === row);
  const all = numbers.length ? numbers : matching((number) => index.run[number] === run && index.length[number] === length);
  openSamples(all, null, `${runNames[run].label} · ${group} · ${lengthName(length)} · depth ${depth}%`);
}

function openSamples(numbers, first, title) {
  hideTip();
  drilldown.numbers = numbers;
  drilldown.at = Math.max(0, numbers.indexOf(first));
  byId("drilldown-title").textContent = title;
  const several = new Set(numbers.map((number) => index.run[number])).size > 1;
  byId("drilldown-choice").replaceChildren(
    ...numbers.map((number, place) => {
      const run = several ? `${runNames[index.run[number]].label}, ${runNames[index.run[number]].group}, ` : "";
      const depth = index.depth[number] ? `, depth ${beginning(index.depth[number], 24)}%` : "";
      return element("option", { value: place }, `${run}#${index.sample[number]}: ${outcomeOf(number)}${depth}`);
    }),
  );
  byId("drilldown").showModal();
  byId("drilldown-title").focus();
  showSample();
}

function buildDrilldown() {
  const step = (by) => {
    const at = drilldown.at + by;
    if (at < 0 || at >= drilldown.numbers.length) return;
    drilldown.at = at;
    showSample();
  };
  byId("drilldown-back").addEventListener("click", () => step(-1));
  byId("drilldown-on").addEventListener("click", () => step(1));
  byId("drilldown-close").addEventListener("click", () => byId("drilldown").close());
  byId("drilldown-choice").addEventListener("change", (event) => {
    drilldown.at = Number(event.target.value);
    showSample();
  });
  byId("drilldown").addEventListener("click", (event) => {
    if (event.target === byId("drilldown")) byId("drilldown").close(); // beside the dialog
  });
  byId("drilldown").addEventListener("keydown", (event) => {
    if (event.target.matches("select, .quote")) return;
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  });
}

async function showSample() {
  const [verdict, parts] = [byId("drilldown-verdict"), byId("drilldown-parts")];
  const number = drilldown.numbers[drilldown.at];
  byId("drilldown-choice").value = drilldown.at;
  byId("drilldown-back").disabled = drilldown.at === 0;
  byId("drilldown-on").disabled = drilldown.at >= drilldown.numbers.length - 1;
  const notice = (text) => {
    verdict.replaceChildren();
    parts.replaceChildren(element("p", { class: "notice" }, text));
  };
  if (number === undefined) {
    notice(samples.left_out ? "These samples are not in the page, but in the results." : "There is no sample here.");
    return;
  }
  if (!canUnpack) {
    notice("This browser cannot unpack the texts of samples.");
    return;
  }
  try {
    const sample = await wholeSample(number);
    if (number !== drilldown.numbers[drilldown.at]) return; // another was asked for meanwhile
    verdict.replaceChildren(...verdictOf(number));
    parts.replaceChildren(...sampleParts(number, sample).filter(Boolean));
    byId("drilldown-body").scrollTop = 0;
  } catch (error) {
    notice(`This sample cannot be unpacked: ${error.message}`);
  }
}

function verdictOf(number) {
  const { label, group } = runNames[index.run[number]];
  const outcome = outcomeOf(number);
  const where = `${label}, ${group}, ${lengthName(index.length[number])}, sample ${index.sample[number]}`;
  return [element("span", { class: `verdict ${outcome}` }, outcome[0].toUpperCase() + outcome.slice(1)), element("span", { class: "quiet" }, ` · ${where}`)];
}

function sampleParts(number, sample) {
  return [
    ...(sample.error ? [element("h3", {}, "Why"), quote(sample.error)] : []),
    isLoss(number) ? null : answers(sample),
    ...(isLoss(number) ? [] : prompt(number, sample)),
    ...again(sample),
    element("h3", {}, "What the row says"),
    rowFacts(sample),
    element("h3", {}, "Its run"),
    runFacts(index.run[number]),
  ];
}

function answers(sample) {
  const references = sample.references.length ? sample.references.map((text) => quote(text)) : [element("p", { class: "quiet" }, "None.")];
  const prediction = sample.prediction === null ? element("p", { class: "quiet" }, "None.") : quote(sample.prediction, sample.references);
  return element(
    "div",
    { class: "pair" },
    element("div", {}, element("h3", {}, sample.references.length > 1 ? "References" : "Reference"), references),
    element("div", {}, element("h3", {}, "Prediction"), prediction.textContent === "" ? element("p", { class: "quiet" }, "Empty.") : prediction),
  );
}

function prompt(number, sample) {
  if (!sample.excerpts.length && sample.question === null) {
    if (index.status[number] !== 2) return [];
    const why = "The prompt's text is not in these results, which an earlier version wrote. Where the page was written, and the model is known by its name, this makes it anew:";
    const words = ["bamctl show", sample.row_id, samples.results, "--run", content.run_ids[index.run[number]]];
    return [element("p", { class: "notice" }, why), commandBox(words.filter(Boolean).join(" "))];
  }
  const depths = index.depth[number] ? index.depth[number].split(", ") : [];
  const starts = sample.needle_start === null ? [] : String(sample.needle_start).split(", ");
  const parts = sample.excerpts.flatMap((text, place) => {
    const at = [depths[place] ? `depth ${depths[place]}%` : "", starts[place] ? `token ${starts[place]}` : ""].filter(Boolean).join(", ");
    return [at ? element("p", { class: "quote-head" }, at) : null, quote(text, [...sample.needles, ...sample.references])];
  });
  return [
    ...(parts.length ? [element("h3", {}, parts.length > 2 ? "The prompt around the needles" : "The prompt around the needle"), ...parts] : []),
    ...(sample.question === null ? [] : [element("h3", {}, "How the prompt ends"), quote(sample.question)]),
  ];
}

// A text as it is, with what is looked for marked; where it is not whole the page says how much is missing.
function quote(text, looked_for = []) {
  const [kept, left_out] = Array.isArray(text) ? text : [text, 0];
  const box = element("div", { class: "quote", dir: "auto" }, marked(kept, looked_for));
  if (!left_out) return box;
  return element("div", {}, box, element("p", { class: "quote-head" }, `${left_out.toLocaleString("en")} more characters are left out here; the results have them.`));
}

function marked(text, looked_for) {
  const words = looked_for.map((word) => beginning(word, Infinity)).filter(Boolean);
  const parts = [];
  let from = 0;
  while (from < text.length) {
    let [at, length] = [-1, 0];
    for (const word of words) {
      const found = text.indexOf(word, from);
      if (found >= 0 && (at < 0 || found < at || (found === at && word.length > length))) [at, length] = [found, word.length];
    }
    if (at < 0) break;
    parts.push(text.slice(from, at), element("mark", {}, text.slice(at, at + length)));
    from = at + length;
  }
  return [...parts, text.slice(from)];
}

function again(sample) {
  if (sample.command === null) return [];
  const command = `${samples.commands[sample.command]} --only ${sample.row_id} --out rerun`;
  return [element("h3", {}, "Run this sample again"), commandBox(command)];
}

function commandBox(command) {
  const box = element("div", { class: "quote", dir: "ltr", tabindex: 0 }, command);
  const copy = element("button", { type: "button" }, "Copy");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(box); // where pages may not copy, a reader does
      copy.textContent = "Selected";
    }
  });
  return element("div", { class: "command" }, box, copy);
}

function rowFacts(sample) {
  const fields = [{ name: "row_id", description: "the sample's id" }, ...samples.fields];
  const rows = fields
    .filter(({ name }) => sample[name] !== null && sample[name] !== undefined && name !== "error")
    .map(({ name, description, unit }) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, name),
        element("td", { class: "code" }, Array.isArray(sample[name]) ? sample[name][0] : String(sample[name]), unit && unit !== "0…1" && typeof sample[name] === "number" ? ` ${unit}` : ""),
        element("td", { class: "meaning" }, description),
      ),
    );
  return element("div", { class: "scroll" }, element("table", { class: "row-facts" }, element("tbody", {}, rows)));
}

function runFacts(run) {
  const { common, header, rows } = content.runs;
  const facts = [...header.map((name, place) => [name, rows[run][place]]), ...common].filter(([, value]) => value !== "");
  return element("dl", { class: "facts" }, facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, element("bdi", {}, value)))));
}
