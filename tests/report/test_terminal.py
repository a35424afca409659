import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.style import Style

from bamctl.report.table import build_table
from bamctl.report.terminal import SCALE, print_table, score_style

WIDTHS = pytest.mark.parametrize("width", [60, 80, 200])


@pytest.fixture(autouse=True)
def fresh_styles():
    """Rich keeps what a style first came to, in 256 colours if another test printed it in those."""
    Style.parse.cache_clear()
    Style._add.cache_clear()


def printed(accuracy, width, *, intervals=False, **options) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    print_table(build_table(accuracy), console, intervals=intervals)
    return console.file.getvalue()


def blocks(text: str) -> list[list[str]]:
    """The tables, each as its lines; the caption is the last."""
    return [[line.rstrip() for line in block.split("\n")] for block in re.split(r"\n\s*\n", text.strip())]


@WIDTHS
def test_every_number_is_there_at_any_width(two_models, width):
    text = printed(two_models, width)
    *tables, _ = blocks(text)
    columns: dict[str, list[str]] = {}
    for header, *rows in tables:
        assert [row.split()[0] for row in rows] == ["tiny", "tiny-rope"]
        for place, name in enumerate(header.split()[1:], start=1):
            columns[name] = [row.split()[place] for row in rows]
    table = build_table(two_models)
    assert list(columns) == table.header()[1:]
    assert [list(texts) for texts in zip(*columns.values(), strict=True)] == [
        texts[1:] for texts in table.body(intervals=False)
    ]
    assert (len(tables) == 1) == (width == 200)


@WIDTHS
@pytest.mark.parametrize("intervals", [False, True])
def test_nothing_is_wider_than_asked_or_cut(two_models, width, intervals):
    text = printed(two_models, width, intervals=intervals)
    assert max(cell_len(line) for line in text.split("\n")) <= width
    assert "…" not in text
    assert text.count("[84, 100]") == (14 + 1 if intervals else 0)


def test_piped_text_has_no_control_codes(two_models):
    assert "\x1b" not in printed(two_models, 80)


def test_the_text_is_ascii(two_models):
    assert printed(two_models, 80, intervals=True).isascii()


def test_a_terminal_has_colours_and_no_color_takes_them_away(two_models, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    colourful = printed(two_models, 80, force_terminal=True, color_system="truecolor")
    assert "48;2;254;232;56" in colourful  # the background of 100%
    monkeypatch.setenv("NO_COLOR", "1")
    plain = printed(two_models, 80, force_terminal=True, color_system="truecolor")
    assert not re.search(r"\x1b\[[\d;]*[34]8[;m]", plain)
    for text in (colourful, plain):
        assert re.sub(r"\x1b\[[\d;]*m", "", text) == printed(two_models, 80)


@WIDTHS
def test_averages_are_shown_at_any_width(three_tasks, width):
    *tables, _ = blocks(printed(three_tasks, width))
    shown = [line.split("tasks")[1].split() for table in tables for line in table if "average of" in line]
    texts = [text for line in shown for text in line]
    assert texts == ["512", "90.0", "70.0", "41.0", "4k", "67.0", "58.8", "75.2"]
    assert (len(tables) == 1) == (width == 200)


def test_a_table_of_averages_alone_has_no_rows_of_runs(three_tasks):
    first, second = blocks(printed(three_tasks, 60))[:2]
    assert [line.split()[0] for line in first] == [
        "task",
        "niah_single_1",
        "niah_multiquery",
        "vt",
        "average",
    ]
    assert [line.split() for line in second] == [
        ["task", "Avg.", "wAvg", "(inc)", "wAvg", "(dec)"],
        ["average", "of", "3", "tasks", "67.0", "58.8", "75.2"],
    ]


def test_an_average_is_coloured_as_a_run_is(three_tasks):
    text = printed(three_tasks, 200, force_terminal=True, color_system="truecolor")
    (line,) = [line for line in text.split("\n") if "average of" in line]
    assert line.count("48;2;") >= 3


def test_one_length_is_one_table(make_run):
    *tables, _ = blocks(printed(make_run({512: (19, 20)}), 60))
    assert [[line.split() for line in table] for table in tables] == [
        [["model", "train", "512", "effective"], ["tiny", "512", "95", ">=512"]]
    ]


def test_a_long_label_is_wrapped_and_keeps_its_numbers(make_run):
    name = "models/" + "very-" * 20 + "long"
    text = printed(make_run({512: (19, 20)}, model=name, variant="x"), 60)
    *tables, _ = blocks(text)
    lines = tables[0][1:]
    assert "".join(line.split()[0] for line in lines) == name
    assert lines[0].split()[1:] == ["512", "95", ">=512"]


def test_a_console_too_narrow_for_a_number_still_shows_it_whole(two_models):
    text = printed(two_models, 10)
    assert "…" not in text
    assert ">=4M" in text
    assert "effective" in text


def test_a_model_s_name_is_no_markup(make_run):
    assert "[red]m[/red]" in printed(make_run({512: (1, 1)}, model="[red]m[/red]"), 80)


def luminance(colour: str) -> float:
    """WCAG 2's relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(factor * part for factor, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("percent", range(101))
def test_the_writing_stands_out_from_its_background(percent):
    lights = sorted(luminance(colour) for colour in score_style(percent / 100).split(" on "))
    assert (lights[1] + 0.05) / (lights[0] + 0.05) >= 4.5  # WCAG 2, level AA


def test_more_is_brighter_and_the_brightest_is_all():
    brightness = [luminance(score_style(percent / 100).split(" on ")[1]) for percent in range(101)]
    assert brightness == sorted(brightness)
    assert len(set(brightness)) == len(SCALE)
    assert brightness[99] < brightness[100]
