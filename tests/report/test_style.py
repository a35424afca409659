import re
import subprocess
import sys

import matplotlib
import pytest

from bamctl.errors import BadInput
from bamctl.report import style
from bamctl.report.style import check_figure_path, figure_style, new_figure, save_figure


@pytest.fixture
def figure():
    figure, axes = new_figure()
    axes.plot([1, 2], [3, 4])
    axes.set_title("a title")
    return figure


@pytest.mark.parametrize(
    ("name", "beginning"),
    [("f.png", b"\x89PNG"), ("f.PNG", b"\x89PNG"), ("f.pdf", b"%PDF"), ("f.svg", b"<?xml")],
)
def test_the_suffix_names_the_format(figure, tmp_path, name, beginning):
    save_figure(figure, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(beginning)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_png_has_200_dots_an_inch(tmp_path):
    figure, _ = new_figure(width=3.5, height=2)
    save_figure(figure, tmp_path / "f.png")
    header = (tmp_path / "f.png").read_bytes()
    assert [int.from_bytes(header[start : start + 4], "big") for start in (16, 20)] == [700, 400]


def test_a_pdf_carries_its_fonts_as_truetype(figure, tmp_path):
    save_figure(figure, tmp_path / "f.pdf")
    content = (tmp_path / "f.pdf").read_bytes()
    assert b"/FontFile2" in content
    assert b"/Subtype /Type3" not in content


def test_an_svg_needs_no_fonts(figure, tmp_path):
    save_figure(figure, tmp_path / "f.svg")
    assert "<text" not in (tmp_path / "f.svg").read_text()


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_the_same_figure_is_the_same_file(tmp_path, monkeypatch, suffix):
    """At any time of day, and though SVG gives what it defines names of its own."""
    contents = []
    for clock in ("1000000000", "1100000000"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", clock)
        figure, axes = new_figure()
        axes.fill_between([1, 2], [3, 4], hatch="/")
        save_figure(figure, tmp_path / f"f{suffix}")
        contents.append((tmp_path / f"f{suffix}").read_bytes())
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("f.jpg", r"^figure .*f\.jpg: its name must end in \.png, \.pdf or \.svg$"),
        ("f", r"^figure .*f: its name must end in \.png, \.pdf or \.svg$"),
        ("nowhere/f.png", r"^figure .*f\.png: there is no folder .*nowhere$"),
        ("folder.png", r"^figure .*folder\.png: is a folder; name a file$"),
    ],
)
def test_what_cannot_be_written_is_told_in_one_line(figure, tmp_path, name, message):
    (tmp_path / "folder.png").mkdir()
    for refused in (lambda path: check_figure_path(path), lambda path: save_figure(figure, path)):
        with pytest.raises(BadInput, match=message):
            refused(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


def test_a_disk_that_refuses_leaves_the_former_file(figure, tmp_path, monkeypatch):
    path = tmp_path / "f.png"
    path.write_text("former")

    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bamctl.results.files.os.replace", refuse)
    with pytest.raises(BadInput, match=r"f\.png: cannot be written \(No space left on device\)$"):
        save_figure(figure, path)
    assert path.read_text() == "former"
    assert [path.name for path in tmp_path.iterdir()] == ["f.png"]


def test_matplotlib_s_own_state_stays_and_does_not_count(tmp_path):
    before = matplotlib.rcParams.copy()
    with matplotlib.rc_context({"font.size": 30, "axes.spines.top": True}):
        _, axes = new_figure()
        with figure_style():
            legend = axes.legend(handles=axes.plot([1, 2]), labels=["line"])
        assert legend.get_texts()[0].get_fontsize() == 7
        assert not axes.spines["top"].get_visible()
    assert matplotlib.rcParams.copy() == before


def test_no_display_is_asked_for():
    program = "import sys, bamctl.report.style; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_colours_are_distinct():
    every = [*style.ENCODING_COLOURS.values(), *style.OTHER_COLOURS]
    assert len(set(every)) == len(every)
    assert set(every) > set(style.COLOURS)
    assert all(re.fullmatch("#[0-9A-F]{6}", colour) for colour in every)


def test_several_axes():
    figure, axes = new_figure(7, 3, nrows=2, ncols=3)
    assert axes.shape == (2, 3)
    assert figure.get_size_inches().tolist() == [7, 3]
