"""Stored samples, found and made anew; the published runs are of a version that stored no texts."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bamctl.backends.opening import open_model
from bamctl.errors import BadInput
from bamctl.evaluation.depths import parse_depths
from bamctl.evaluation.plan import plan_samples
from bamctl.evaluation.rerun import find_rows, rebuild_text, rerun_command
from bamctl.evaluation.run import EvaluationRequest, evaluate
from bamctl.results.journal import rows_table
from bamctl.tasks.catalog import build_task, load_spec

PUBLISHED = Path(__file__).parents[2] / "results" / "reference"


@pytest.fixture(scope="module")
def rows(tiny_checkpoint, tmp_path_factory):
    """Those of a run with two lengths and three samples, and the folder of results."""
    opened = open_model(str(tiny_checkpoint))
    request = EvaluationRequest(
        lengths=(128, 256),
        samples=3,
        depths=parse_depths("0,50,100", 3),
        out=tmp_path_factory.mktemp("rerun"),
        command=("bamctl", "passkey", "--model", "a b"),
    )
    backend = opened.start(device="cpu", dtype="float32", share_prefixes=True, longest=300)
    evaluate(backend, build_task(load_spec("passkey"), opened.tokenizer), request)
    (table,) = request.out.rglob("samples.parquet")
    row_ids = pq.read_table(table)["row_id"].to_pylist()
    return [row for row_id in row_ids for row in find_rows([table], row_id)], request.out


def test_a_row_is_found_whole_by_the_beginning_of_its_id(rows):
    rows, out = rows
    assert len(rows) == 6
    for row in rows:
        assert find_rows([out], row.row_id) == [row]
        assert find_rows([out], row.row_id[:12]) == [row]
        assert find_rows([out, *out.iterdir(), *out.rglob("samples.parquet")], row.row_id) == [row]
        assert row.needles is not None
        assert row.command == ("bamctl", "passkey", "--model", "a b")
    assert find_rows([out], "0000") == find_rows([out], rows[0].row_id + "0") == []


def test_several_runs_and_several_samples_are_all_found(rows, tmp_path):
    rows, out = rows
    others = [replace(rows[0], run_id="other"), replace(rows[1], row_id=rows[0].row_id[:4] + "x" * 20)]
    (tmp_path / "more").mkdir()
    pq.write_table(rows_table(others), tmp_path / "more" / "samples.parquet")
    assert {(row.run_id, row.row_id) for row in find_rows([out, tmp_path / "more"], rows[0].row_id[:4])} == {
        (row.run_id, row.row_id) for row in (rows[0], *others)
    }


def test_a_row_that_is_in_a_journal_still_is_found(rows, tmp_path):
    rows, _ = rows
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal.jsonl").write_text(rows[2].to_json() + "\n")
    assert find_rows([tmp_path / "run"], rows[2].row_id[:8]) == [rows[2]]


def test_what_cannot_be_looked_for_is_one_line(rows, tmp_path, caplog):
    rows, out = rows
    with pytest.raises(BadInput, match=r"^row 'abc': at least 4 characters of a row_id are needed$"):
        find_rows([out], "abc")
    with pytest.raises(BadInput, match=r"nowhere: no such file or folder$"):
        find_rows([tmp_path / "nowhere"], "abcd")

    def refuse(folder):
        raise PermissionError(13, "No", str(folder))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.scandir", refuse)
        with pytest.raises(BadInput, match=r"rerun0: cannot be read \(No\)$"):
            find_rows([out], "abcd")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "samples.parquet").write_text("no table")
    assert find_rows([out, tmp_path / "bad"], rows[0].row_id) == [rows[0]]
    assert "left out" in caplog.text


def test_a_stored_command_is_given_this_one_sample(rows):
    (row, *_), _ = rows
    words = ("bamctl", "passkey", "--model", "a b", "--only", row.row_id, "--out", "again")
    assert rerun_command(row, out="again") == words


@pytest.mark.parametrize(
    "row_id", ["be6c1b356601e52d82cb9445", "85ccd0db0586cd9c6c535814", "d0671c15e1e2bfc6e62c33bc"]
)
def test_the_command_of_a_row_that_has_none_plans_this_row(row_id):
    # Runs of several models share a row's id, and the later ones have their command.
    row = next(row for row in find_rows([PUBLISHED], row_id) if row.command is None)
    command = rerun_command(row, out="again")
    assert command is not None
    given = dict(zip(command[-18::2], command[-17::2], strict=True))
    assert (given["--model"], given["--backend"], given["--dtype"]) == (row.model, "native", "float32")
    samples = int(given["--samples"])
    plan = plan_samples(
        load_spec(row.task),
        lengths=[row.length],
        samples=samples,
        depths=parse_depths(given["--depths"], samples),
        seed=int(given["--seed"]),
    )
    assert row_id in [sample.row_id for sample in plan[row.length]]


def test_a_row_that_does_not_say_how_it_came_about_has_no_command(rows):
    (row, *_), _ = rows
    old = replace(row, command=None)
    assert rerun_command(old, out="again") is not None
    assert rerun_command(replace(old, variant="digits=7"), out="again") is None
    loss = replace(old, metric="loss", prediction=None, exact=None, recall=None, loss=1.0, tokens_scored=2)
    assert rerun_command(loss, out="again") is None


def test_a_prompt_is_made_anew_where_its_model_and_its_task_are_here(rows, tiny_checkpoint):
    for row in rows[0]:
        text = rebuild_text(
            replace(row, model=str(tiny_checkpoint), needles=None, excerpts=None, question=None)
        )
        assert (text.needles, text.excerpts, text.question) == (row.needles, row.excerpts, row.question)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"model": "nobody"}, "there is no model or tokenizer 'nobody'"),
        ({"task": "vt"}, "the task vt is another one here"),
        ({"task": "nothing"}, "there is no task 'nothing'"),
        (
            {"task_digest": "0", "variant": "digits=7"},
            "the task passkey is another one here, and the run had digits=7",
        ),
        ({"tokenizer_digest": "0"}, "the tokenizer of .* is another one here"),
        ({"row_id": "abcd"}, "the prompt as it is made here is another one"),
        ({"prompt_digest": None}, "no prompt was made"),
        ({"depth": None}, "no prompt was made"),
    ],
)
def test_why_a_prompt_is_not_made_anew(rows, tiny_checkpoint, columns, why):
    (row, *_), _ = rows
    with pytest.raises(BadInput, match=f"^{why}"):
        rebuild_text(replace(row, **({"model": str(tiny_checkpoint)} | columns)))
