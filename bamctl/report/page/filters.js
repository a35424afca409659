// Which models, tasks and lengths are shown. Nothing is computed anew: a filter only hides.

const shown = {
  models: new Set(content.models.keys()),
  tasks: new Set(content.tasks.keys()),
  from: 0,
  to: content.lengths.length - 1,
};

function showsLength(length) {
  return length >= content.lengths[shown.from] && length <= content.lengths[shown.to];
}

function showsRun(run) {
  return shown.models.has(content.run_models[run]) && shown.tasks.has(content.run_tasks[run]);
}

// The groups of a chapter with those of their lines that are shown; an average only with all its tasks.
function shownGroups(chapter) {
  return chapter.groups
    .filter((group) => group.tasks.every((task) => shown.tasks.has(task)))
    .map((group) => ({ ...group, lines: group.lines.filter((line) => shown.models.has(line.model)) }))
    .filter((group) => group.lines.length);
}

function buildFilters(changed) {
  const form = byId("filter-form");
  const tell = () => {
    const runs = content.run_ids.filter((_, run) => showsRun(run)).length;
    const all = content.run_ids.length;
    byId("filter-status").textContent = runs === all ? `${counted(all, "run")}, all shown` : `${runs} of ${counted(all, "run")} shown`;
  };
  const update = () => {
    tell();
    changed();
  };
  const reset = element("button", { type: "button", class: "plain", onclick: () => form.reset() }, "Reset all");
  form.append(
    choices("Models", content.models, shown.models, update),
    choices("Tasks", content.tasks, shown.tasks, update),
    lengthRange(update, reset),
  );
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    for (const [names, set] of [[content.models, shown.models], [content.tasks, shown.tasks]]) for (const place of names.keys()) set.add(place);
    [shown.from, shown.to] = [0, content.lengths.length - 1];
    setTimeout(update); // after the form's own fields have been reset
  });
  if (matchMedia("(max-width: 47rem)").matches) byId("filter-box").open = false;
  tell();
}

function choices(title, names, set, update) {
  const boxes = names.map((name, place) => {
    const box = element("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => {
      if (box.checked) set.add(place);
      else set.delete(place);
      update();
    });
    return { box, label: element("label", {}, box, element("bdi", {}, name)), place };
  });
  const all = (on) => () => {
    for (const { box, place } of boxes) {
      box.checked = on;
      if (on) set.add(place);
      else set.delete(place);
    }
    update();
  };
  const button = (text, on) =>
    element("button", { type: "button", class: "plain", "aria-label": `${title}: ${text.toLowerCase()}`, onclick: all(on) }, text);
  return element(
    "fieldset",
    {},
    element("legend", {}, element("b", {}, title), button("All", true), button("None", false)),
    element("div", { class: "choices" }, boxes.map(({ label }) => label)),
  );
}

function lengthRange(update, reset) {
  const select = (name, end) => {
    const made = element(
      "select",
      { "aria-label": `${name} length` },
      content.names.map((text, place) => {
        const option = element("option", { value: place }, text);
        option.defaultSelected = place === shown[end];
        return option;
      }),
    );
    made.addEventListener("change", () => {
      shown[end] = Number(made.value);
      if (shown.from > shown.to) {
        shown[end === "from" ? "to" : "from"] = shown[end];
        (end === "from" ? last : first).value = made.value;
      }
      update();
    });
    return made;
  };
  const first = select("Shortest", "from");
  const last = select("Longest", "to");
  return element(
    "fieldset",
    {},
    element("legend", {}, element("b", {}, "Lengths"), reset),
    element("div", { class: "range" }, first, "to", last, "tokens"),
  );
}
