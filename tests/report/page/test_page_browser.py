"""The page in headless Chromium. Where there is none these are skipped."""

import itertools
import random
import shutil
from contextlib import contextmanager

import pandas as pd
import pytest

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")

CONTRASTS = """
() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const over = (top, under) => {
    const alpha = top[3] ?? 1;
    return [0, 1, 2].map((part) => alpha * top[part] + (1 - alpha) * under[part]);
  };
  const light = (colour) => {
    const linear = (share) => (share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.map((part) => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    if (!node) return [255, 255, 255];
    const own = parse(getComputedStyle(node).backgroundColor);
    return (own[3] ?? 1) === 1 ? own : over(own, ground(node.parentElement));
  };
  const poor = [];
  let seen = 0;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !node.checkVisibility()) continue;
    if (node.closest("script, :disabled, option")) continue;
    const style = getComputedStyle(node);
    const drawn = node.namespaceURI.endsWith("svg");
    const [one, other] = [light(parse(drawn ? style.fill : style.color)), light(ground(node))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    seen += 1;
    if (ratio < 4.5) poor.push([texts.currentNode.data, ratio]);
  }
  return { seen, poor };
}
"""


FOCUS_IS_SEEN = """
() => {
  const [at, halo] = [document.activeElement, document.activeElement.querySelector(".halo")];
  return halo ? getComputedStyle(halo).stroke !== "none" : getComputedStyle(at).outlineStyle === "solid";
}
"""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        # As root, and in containers, Chromium has no sandbox of its own; it opens our own files alone.
        chromium = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def page_file(some_samples, make_losses, write):
    losses = pd.concat([make_losses({256: [3.0, 3.5], 512: [2.5, 3.0]}, window) for window in (None, 512)])
    return write(pd.concat([some_samples, losses], ignore_index=True))


@pytest.fixture(scope="module")
def opened(browser):
    """Opens a page, and after the test says of every error on its console and every request that it made."""

    @contextmanager
    def shown(path, *, width=1280, height=900, scheme="light", before=None):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        context.set_default_timeout(10_000)
        page = context.new_page()
        complaints, requests = [], []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        if before is not None:
            page.add_init_script(before)
        page.goto(path.as_uri())
        try:
            yield page
            assert complaints == []
            assert {url for url in requests if not url.startswith("data:")} == {path.as_uri()}
        finally:
            context.close()

    return shown


def visible_rows(page, section):
    return page.locator(f"#{section} [data-table] tbody th[scope=row]").all_inner_texts()


def test_it_shows_everything_without_an_error_or_a_request(opened, page_file):
    with opened(page_file) as page:
        assert page.locator("h1").count() == 1
        assert page.locator("main > section:visible h2").all_inner_texts() == [
            "Filter",
            "Scores",
            "Score against length",
            "Score by depth and length",
            "Loss against position",
            "Samples",
            "Runs",
        ]
        assert page.inner_text("#lede") == "6 runs: 3 models on 4 tasks, 256 to 4k tokens, 56 samples."
        assert page.locator("#curves .panels svg").count() == 4
        assert page.locator("#losses .panels svg").count() == 1
        assert page.locator("#heatmaps details").count() == 2
        assert page.locator("#runs-table tbody tr").count() == 6
        assert page.locator("#sample-list tbody tr").count() == 25
        page.wait_for_selector("#sample-list .said:has-text('10512')")


def test_every_table_and_field_is_named(opened, page_file):
    with opened(page_file) as page:
        assert (
            page.evaluate(
                """() => [...document.querySelectorAll("main table")].filter(
                (table) => !table.caption?.textContent || !table.querySelector("th[scope=col]")).length"""
            )
            == 0
        )
        assert (
            page.evaluate(
                """() => [...document.querySelectorAll("input, select")].filter(
                (field) => !field.labels.length && !field.getAttribute("aria-label")).length"""
            )
            == 0
        )
        levels = page.evaluate(
            "() => [...document.querySelectorAll('h1,h2,h3,h4')].map((h) => Number(h.tagName[1]))"
        )
        assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels))
        assert (
            page.locator(
                "#scores .cell[aria-label='passkey, small-bam, 1k: 75.0%, 95% interval 30 to 95%, n = 4']"
            ).count()
            == 1
        )


def test_filters(opened, page_file):
    with opened(page_file) as page:
        page.uncheck("label:has-text('small-rope') input")
        assert page.inner_text("#filter-status") == "5 of 6 runs shown"
        assert visible_rows(page, "scores") == ["small-bam"] * 4
        assert page.locator("#curves .legend").inner_text() == "small-bam"
        assert page.locator("#heatmaps h4").all_inner_texts() == ["small-bam"]
        assert "40 samples" in page.inner_text("#page-number")
        page.uncheck("label:has-text('niah_multivalue') input")
        assert visible_rows(page, "scores") == ["small-bam"] * 2  # and no average, which is of both tasks
        assert page.inner_text("#filter-status") == "4 of 6 runs shown"
        assert page.locator("#runs-table tbody tr").count() == 4
        assert "32 samples" in page.inner_text("#page-number")
        page.select_option("select[aria-label='Shortest length']", label="1k")
        page.select_option("select[aria-label='Longest length']", label="2k")
        heads = page.locator("#scores [data-table] thead th").all_inner_texts()
        assert heads == ["model", "train", "1k", "2k", "effective"]
        assert page.locator("#scores .cell").first.inner_text() == "75.0"
        assert page.locator("#losses [data-table]").inner_text() == "Nothing fits this filter."
        page.select_option(
            "select[aria-label='Shortest length']", label="4k"
        )  # beyond the other end, which follows
        assert page.locator("#scores [data-table] thead th").all_inner_texts()[2:-1] == ["4k"]
        page.click("button[aria-label='Models: none']")
        assert page.locator("#scores [data-table]").inner_text() == "Nothing fits this filter."
        assert page.locator("#curves .panels svg").count() == 0
        page.click("text=Reset all")
        page.wait_for_function(
            "() => document.getElementById('filter-status').textContent === '6 runs, all shown'"
        )
        assert len(visible_rows(page, "scores")) == 5


def test_outcomes_and_pages(opened, page_file):
    with opened(page_file) as page:
        page.click("#page-on")
        assert page.inner_text("#page-number") == "Page 2 of 3, 56 samples"
        page.select_option("#outcome", "wrong")
        assert page.inner_text("#page-number").startswith("Page 1 of 1, ")
        assert set(page.locator("#sample-list .verdict").all_inner_texts()) == {"wrong"}
        page.select_option("#outcome", "partly")
        assert set(page.locator("#sample-list td:nth-child(6)").all_inner_texts()) == {"25%", "50%"}
        page.select_option("#outcome", "skipped")
        assert "4 samples" in page.inner_text("#page-number")
        page.select_option("#outcome", "failed")
        assert page.inner_text("#sample-list") == "Nothing fits this filter."


def test_the_mouse_shows_numbers(opened, page_file):
    with opened(page_file) as page:
        page.locator("#curves .point[aria-label^='small-bam, 1k']").first.hover()
        tip = page.inner_text("#tip")
        assert "passkey, small-bam, 1k" in tip
        assert "75.0%, 95% interval 30 to 95%, n = 4" in tip
        assert "small-rope" in tip
        page.locator("h1").hover()
        assert page.is_hidden("#tip")
        page.locator("#losses .point").first.hover()
        assert "3.250 (25.79) nats a token" in page.inner_text("#tip")
        page.locator("#heatmaps .cell").first.hover()
        assert "100%, n = 1" in page.inner_text("#tip")


def test_intervals_in_the_table(opened, page_file):
    with opened(page_file) as page:
        page.check("#scores [data-intervals]")
        assert page.locator("#scores .cell").nth(1).inner_text().split("\n") == ["75.0", "n=4 [30, 95]"]
        effective = page.locator("#scores tbody tr:nth-child(2) td.text").nth(1)
        assert effective.inner_text().startswith("512 [")
        assert "interval" in page.inner_text("#scores [data-notes]")
        page.uncheck("#scores [data-intervals]")
        assert effective.inner_text() == "512"


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def focused(page):
    return page.evaluate(
        "() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.id"
    )


@pytest.mark.parametrize(
    ("before", "first", "moved"),
    [
        ("#scores [data-intervals]", "passkey, small-bam, 512", "passkey, small-rope, 1k"),
        ("#curves .point >> nth=0", "small-bam, 512", "small-rope, 1k"),
        ("#heatmaps summary >> nth=0", "small-bam, depth 0%, 512", "small-bam, depth 33%, 1k"),
    ],
    ids=["table", "curves", "heatmap"],
)
def test_the_keyboard_alone(opened, page_file, before, first, moved):
    """Tab to it, arrows within it, Enter opens what is behind a cell, Escape closes it and comes back."""
    with opened(page_file) as page:
        page.focus(before)
        if before.startswith("#curves"):
            press(page, "Shift+Tab", "Tab")
        else:
            press(page, "Tab")
        assert focused(page).startswith(first)
        press(page, "ArrowRight", "ArrowDown")
        assert focused(page).startswith(moved)
        assert page.evaluate(FOCUS_IS_SEEN)
        press(page, "Enter")
        assert page.is_visible("#drilldown")
        page.wait_for_selector("#drilldown .pair")
        press(page, "Escape")
        assert page.is_hidden("#drilldown")
        assert focused(page).startswith(moved)


def test_a_filter_is_reached_and_changed_by_keys(opened, page_file):
    with opened(page_file) as page:
        press(page, "Tab")
        assert page.evaluate("() => document.activeElement.textContent") == "Skip to the results"
        for _ in range(40):
            press(page, "Tab")
            if page.evaluate("() => document.activeElement.type === 'checkbox'"):
                break
        press(page, "Space")
        assert page.inner_text("#filter-status") == "3 of 6 runs shown"


def test_what_is_said_of_a_sample(opened, page_file):
    with opened(page_file) as page:
        page.click("#scores .cell[aria-label^='passkey, small-bam, 1k']")
        page.wait_for_selector("#drilldown .quote")
        assert page.inner_text("#drilldown-title") == "small-bam · passkey · 1k"
        choices = page.locator("#drilldown-choice option").all_inner_texts()
        assert choices == [
            "#0: right, depth 0%",
            "#1: right, depth 33.3%",
            "#2: right, depth 66.7%",
            "#3: wrong, depth 100%",
        ]
        body = page.inner_text("#drilldown-body")
        assert body.startswith("Right")
        assert "The grass is green. The pass key is 11024. The sky is blue." in body
        assert page.locator("#drilldown .quote-head + .quote mark").inner_text() == "The pass key is 11024."
        assert "What is the pass key? The pass key is" in body
        assert "bamctl passkey --model small-bam --lengths 512,1k --only passkey-1024-0 --out rerun" in body
        assert page.locator("#drilldown th:text-is('prefill_seconds') + td").inner_text() == "0.25 seconds"
        page.click("#drilldown-on")
        page.wait_for_selector("#drilldown .quote:has-text('11031')")
        page.select_option("#drilldown-choice", "3")
        page.wait_for_selector("#drilldown .verdict.wrong")
        assert page.is_disabled("#drilldown-on")
        press(page, "Escape")
        page.click("#sample-list tbody tr:nth-child(4)")
        assert page.inner_text("#drilldown-title") == "Samples"
        assert page.locator("#drilldown-choice option").count() == 25


def test_a_skipped_sample_says_why(opened, page_file):
    with opened(page_file) as page:
        page.click("#scores .cell[aria-label='passkey, small-bam, 4k: 4 skipped']")
        page.wait_for_selector("#drilldown .quote:has-text('no memory for so long a prompt')")
        assert page.inner_text("#drilldown .verdict") == "Skipped"


@pytest.mark.parametrize(("results", "named"), [((), ""), (("my results",), "'my results' ")])
def test_a_prompt_that_is_not_in_the_results_is_made_anew(opened, make_answers, write, results, named):
    """Several models share a row_id, and no path but the default one is looked in without being named."""
    old = {"excerpts": None, "question": None, "command": None}
    runs = [make_answers({512: [1.0]}, model=model, **old) for model in ("a", "b")]
    with opened(write(pd.concat(runs, ignore_index=True), results=results)) as page:
        page.click("#scores .cell[aria-label^='passkey, b, 512']")
        command = page.locator("#drilldown-parts .command .quote").inner_text()
        assert command == f"bamctl show passkey-512-0 {named}--run b-passkey"


def test_results_of_which_nothing_is_done(opened, make_answers, write):
    with opened(write(make_answers({512: ["skipped"] * 4, 1024: ["failed"] * 4}))) as page:
        assert page.locator("#scores .cell").all_inner_texts() == ["skip", "fail"]
        assert page.is_hidden("#depths")
        page.click("#scores .cell >> nth=1")
        page.wait_for_selector("#drilldown .verdict:has-text('Failed')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(opened, page_file, scheme):
    """Nothing makes the page itself scroll sideways, and the filter does not fill the screen."""
    with opened(page_file, width=360, height=740, scheme=scheme) as page:
        page.locator("#heatmaps summary").last.click()
        sideways = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(sideways) == 0
        assert page.is_hidden("#filter-form")
        page.click("#filters summary")
        assert page.evaluate(sideways) == 0
        page.click("#scores .cell >> nth=1")
        page.wait_for_selector("#drilldown .row-facts")
        box = page.locator("#drilldown").bounding_box()
        assert (box["x"], box["width"]) == (0, 360)
        assert (
            page.evaluate(
                "() => document.querySelector('#drilldown-body').scrollWidth"
                " - document.querySelector('#drilldown-body').clientWidth"
            )
            == 0
        )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast(opened, page_file, scheme):
    with opened(page_file, scheme=scheme) as page:
        page.click("#scores .cell >> nth=1")
        page.wait_for_selector("#drilldown .row-facts")
        found = page.evaluate(CONTRASTS)
    assert found["seen"] > 300
    assert found["poor"] == []


def test_light_and_dark(opened, page_file):
    ground = "() => getComputedStyle(document.body).backgroundColor"
    with opened(page_file, scheme="light") as page:
        light = page.evaluate(ground)
        page.click("#theme")
        dark = page.evaluate(ground)
        assert light != dark
        assert page.inner_text("#theme") == "Light"
        page.click("#theme")
        assert page.evaluate(ground) == light
    with opened(page_file, scheme="dark") as page:
        assert page.evaluate(ground) == dark
        page.click("#theme")
        assert page.evaluate(ground) == light
        assert (
            page.evaluate("() => localStorage.length + sessionStorage.length + document.cookie.length") == 0
        )
        page.reload()
        assert page.evaluate(ground) == dark  # nothing is kept


def test_a_browser_that_cannot_unpack_says_so(opened, page_file):
    with opened(page_file, before="delete globalThis.DecompressionStream") as page:
        assert "cannot unpack" in page.inner_text("#samples-notes")
        assert page.locator("#scores .cell").first.inner_text() == "100"
        page.click("#scores .cell >> nth=0")
        assert "cannot unpack" in page.inner_text("#drilldown-body")


def test_hostile_texts_do_no_harm(opened, make_answers, write):
    hostile = "</script><script>window.harm = 1</script><img src=x onerror='window.harm = 1'>"
    samples = make_answers(
        {512: [0.0]},
        model=hostile,
        prediction=f"{hostile}\x00\u202eשלום" + "x" * 100_000,
        excerpts=(hostile,),
        needles=(hostile,),
        question=hostile,
        references=(hostile,),
        variant=hostile,
        command=("bamctl", hostile),
    )
    with opened(write(samples)) as page:
        page.wait_for_function(
            "() => [...document.querySelectorAll('.said')].every((cell) => cell.textContent)"
        )
        for said, most in zip(page.locator("#sample-list .said").all(), (40, 60), strict=True):
            assert said.inner_text() == f"{hostile[:most]}…"
        page.click("#scores .cell >> nth=0")
        page.wait_for_selector("#drilldown .row-facts")
        assert page.evaluate("() => window.harm") is None
        assert page.locator("img").count() == 0
        body = page.inner_text("#drilldown-body")
        assert f"{hostile}␀⟨U+202E⟩שלום" in body
        assert "more characters are left out here" in body


@pytest.fixture(scope="module")
def many_samples(make_answers):
    """10,000 samples, each with a prompt of its own, of words that are packed about as well as English."""
    draw = random.Random(0)
    letters = "etaoinshrdlcumwfgypbvk"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(5000)]
    book = draw.choices(words, [1 / rank for rank in range(1, 5001)], k=100_000)

    def text(count):
        start = draw.randrange(len(book) - count)
        return " ".join(book[start : start + count])

    one = make_answers({length: [1.0, 0.0] * 10 for length in (512, 1024, 2048, 4096, 8192)})
    samples = pd.concat([one] * 100, ignore_index=True)
    number = samples.index // len(one)
    samples["run_id"] = [f"run-{part // 10}" for part in number]
    samples["seed"] = number // 10
    samples["sample"] = samples["sample"] + 20 * (number % 10)
    ids = [f"{draw.getrandbits(96):024x}" for _ in samples.index]
    return samples.assign(
        row_id=ids,
        prompt_digest=[f"{draw.getrandbits(256):064x}" for _ in samples.index],
        needles=[[f"One of the special magic numbers is {key[:7]}."] for key in ids],
        excerpts=[[f"{text(32)} One of the special magic numbers is {key[:7]}. {text(32)}"] for key in ids],
        question=[text(80) for _ in samples.index],
        prediction=[text(12) for _ in samples.index],
        answer_logprob=[draw.random() for _ in samples.index],
        prefill_seconds=[draw.random() for _ in samples.index],
        decode_seconds=[draw.random() for _ in samples.index],
    )


def test_ten_thousand_samples(opened, many_samples, write, read_page):
    assert len(many_samples) == 10_000
    path = write(many_samples)
    assert path.stat().st_size < 6_000_000
    assert read_page(path)[1]["left_out"] == 0
    with opened(path) as page:
        assert "10,000 samples" in page.inner_text("#page-number")
        assert page.evaluate("() => document.querySelectorAll('*').length") < 20_000
        page.select_option("#outcome", "wrong")
        assert "5,000 samples" in page.inner_text("#page-number")
        page.wait_for_function(
            "() => [...document.querySelectorAll('.said')].every((cell) => cell.textContent)"
        )
        page.locator("#scores .cell").last.click()
        page.wait_for_selector("#drilldown .quote")
        assert page.locator("#drilldown-choice option").count() == 200
