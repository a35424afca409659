"""`bamctl perplexity` from the command line to the files it leaves behind."""

import pandas as pd
import pytest

WORDS = "The grass is green. The sky is blue. Some sentences, to learn from. "


@pytest.fixture
def text(folder):
    """A text of some thousand tokens in the current folder, with a number every now and then."""
    (folder / "text.txt").write_text(" ".join(f"{WORDS}Number {number}." for number in range(90)))
    return "text.txt"


ASKED = ("perplexity", "tiny", "--max-len", "600", "--samples", "2")


def test_it_measures_stores_prints_and_draws(call, folder, text):
    outcome = call(*ASKED, "--text", text, "--figure", "loss.png")
    assert outcome.status == 0, outcome.err
    for part in ("tiny, full ", "tiny, W128", "tiny, full-W128", "256", "512", "600", "over 2 stretches"):
        assert part in outcome.out
    assert "text.txt: 2 stretches of 600 tokens; full context" in outcome.err
    assert "sliding window of 128" in outcome.err
    assert "stretch 2/2: loss " in outcome.err
    assert "Figure in loss.png" in outcome.err
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    runs = sorted((folder / "results" / "perplexity").iterdir())
    assert len(runs) == 2
    for run in runs:
        accuracy = pd.read_parquet(run / "accuracy.parquet")
        assert accuracy["length"].tolist() == [256, 512, 600]
        assert accuracy["n"].tolist() == [2, 2, 2]
        assert accuracy["tokens_scored"].tolist() == [510, 512, 176]

    again = call(*ASKED, "--text", text)
    assert again.status == 0
    assert again.out == outcome.out
    assert again.err.count("all stretches were there already; nothing was read") == 2


def test_windows_are_those_that_are_named(call, folder, text):
    outcome = call(*ASKED, "--text", text, "--windows", "64,256", "--out", "elsewhere")
    assert outcome.status == 0, outcome.err
    assert outcome.err.index("full context") < outcome.err.index("of 256") < outcome.err.index("window of 64")
    stored = [pd.read_parquet(path) for path in (folder / "elsewhere").rglob("samples.parquet")]
    assert sorted(pd.concat(stored)["window"].dropna().unique()) == [64, 256]


def test_within_the_train_length_there_is_no_window_and_a_line_says_so(call, folder, text):
    outcome = call("perplexity", "tiny", "--text", text, "--max-len", "128")
    assert outcome.status == 0, outcome.err
    assert "tiny: no sliding window, its train length 128 holds all of --max-len 128" in outcome.err
    assert "10 stretches of 128 tokens" in outcome.err
    assert "window" not in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samples", "0"], "--samples 0: must lie between 1"),
        (["--samples", "500"], "lower --samples to"),
        (["--max-len", "512k"], "text.txt has"),
        (["--max-len", "lots"], "length 'lots' is not a number of tokens"),
        (["--max-len", "1"], "--max-len 1: a stretch of 1 token has nothing to predict; the shortest has 2"),
        (["--windows", "600"], "--windows 600: holds all of a stretch of 600"),
        (["--windows", "2"], "--windows 2: too short for tiny, the shortest is 4 tokens"),
        (["--windows", ","], "--windows: lengths ',' name no length"),
        (["--windows", ""], "--windows: lengths '' name no length"),
        (["--windows", "many"], "--windows: length 'many' is not a number of tokens"),
        (["--text", "nowhere.txt"], "there is no file nowhere.txt"),
        (["--dtype", "float23"], "--dtype 'float23' is not known (did you mean float32?)"),
        (["--device", "gpu"], "device 'gpu' is not known"),
        (["--backend", "nativ"], "did you mean native?"),
        (["--figure", "loss.doc"], ".png, .pdf or .svg"),
        (["--figure", "nowhere/loss.png"], "there is no folder"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(call, folder, text, arguments, message):
    before = sorted(folder.rglob("*"))
    outcome = call(*ASKED, "--text", text, *arguments)
    assert outcome.status == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("arguments", [("perplexity", "tiny"), ("perplexity", "--text", "text.txt")])
def test_a_model_and_a_text_have_to_be_named(call, folder, arguments):
    outcome = call(*arguments)
    assert outcome.status == 2
    assert outcome.err.startswith("bamctl: Missing ")


def test_an_unknown_model_is_one_line(call, folder, text):
    outcome = call("perplexity", "tini", "--text", text)
    assert outcome.status == 2
    assert "tini" in outcome.err
    assert not (folder / "results").exists()


def test_a_checkpoint_that_is_named_twice_is_read_once(call, folder, text):
    outcome = call("perplexity", "tiny", "models/tiny", "t*", "--text", text, "--max-len", "128")
    assert outcome.status == 0, outcome.err
    assert outcome.err.count("tiny: ggd with SSMax") == 1
