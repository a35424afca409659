import base64
import hashlib
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import bamctl.report.page
from bamctl.cli.report_command import report
from bamctl.errors import BadInput
from bamctl.report.page.document import SCRIPTS, check_page_path, write_page
from bamctl.report.page.looks import ON_DARK
from bamctl.report.terminal import SCALE
from bamctl.results.frames import to_table
from bamctl.results.schema import SAMPLE_SCHEMA

FOLDER = Path(bamctl.report.page.__file__).parent


def test_the_same_results_are_the_same_file(some_samples, some_page, write):
    shuffled = some_samples.sample(frac=1, random_state=0).reset_index(drop=True)
    assert some_page.read_bytes() == write(shuffled).read_bytes()


def test_every_file_beside_the_module_is_in_the_page(some_page):
    page = some_page.read_text(encoding="utf-8")
    assert sorted(SCRIPTS) == sorted(path.name for path in FOLDER.glob("*.js"))
    for name in (*SCRIPTS, "page.css"):
        assert (FOLDER / name).read_text(encoding="utf-8") in page
    assert "{{" not in re.sub(r"<script>.*</script>", "", page, flags=re.DOTALL)


def test_nothing_is_loaded_from_anywhere(some_page):
    page = some_page.read_text(encoding="utf-8")
    addresses = set(re.findall(r"https?://[^\s\"'<]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which nobody fetches
    assert not re.findall(r"(?:src|href)=\"(?!#|data:,)", page)


def test_only_the_pages_own_script_and_style_are_believed(some_page):
    page = some_page.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for name in ("script", "style"):
        text = re.search(rf"<{name}>(.*?)</{name}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy


def test_names_cannot_leave_their_place(make_answers, write, read_page):
    """A model may be called anything."""
    name = "</script><script>alert(1)</script><!--"
    path = write(make_answers({512: [1.0]}, model=name))
    assert path.read_text(encoding="utf-8").count("<script>") == 1
    assert read_page(path)[0]["models"] == [name]


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def themes():
    """The colours of the page by theme: light, dark by choice, dark by preference."""
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    found = re.findall(r":root[^{]*\{([^}]*)\}", style)
    return [dict(re.findall(r"--([\w]+): (#[0-9a-f]{6})\b", block)) for block in found]


def test_text_is_legible_in_both_themes():
    """WCAG's AA: 4.5 to 1 for text, 3 to 1 for what is drawn."""
    light, dark, preferred = themes()
    assert dark == preferred
    for theme in (light, dark):
        for ground in ("ground", "raised"):
            for ink in ("ink", "quiet", "link", "right", "wrong"):
                assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
            assert contrast(theme["edge"], theme[ground]) >= 3
        assert contrast(theme["ink"], theme["mark"]) >= 4.5
        for step in range(len(SCALE)):
            assert contrast(theme[f"on{step}"], theme[f"s{step}"]) >= 4.5, step
        steps = [luminance(theme[f"s{step}"]) for step in range(len(SCALE))]
        assert steps in (sorted(steps), sorted(steps, reverse=True))
    assert all(contrast(colour, dark["ground"]) >= 4.5 for colour in ON_DARK.values())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("page.htm", "its name must end in .html"),
        ("page", "its name must end in .html"),
        ("nowhere/page.html", "there is no folder"),
        ("folder.html", "is a folder; name a file"),
    ],
)
def test_where_no_page_can_be(tmp_path, name, why):
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(BadInput, match=why):
        check_page_path(tmp_path / name)
    check_page_path(tmp_path / "page.HTML")


def test_a_page_that_cannot_be_written_leaves_the_former_one(some_samples, tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("former")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(BadInput, match=r"page\.html: cannot be written \(No space left on device\)"):
        write_page(some_samples, path, threshold=0.5)
    assert path.read_text() == "former"


@pytest.fixture
def call(tmp_path, monkeypatch, some_samples):
    app = typer.Typer()
    app.command()(report)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    import pyarrow.parquet as pq

    (tmp_path / "results/run").mkdir(parents=True)
    pq.write_table(to_table(some_samples, SAMPLE_SCHEMA), tmp_path / "results/run/samples.parquet")

    def run(*arguments):
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None:
            raise result.exception
        return result

    return run


def test_the_command_writes_it_beside_the_table(call, tmp_path, read_page):
    result = call("--html", "page.html", "--threshold", "50")
    assert result.stdout == call("--threshold", "50").stdout
    assert re.fullmatch(r"page\.html: 0\.\d MB, 48 samples\n", result.stderr)
    assert read_page(tmp_path / "page.html")[0]["chapters"][0]["threshold"] == 0.5
    assert call("--html", "page.html", "--csv").stdout == call("--csv").stdout


def test_the_page_has_what_is_chosen(call, tmp_path, read_page):
    call("--html", "page.html", "--model", "small-rope")
    content, samples, _ = read_page(tmp_path / "page.html")
    assert content["models"] == ["small-rope"]
    assert len(samples["index"]["run"]) == 16


def test_the_page_knows_where_its_results_are(call, tmp_path, read_page):
    (tmp_path / "results").rename(tmp_path / "my results")
    call("my results/run", "my results", "--html", "page.html")
    assert read_page(tmp_path / "page.html")[1]["results"] == "'my results/run' 'my results'"


def test_where_bamctl_looks_of_itself_needs_no_name(call, tmp_path, read_page):
    call("--html", "page.html")
    assert read_page(tmp_path / "page.html")[1]["results"] == ""


def test_what_the_command_says_of_what_is_missing(call, monkeypatch):
    monkeypatch.setattr("bamctl.report.page.samples.MOST_SAMPLES", 40)
    monkeypatch.setattr("bamctl.report.page.samples.LIMITS", (30,))
    message = call("--html", "page.html").stderr
    assert (
        "40 samples; 8 more are in its scores alone; texts longer than 30 characters are shortened" in message
    )


@pytest.mark.parametrize("options", [("--averages",), ("--compare", "a", "b")])
def test_options_that_have_no_page(call, options):
    with pytest.raises(BadInput, match="--html"):
        call("--html", "page.html", *options)
