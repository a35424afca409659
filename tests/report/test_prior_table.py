"""A model's heads as tables and as CSV."""

import csv
import io

import numpy as np
import pytest
from rich.table import Table

from bamctl.attention.mass import HeadPrior
from bamctl.models.inspection import InspectedHead
from bamctl.models.needle_attention import NeedleAttention
from bamctl.report.prior_table import attention_table, count_kinds, prior_table, to_csv


def head(number: int, *, beta: float, mu: float = 0.0, ssmax: float | None = None) -> InspectedHead:
    return InspectedHead(
        layer=0,
        head=number,
        prior=HeadPrior(rate=4.0**-beta if beta else 0.0, beta=beta, mu=mu, epsilon=1e-5),
        ssmax=ssmax,
        ssmax_scales_prior=True,
    )


def rows(table: Table) -> list[list[str]]:
    columns = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


HEADS = [head(0, beta=1.0), head(1, beta=-0.5), head(2, beta=0.0)]
MEASURED = NeedleAttention(
    length=512,
    shares_LHR=np.array(
        [[[0.5, 0.25, 0.125, 0.0, 0.125], [1, 0, 0, 0, 0], [1e-6, 1e-5, 0.012, 0.98, 0.008]]]
    ),
    tokens_R=np.array([0.05, 0.1, 0.2, 0.01, 0.64]),
)


def test_a_row_is_a_head() -> None:
    assert rows(prior_table(HEADS, [512, 32768])) == [
        ["layer", "head", "α", "β", "prior", "reach at 512", "reach at 32k"],
        ["0", "0", "4", "1", "Laplace-like", "18", "18"],
        [
            "0",
            "1",
            "4",
            "-0.5",
            "far-looking",
            str(HEADS[1].mass(512).reach()),
            str(HEADS[1].mass(32768).reach()),
        ],
        ["0", "2", "-", "-", "uniform", "506", "32440"],
    ]


def test_columns_that_some_models_have() -> None:
    header, first, second = rows(
        prior_table([head(0, beta=1.0, ssmax=0.25), head(1, beta=1.0, mu=-3.25, ssmax=-0.5)], [512])
    )
    assert header == ["layer", "head", "α", "β", "μ", "s", "prior", "reach at 512"]
    assert first[4:7] == ["0", "0.25", "Laplace-like"]
    assert second[4:7] == ["-3.25", "-0.5", "turned round"]


def test_the_word_holds_at_the_greatest_length() -> None:
    nearly = InspectedHead(
        layer=0,
        head=0,
        prior=HeadPrior(rate=1e-4, beta=1.0, mu=0.0, epsilon=1e-5),
        ssmax=None,
        ssmax_scales_prior=True,
    )
    assert rows(prior_table([nearly], [64, 512]))[1][4] == "uniform"
    assert rows(prior_table([nearly], [64, 2048]))[1][4] == "Laplace-like"
    assert count_kinds([nearly, *HEADS], 512) == "4 heads: 2 uniform, 1 far-looking, 1 Laplace-like"
    assert count_kinds([nearly, *HEADS], 2048) == "4 heads: 1 uniform, 1 far-looking, 2 Laplace-like"


def test_attention_in_percent_and_the_tokens_below() -> None:
    assert rows(attention_table(HEADS, [MEASURED])) == [
        ["length", "layer", "head", "prior", "needle", "end", "around", "first", "rest"],
        ["512", "0", "0", "Laplace-like", "50%", "25%", "12.5%", "0%", "12.5%"],
        ["512", "0", "1", "far-looking", "100%", "0%", "0%", "0%", "0%"],
        ["512", "0", "2", "uniform", "<0.001%", "0.001%", "1.2%", "98%", "0.8%"],
        ["512", "", "", "every token alike", "5%", "10%", "20%", "1%", "64%"],
    ]


def test_csv_has_a_line_a_head_and_length() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(HEADS, [512, 1024], []))))
    assert [(line["layer"], line["head"], line["length"]) for line in lines] == [
        ("0", str(number), length) for number in range(3) for length in ("512", "1024")
    ]
    assert list(lines[0]) == [
        *("layer", "head", "alpha", "beta", "mu", "ssmax", "prior", "length", "median", "reach")
    ]
    assert float(lines[0]["alpha"]) == pytest.approx(4)
    assert (lines[0]["ssmax"], lines[0]["median"], lines[0]["reach"]) == ("", "2", "18")
    assert (lines[5]["alpha"], lines[5]["beta"], lines[5]["prior"]) == ("", "", "uniform")
    assert (lines[5]["median"], lines[5]["reach"]) == ("511", "1013")


def test_csv_with_attention_has_its_shares_in_full() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(HEADS, [512], [MEASURED]))))
    assert float(lines[2]["needle"]) == 1e-6
    assert [float(lines[0][name]) for name in ("needle", "end", "around", "first", "rest")] == [
        *(0.5, 0.25, 0.125, 0, 0.125)
    ]
