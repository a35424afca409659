import pandas as pd
import pytest

from bamctl.errors import BadInput
from bamctl.report.pairing import pair_runs

NAMES = ("one", "two")


def runs(*changes) -> pd.DataFrame:
    """A row for each run, which differs from passkey by tiny in what is named."""
    rows = [
        {
            "run_id": f"run{number}",
            "model": "tiny",
            "model_digest": "a",
            "task": "passkey",
            "task_digest": "k",
            "prompt_version": 1,
            "variant": "",
            "depth_policy": "random",
            "backend": "native",
            "dtype": "float32",
            "seed": 0,
            **change,
        }
        for number, change in enumerate(changes)
    ]
    return pd.DataFrame(rows)


def paired(a, b) -> set[tuple[str, str]]:
    """The pairs as backend dtype model on either side."""
    pairs, alone = pair_runs((runs(*a), runs(*b)), NAMES)
    assert len(pairs) + len(alone[0]) == len(a)
    assert len(pairs) + len(alone[1]) == len(b)
    return {tuple(f"{run['backend']} {run['dtype']} {run['model']}" for run in pair) for pair in pairs}


def test_one_run_on_either_side():
    assert paired([{}], [{"backend": "vllm", "dtype": "bfloat16"}]) == {
        ("native float32 tiny", "vllm bfloat16 tiny")
    }


def test_the_run_that_is_most_alike_is_taken():
    half = {"dtype": "bfloat16"}
    vllm = {"backend": "vllm"}
    assert paired([{}, half], [vllm, vllm | half]) == {
        ("native float32 tiny", "vllm float32 tiny"),
        ("native bfloat16 tiny", "vllm bfloat16 tiny"),
    }
    assert paired([{}, vllm], [{}]) == {("native float32 tiny", "native float32 tiny")}
    assert paired([{}, vllm | half], [{"dtype": "float16"}, vllm | {"dtype": "float16"}]) == {
        ("native float32 tiny", "native float16 tiny"),
        ("vllm bfloat16 tiny", "vllm float16 tiny"),
    }


def test_two_runs_that_may_be_meant_are_refused():
    with pytest.raises(BadInput) as caught:
        paired([{"dtype": "float16"}, {"dtype": "bfloat16"}], [{"backend": "vllm"}])
    assert str(caught.value) == (
        "one: any of these runs of tiny on passkey may be meant: native bfloat16 (run run1), native float16"
        " (run run0); name the folder of one of them"
    )
    with pytest.raises(BadInput, match=r"^two: any of these runs"):
        paired([{}], [{"backend": "vllm"}, {"backend": "transformers"}])


def test_the_same_weights_before_the_same_name_before_any_model():
    other = {"model": "other", "model_digest": "b"}
    assert paired([{}, other], [{"model": "renamed"}, other]) == {
        ("native float32 tiny", "native float32 renamed"),
        ("native float32 other", "native float32 other"),
    }
    assert paired([{}, other], [{"model_digest": "c"}, other]) == {
        ("native float32 tiny", "native float32 tiny"),
        ("native float32 other", "native float32 other"),
    }
    assert paired([{}], [other]) == {("native float32 tiny", "native float32 other")}
    # With something in common, what is left over is not: it stays alone.
    third = {"model": "third", "model_digest": "c"}
    assert paired([{}, other], [{}, third]) == {("native float32 tiny", "native float32 tiny")}


def test_each_task_has_its_own_pairs():
    vt, seed = {"task": "vt", "task_digest": "v"}, {"seed": 1}
    pairs, alone = pair_runs((runs({}, vt, seed), runs(seed, vt)), NAMES)
    assert {(a["run_id"], b["run_id"]) for a, b in pairs} == {("run1", "run1"), ("run2", "run0")}
    assert [[run["run_id"] for run in side] for side in alone] == [["run0"], []]


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([{"task": "vt"}], [{}], "one has tasks vt, two passkey"),
        ([{"variant": "digits=7"}], [{}], "one has variants digits=7, two none"),
        ([{"depth_policy": "0,50"}], [{}], "one has depths 0,50, two random"),
        ([{}], [{"seed": 1}], "one has seeds 0, two 1"),
        ([{}], [{"prompt_version": 2}], "one has versions of the prompts 1, two 2"),
        ([{}], [{"task_digest": "l"}], "one has task files, of digest k, two l"),
        (
            [{}, {"variant": "x", "seed": 1}],
            [{"seed": 1}, {"variant": "x"}],
            "one and two have no task at the same settings; choose one with --task",
        ),
        (
            [{}, {"model": "other", "model_digest": "b"}],
            [{"model": "third", "model_digest": "c"}],
            "one has models other, tiny, two third; choose one of each with --model",
        ),
    ],
)
def test_nothing_in_common_says_why(a, b, message):
    with pytest.raises(BadInput) as caught:
        paired(a, b)
    assert str(caught.value) == f"nothing to compare: {message}"
