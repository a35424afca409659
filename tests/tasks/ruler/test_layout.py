"""Which pieces a needle prompt has, and where its white space goes."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamctl.tasks.fill import Closing, Cut, Opening, Sentences, Whole
from bamctl.tasks.ruler.layout import (
    NeedlePrompt,
    anchors_behind,
    essay_slots,
    line_slots,
)
from bamctl.tasks.tokenization import ANCHORS, BEHIND_NEWLINE, words_and_spaces


def prompt(*depths: float, **changes: Any) -> NeedlePrompt:
    plain = NeedlePrompt(
        before="Find.\n",
        question="\nWhich?",
        answer_prefix=" It is",
        needles=tuple(f"N{index}." for index in range(len(depths))),
        depths=depths,
    )
    return dataclasses.replace(plain, **changes)


def drawn(slots: Any) -> str:
    """Slots as a string: s for a whole sentence, c for the cut one."""
    parts = []
    for slot in slots:
        match slot:
            case Sentences():
                parts.append("s" * (slot.stop - slot.start))
            case Cut():
                parts.append("c")
            case Closing():
                parts.append(slot.question + slot.answer_prefix)
            case Opening() | Whole():
                parts.append(slot.text)
    return "|".join(parts)


@pytest.mark.parametrize(
    ("depths", "sentences", "has_cut", "expected"),
    [
        ((0,), 4, False, "Find.\n| N0.|ssss|\nWhich? It is"),
        ((50,), 4, False, "Find.\n|ss| N0.|ss|\nWhich? It is"),
        ((74.9,), 4, False, "Find.\n|ss| N0.|ss|\nWhich? It is"),
        ((75,), 4, False, "Find.\n|sss| N0.|s|\nWhich? It is"),
        ((100,), 4, False, "Find.\n|ssss| N0.| \nWhich? It is"),
        ((100,), 4, True, "Find.\n|ssss|c| N0.| \nWhich? It is"),
        ((99,), 4, True, "Find.\n|ssss| N0.|c|\nWhich? It is"),
        ((100, 100), 2, True, "Find.\n|ss|c| N0.|  N1.| \nWhich? It is"),
        ((0, 0), 2, True, "Find.\n| N0.|  N1.|ss|c|\nWhich? It is"),
        ((0, 60, 60, 100), 3, True, "Find.\n| N0.|ss| N1.|  N2.|s|c| N3.| \nWhich? It is"),
        ((0, 100), 0, True, "Find.\n| N0.|c| N1.| \nWhich? It is"),
        ((0, 100), 0, False, "Find.\n| N0.|  N1.| \nWhich? It is"),
        ((100,), 0, True, "Find.\n|c| N0.| \nWhich? It is"),
    ],
)
def test_essays(depths: tuple[float, ...], sentences: int, has_cut: bool, expected: str) -> None:
    assert drawn(essay_slots(prompt(*depths), sentences, has_cut)) == expected


@pytest.mark.parametrize(
    ("depths", "lines", "has_cut", "expected"),
    [
        ((0,), 3, False, "Find.\n|N0.\n|sss|Which? It is"),
        ((50,), 3, True, "Find.\n|ss|N0.\n|s|c|\nWhich? It is"),
        ((100,), 3, False, "Find.\n|ss|N0.\n|s|Which? It is"),
        ((100,), 3, True, "Find.\n|sss|N0.\n|c|\nWhich? It is"),
        ((100, 100), 1, False, "Find.\n|N0.\n|N1.\n|s|Which? It is"),
        ((0, 100), 0, True, "Find.\n|N0.\n|N1.\n|c|\nWhich? It is"),
        ((0, 100), 0, False, "Find.\n|N0.\n|N1.\n|Which? It is"),
    ],
)
def test_lines(depths: tuple[float, ...], lines: int, has_cut: bool, expected: str) -> None:
    slots = line_slots(prompt(*depths), lines, has_cut)
    assert slots is not None
    assert drawn(slots) == expected


@pytest.mark.parametrize("question", [" Which?", "Which?", "\n\nWhich?", "\n Which?", ""])
def test_a_last_line_that_ends_otherwise_is_cut(question: str) -> None:
    asked = prompt(0, 100, question=question)
    assert line_slots(asked, 2, False) is None
    cut, none = line_slots(asked, 2, True), line_slots(asked, 0, False)
    assert cut is not None
    assert none is not None
    assert drawn(cut) == f"Find.\n|N0.\n|ss|N1.\n|c|{question} It is"
    assert drawn(none) == f"Find.\n|N0.\n|N1.|{question} It is"


def test_spaces_before_the_haystack_go_with_its_first_piece() -> None:
    spaced = prompt(0, 100, before="Text:  ", behind_opening=("Text:",))
    assert drawn(essay_slots(spaced, 1, False)) == "Text:|   N0.|s| N1.| \nWhich? It is"
    assert drawn(line_slots(spaced, 2, False)) == "Text:|  N0.\n|s|N1.\n|s|Which? It is"
    first = essay_slots(spaced, 1, False)[1]
    assert isinstance(first, Whole)
    assert first.behind == ("Text:",)


@pytest.mark.parametrize(
    ("before", "parts", "anchors"),
    [
        ("Find.\n", ("Find.\n", ""), (*BEHIND_NEWLINE, *ANCHORS)),
        ("Find.\n  ", ("Find.\n", "  "), (*BEHIND_NEWLINE, *ANCHORS)),
        ("Text: ", ("Text:", " "), ("Text:", *ANCHORS)),
        ("Text:", ("Text:", ""), ("Text:", *ANCHORS)),
        ("", ("", ""), ()),
        ("  ", ("", "  "), ()),
    ],
)
def test_the_opening(before: str, parts: tuple[str, str], anchors: tuple[str, ...]) -> None:
    assert words_and_spaces(before) == parts
    assert anchors_behind(before) == anchors


@given(
    depths=st.lists(st.floats(0, 100), min_size=1, max_size=8).map(sorted),
    count=st.integers(0, 50),
    has_cut=st.booleans(),
    lines=st.booleans(),
)
def test_every_sentence_stands_once_and_in_order(
    depths: list[float], count: int, has_cut: bool, lines: bool
) -> None:
    slots = (line_slots if lines else essay_slots)(prompt(*depths), count, has_cut)
    assert slots is not None
    assert isinstance(slots[0], Opening)
    assert isinstance(slots[-1], Closing)
    runs = [(slot.start, slot.stop) for slot in slots if isinstance(slot, Sentences)]
    assert [number for run in runs for number in range(*run)] == list(range(count))
    assert all(start < stop for start, stop in runs)
    assert sum(isinstance(slot, Cut) for slot in slots) == has_cut
    needles = [slot.text.strip() for slot in slots if isinstance(slot, Whole) and slot.needle]
    assert needles == [f"N{index}." for index in range(len(depths))]
    if has_cut:
        assert not any(isinstance(slot, Sentences) for slot in slots[slots.index(Cut()) :])
