// What the page is given, and its samples' texts, unpacked a block at a time when they are looked at.

const content = JSON.parse(byId("content-data").textContent);
const samples = JSON.parse(byId("samples-data").textContent);
const sampleCount = samples.index.run.length;
const blocks = new Map();
const canUnpack = typeof DecompressionStream === "function";

async function unpack(id) {
  const packed = Uint8Array.from(atob(byId(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function entry(kind, number) {
  const id = `${kind}-${Math.floor(number / samples.block)}`;
  if (!blocks.has(id)) blocks.set(id, unpack(id));
  const columns = await blocks.get(id);
  const place = number % samples.block;
  return Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[place]]));
}

// A sample with all that is known of it.
async function wholeSample(number) {
  const [row, prompt] = await Promise.all([entry("rows", number), entry("prompts", samples.index.prompt[number])]);
  return { ...prompt, ...row };
}

// Of each run its group and its line, by which it is called: "passkey" and "small-bam".
const runNames = content.run_ids.map(() => ({ group: "", label: "", chapter: null }));
for (const chapter of content.chapters) {
  for (const group of chapter.groups) {
    for (const line of group.lines) {
      if (line.runs.length !== 1 || runNames[line.runs[0]].chapter) continue;
      const title = [group.title, ...group.conditions].join(", ");
      runNames[line.runs[0]] = { group: title, label: line.label, chapter };
    }
  }
}

function lengthName(length) {
  return content.names[content.lengths.indexOf(length)];
}
