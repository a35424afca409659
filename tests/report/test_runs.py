import pandas as pd
import pytest

from bamctl.errors import BadInput
from bamctl.report.runs import select_runs


@pytest.mark.parametrize(
    ("tasks", "models", "runs"),
    [
        ([], [], "abc"),
        (["passkey"], [], "ab"),
        (["niah_*"], [], "c"),
        (["passkey", "niah_single_1"], ["tiny"], "ac"),
        ([], ["x[1]"], "b"),
        (["niah_*"], ["x[1]"], ""),
        ([], ["tiny@0123456"], "ac"),  # as tables call models of one name
        ([], ["t* @01", "x[1]"], "abc"),
    ],
)
def test_runs_are_chosen_by_name_or_pattern(make_run, tasks, models, runs):
    accuracy = pd.concat(
        [
            make_run({512: (1, 1)}, "a"),
            make_run({512: (1, 1)}, "b", model="x[1]"),
            make_run({512: (1, 1)}, "c", task="niah_single_1"),
        ]
    )
    assert "".join(select_runs(accuracy, tasks=tasks, models=models)["run_id"]) == runs


def test_an_unknown_name_is_one_line(make_run):
    accuracy = make_run({512: (1, 1)})
    with pytest.raises(BadInput, match=r"^no results of task 'paskey' \(did you mean passkey\?\)$"):
        select_runs(accuracy, tasks=["paskey"], models=[])
    with pytest.raises(BadInput, match=r"^no results of model 'tiny@1' \(did you mean tiny\?\)$"):
        select_runs(accuracy, tasks=[], models=["tiny@1"])
    with pytest.raises(BadInput, match=r"^no results of model 'llama' \(known: tiny\)$"):
        select_runs(accuracy, tasks=[], models=["llama"])
