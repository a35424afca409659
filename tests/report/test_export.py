import io
import json
import math
import re

import numpy as np
import pandas as pd
import pytest

from bamctl.report.export import to_csv, to_json, to_latex, to_markdown
from bamctl.report.table import build_table
from bamctl.results.frames import to_table
from bamctl.results.schema import ACCURACY_SCHEMA

HOSTILE = r"a_b|c&d%e$f#g{h}i~j^k\l<m>*n*`o`[p]"


def test_csv_reads_back(two_models):
    back = pd.read_csv(io.StringIO(to_csv(two_models)), dtype={"variant": str})
    assert list(back.columns) == ACCURACY_SCHEMA.names
    assert len(back) == 28
    typed = back.fillna({"variant": ""}).astype(two_models.dtypes)
    assert to_table(typed, ACCURACY_SCHEMA).equals(to_table(two_models, ACCURACY_SCHEMA))


def test_in_csv_a_null_is_an_empty_field(make_run):
    header, line, _ = to_csv(make_run({512: "skipped"})).split("\n")
    record = dict(zip(header.split(","), line.split(","), strict=True))
    assert (record["accuracy"], record["ci_low"], record["prefill_seconds"]) == ("", "", "")
    assert (record["n"], record["skipped"]) == ("0", "20")


def test_csv_has_lists_with_spaces_between(make_run):
    run = make_run({512: (1, 2), 1024: "skipped"})
    run.at[0, "recall_values"] = np.array([0.0, 0.25])
    run.at[0, "recall_counts"] = np.array([3, 17])
    back = pd.read_csv(io.StringIO(to_csv(run)), dtype=str)
    assert back[["recall_values", "recall_counts"]].iloc[0].tolist() == ["0.0 0.25", "3 17"]
    assert back[["recall_values", "recall_counts"]].iloc[1].isna().all()
    assert back["train_length"].tolist() == ["512", "512"]


def test_json_reads_back_line_by_line(two_models):
    lines = to_json(two_models).splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows == to_table(two_models, ACCURACY_SCHEMA).to_pylist()
    assert list(rows[0]) == ACCURACY_SCHEMA.names


def test_in_json_what_is_not_known_or_not_finite_is_null(make_run):
    run = make_run({512: "skipped", 1024: (1, 2)}, train_length=None)
    run["mean_answer_logprob"] = [math.nan, -math.inf]
    run.at[1, "recall_values"] = np.array([0.0, 1.0])
    first, second = map(json.loads, to_json(run).splitlines())
    assert first["accuracy"] is first["train_length"] is first["recall_values"] is None
    assert (first["n"], second["n"], second["accuracy"], second["ssmax"]) == (0, 2, 0.5, True)
    assert second["mean_answer_logprob"] is None
    assert second["recall_values"] == [0.0, 1.0]


def cells_of_markdown(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", line)
    return [re.sub(r"\\(.)", r"\1", cell.strip()) for cell in cells[1:-1]]


@pytest.mark.parametrize("intervals", [False, True])
def test_markdown_reads_back(two_models, intervals):
    two_models["model"] = two_models["model"].replace("tiny", HOSTILE)
    table = build_table(two_models)
    lines = to_markdown(table, intervals=intervals).split("\n")
    rows = [cells_of_markdown(line) for line in lines if line.startswith("|")]
    assert rows[0] == table.header()
    assert rows[1] == ["---"] + ["--:"] * 16
    assert rows[2:] == table.body(intervals=intervals)
    caption = lines[lines.index("") + 1 :]
    assert caption[0] == table.common[0] + ", " + ", ".join(table.common[1:]) + "."


UNESCAPED = [
    ("$[", "["),
    ("]$", "]"),
    (r"$\geq$", ">="),
    ("$<$", "<"),
    ("$>$", ">"),
    ("{[}", "["),
    ("{]}", "]"),
    (r"\textasciitilde{}", "~"),
    (r"\textasciicircum{}", "^"),
    *((f"\\{character}", character) for character in "&%$#_{}"),
    (r"\textbackslash{}", "\\"),
]


def cells_of_latex(line: str) -> list[str]:
    cells = []
    for cell in re.split(r"(?<!\\)&", line.removesuffix(r" \\")):
        text = cell.strip()
        for escaped, plain in UNESCAPED:
            text = text.replace(escaped, plain)
        cells.append(text)
    return cells


@pytest.mark.parametrize("intervals", [False, True])
def test_latex_reads_back(two_models, intervals):
    two_models["model"] = two_models["model"].replace("tiny", HOSTILE)
    table = build_table(two_models)
    lines = [line for line in to_latex(table, intervals=intervals).split("\n") if not line.startswith("%")]
    header, *body = [cells_of_latex(line) for line in lines if line.endswith(r"\\")]
    assert header == table.header()
    assert body == table.body(intervals=intervals)
    frame = [line for line in lines if not line.endswith(r"\\")]
    tabular = r"\begin{tabular}{l" + "r" * 16 + "}"
    assert frame == [tabular, r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}", ""]


def test_in_latex_nothing_special_is_left_bare(make_run):
    latex = to_latex(build_table(make_run({512: (1, 2)}, model=HOSTILE)))
    (row,) = [line for line in latex.split("\n") if "textbackslash" in line]
    label = row.split(" & ")[0]
    assert not re.search(r"(?<!\\)[&%#_]", label)
    assert not re.search(r"[~^]", label)
    assert latex.split("\n")[0].startswith("% ")


def test_averages_are_in_markdown_and_latex(three_tasks):
    table = build_table(three_tasks)
    *_, average = [cells_of_markdown(line) for line in to_markdown(table).split("\n") if line.startswith("|")]
    assert average == table.body(intervals=False)[-1]
    assert "Averages are RULER's" in to_markdown(table)
    lines = to_latex(table).split("\n")
    rows = [cells_of_latex(line) for line in lines if line.endswith(r"\\")]
    assert rows[-1] == table.body(intervals=False)[-1]
    assert lines.count(r"\midrule") == 2
    assert lines[lines.index(r"\midrule", lines.index(r"\midrule") + 1) + 1].startswith(
        "average of 3 tasks & "
    )
