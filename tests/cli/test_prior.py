"""`bamctl prior`: heads as a table, as CSV, as a figure; and what they attend to."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

from bamctl.models.inspection import inspect_heads
from bamctl.models.loading import open_bare_checkpoint

AUTHORS = Path(__file__).parents[1] / "fixtures" / "authors"
QUICK = ["--attention", "--lengths", "150,256", "--samples", "2"]


def table(out, first):
    """The rows of the table whose header begins with a word, up to the first line that is no row."""
    lines = [line.split() for line in out.splitlines()]
    start = next(i for i, line in enumerate(lines) if line[:1] == [first])
    rows = []
    for line in lines[start + 1 :]:
        if not line or not line[0].isdigit():
            break
        rows.append(line)
    return lines[start], rows


def test_heads_and_what_they_are(folder, call):
    outcome = call("prior", "tiny")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("tiny: ggd with SSMax, trained at 128\n")
    header, rows = table(outcome.out, "layer")
    assert " ".join(header) == "layer head α β s prior reach at 128 reach at 32k"
    assert [row[:2] for row in rows] == [[str(layer), str(head)] for layer in (0, 1) for head in range(4)]
    assert [row[3] for row in rows] == ["1", "1", "0.5", "1.2", "-0.5", "0.3", "-1.5", "1"]
    model = open_bare_checkpoint("tiny").load(device="cpu", dtype="float32")
    for row, head in zip(rows, inspect_heads(model), strict=True):
        assert row[4] == "0.3"
        assert " ".join(row[5:-2]) == head.kind(32768)
        assert row[-2:] == [str(head.mass(128).reach()), str(head.mass(32768).reach())]
    said = " ".join(outcome.out.split())
    assert "SSMax multiplies content and prior by s · ln n." in said
    assert "What they are at 32k tokens: far-looking: the neighbourhood is suppressed" in said
    assert "8 heads: 2 far-looking, 2 heavy tail, 4 Laplace-like. The priors take 16 of" in said
    assert "parameters, SSMax 8." in said
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_lengths_are_chosen(folder, call):
    header, _ = table(call("prior", "tiny", "--lengths", "1M,2k").out, "layer")
    assert header[-6:] == ["reach", "at", "2k", "reach", "at", "1M"]


def test_a_checkpoint_of_unknown_train_length(folder, call):
    config = folder / "models" / "tiny" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"train_length": None}))
    out = call("prior", "tiny").out
    assert out.startswith("tiny: ggd with SSMax, trained at ?\n")
    assert "reach at 512" in out


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("alibi", ["alibi: laplace, trained at", "Laplace-like: falls by", "The priors take 0 of"]),
        ("nope-ssmax", ["nope-ssmax: uniform with SSMax", "uniform: no distance", "The priors take 0 of"]),
        ("rotary", ["Positions turn queries and keys (rotary); the prior itself is uniform."]),
        ("sinusoidal", ["Positions are added to the embeddings (sinusoidal);"]),
        ("bam", ["one prior for all layers"]),
        ("bam-ssmax-prior-unscaled", ["SSMax multiplies the content alone by s · ln n."]),
        ("bam-ssmax-learned-loc", [" μ "]),
    ],
)
def test_every_encoding_without_a_tokenizer(name, says, folder, call):
    outcome = call("prior", AUTHORS / name)
    assert (outcome.status, outcome.err) == (0, "")
    said = " ".join(outcome.out.split())
    for words in says:
        assert words in said


def test_csv(folder, call):
    outcome = call("prior", "tiny", "--lengths", "128,4k", "--csv")
    assert (outcome.status, outcome.err) == (0, "")
    lines = list(csv.DictReader(io.StringIO(outcome.out)))
    assert len(lines) == 16
    assert [line["length"] for line in lines[:2]] == ["128", "4096"]
    assert "needle" not in lines[0]


def test_attention(folder, call):
    outcome = call("prior", "tiny", *QUICK)
    assert outcome.status == 0
    assert outcome.err == "  150: 2 prompts read\n  256: 2 prompts read\n"
    header, rows = table(outcome.out, "length")
    assert header == ["length", "layer", "head", "prior", "needle", "end", "around", "first", "rest"]
    assert len(rows) == 18
    for row in rows:
        # Three digits of each percentage are shown.
        assert sum(float(cell.lstrip("<").rstrip("%")) for cell in row[-5:]) == pytest.approx(100, abs=0.5)
    assert rows[8][:4] == ["150", "every", "token", "alike"]
    assert "the last 64 tokens, with the question" in " ".join(outcome.out.split())


def test_attention_as_csv_goes_with_the_options(folder, call):
    plain = list(csv.DictReader(io.StringIO(call("prior", "tiny", *QUICK, "--csv").out)))
    assert [line["length"] for line in plain] == ["150", "256"] * 8
    shares = [[float(line[name]) for name in ("needle", "end", "around", "first", "rest")] for line in plain]
    assert [sum(row) for row in shares] == pytest.approx([1] * 16)
    again = call("prior", "tiny", *QUICK, "--csv", "--depths", "50%", "--seed", "0", "--digits", "5")
    assert list(csv.DictReader(io.StringIO(again.out))) == plain
    for other in (["--depths", "0%"], ["--seed", "1"], ["--digits", "7"], ["--samples", "3"]):
        assert list(csv.DictReader(io.StringIO(call("prior", "tiny", *QUICK, "--csv", *other).out))) != plain


def test_a_tokenizer_of_another_checkpoint(folder, call):
    shutil.copytree(folder / "models" / "tiny", folder / "bare")
    for file in (folder / "bare").glob("tokenizer*"):
        file.unlink()
    refused = call("prior", "bare", *QUICK)
    assert refused.status == 2
    assert "--tokenizer" in refused.err
    assert call("prior", "bare").status == 0
    assert call("prior", "bare", *QUICK, "--tokenizer", "tiny").status == 0


@pytest.mark.parametrize("extra", [[], QUICK])
def test_figures(extra, folder, call):
    outcome = call("prior", "tiny", "--figure", "heads.svg", *extra)
    assert outcome.status == 0
    assert (folder / "heads.svg").read_text().startswith("<?xml")
    assert sorted(path.name for path in folder.iterdir()) == ["heads.svg", "models"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "there is no model 'none'"),
        (["tiny", "--lengths", "4x"], "length '4x' is not a number of tokens"),
        (["tiny", "--lengths", "2000000M"], "a length lies between 1 and 2^40"),
        (["tiny", "--figure", "a.gif"], "must end in .png, .pdf or .svg"),
        (["tiny", "--figure", "none/a.png"], "there is no folder none"),
        (["tiny", "--samples", "3"], "--samples: of use with --attention alone"),
        (["tiny", "--seed", "3", "--dtype", "float16"], "--seed, --dtype: of use with --attention alone"),
        (["tiny", *QUICK, "--samples", "0"], "--samples 0: must lie between 1 and"),
        (["tiny", *QUICK, "--depths", "101%"], "lies outside 0"),
        (["tiny", *QUICK, "--dtype", "float8"], "--dtype 'float8' is not known"),
        (["tiny", *QUICK, "--device", "tpu"], "device 'tpu'"),
        (["tiny", *QUICK, "--digits", "0"], "digits"),
        (["tiny", *QUICK, "--tokenizer", "none"], "none"),
        (["tiny", "--attention", "--lengths", "20"], "length 20 is too short for passkey"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(arguments, message, folder, call):
    outcome = call("prior", *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["models"]


def test_a_model_of_another_kind_has_no_prior(folder, call):
    config = folder / "models" / "tiny" / "config.json"
    config.write_text(json.dumps({"model_type": "llama"}))
    outcome = call("prior", "tiny")
    assert outcome.status == 2
    assert outcome.err.startswith("bamctl: tiny: a model of type llama has no prior over positions;")
    assert outcome.err.count("\n") == 1
