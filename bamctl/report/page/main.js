// What is there is shown, and shown anew when a filter changes.

function buildTheme() {
  const button = byId("theme");
  const wanted = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (wanted.matches ? "dark" : "light")) === "dark";
  const tell = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `${button.textContent} colours`);
  };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    tell();
  });
  wanted.addEventListener("change", tell);
  tell();
}

function tellWhatThereIs() {
  const { names } = content;
  const range = names.length > 1 ? `${names[0]} to ${names[names.length - 1]}` : names[0];
  const all = sampleCount + samples.left_out;
  const parts = [counted(content.run_ids.length, "run"), counted(content.models.length, "model"), counted(content.tasks.length, "task")];
  byId("lede").textContent = `${parts[0]}: ${parts[1]} on ${parts[2]}, ${range} tokens, ${counted(all, "sample")}.`;
  if (content.models.length === 1) document.title = `${content.models[0]}: bamctl report`;
  for (const section of document.querySelectorAll("main > section:not([hidden], #filters)")) {
    byId("sections").append(element("a", { href: `#${section.id}` }, section.querySelector("h2").textContent));
  }
}

function start() {
  const renders = [];
  for (const chapter of content.chapters) {
    const section = byId(chapter.kind);
    section.hidden = false;
    renders.push(buildTable(section, chapter));
    const curves = chapter.kind === "scores" ? byId("curves") : section;
    curves.hidden = false;
    renders.push(buildCurves(curves, chapter));
  }
  if (content.heatmaps.maps.length) {
    byId("depths").hidden = false;
    renders.push(buildHeatmaps());
  }
  renders.push(buildSamples(), buildRuns());
  buildFilters(() => renders.forEach((render) => render()));
  buildDrilldown();
  buildTheme();
  tellWhatThereIs();
  renders.forEach((render) => render());
  document.addEventListener("scroll", hideTip, { passive: true });
}

start();
