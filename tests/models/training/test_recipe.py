from pathlib import Path

import pytest
import yaml

from bamctl.errors import BadInput
from bamctl.models.training.recipe import load_recipe
from bamctl.models.training.text import PYTHON_DOCS, load_text


def test_a_recipe_is_read(recipe_file):
    recipe = load_recipe(recipe_file)
    assert recipe.name == "smallest"
    assert recipe.train_length == 140
    assert recipe.digest == load_recipe(recipe_file).digest


def test_the_digest_is_of_the_content(recipe_file, recipe_content):
    before = load_recipe(recipe_file).digest
    recipe_content["limits"] = ["It has its limits"]
    recipe_file.write_text(yaml.safe_dump(recipe_content))
    assert load_recipe(recipe_file).digest == before
    recipe_content["seed"] = 4
    recipe_file.write_text(yaml.safe_dump(recipe_content))
    assert load_recipe(recipe_file).digest != before


def test_fields_that_came_later_leave_the_digests_of_older_recipes(recipe_file, recipe_content):
    root = Path(__file__).parents[3]
    digest = load_recipe(root / "models/tiny-bam-ssmax/recipe.yaml").digest
    assert digest == "8cd6d982c5736af10990ea0491bb71244372e08c6a81736e8d59ea58ae5378d0"
    before = load_recipe(recipe_file).digest
    for section, field, default, other in (
        ("data", "held_out_nouns", 0.0, 0.1),
        ("optimiser", "muon_learning_rate", None, 0.02),
        ("optimiser", "tokens_per_pass", None, 512),
        ("optimiser", "language_weight", 1.0, 0.5),
    ):
        for value in (default, other):
            recipe_content[section][field] = value
            recipe_file.write_text(yaml.safe_dump(recipe_content))
            assert (load_recipe(recipe_file).digest == before) == (value == default), field
        del recipe_content[section][field]


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        (["optimiser", "steps"], 0, "optimiser.steps"),
        (["optimiser", "learning_rate"], -1, "optimiser.learning_rate"),
        (["optimiser", "speed"], 3, "optimiser.speed"),
        (["stages", 0, "lengths"], [90, 70], "stages.0"),
        (["stages", 1, "until"], 0.9, "stages must end"),
        (["data", "examples", 0, "kind"], "riddle", "data.examples.0"),
        (["data", "text"], [], "data.text"),
        (["data", "held_out_nouns"], 1, "data.held_out_nouns"),
        (["optimiser", "muon_learning_rate"], 0, "optimiser.muon_learning_rate"),
        (
            ["data", "examples", 0],
            {"kind": "niah", "weight": 1, "task": "niah_multivalue", "values": [3, 2]},
            "values",
        ),
        (["model", "vocab_size"], 5, "vocab_size"),
        (["name"], "../up", "name"),
        (["precision"], "8-bit", "precision"),
    ],
)
def test_a_wrong_field_is_named_in_one_line(recipe_file, recipe_content, field, value, told):
    place = recipe_content
    for part in field[:-1]:
        place = place[part]
    place[field[-1]] = value
    recipe_file.write_text(yaml.safe_dump(recipe_content))
    with pytest.raises(BadInput) as caught:
        load_recipe(recipe_file)
    assert str(recipe_file) in str(caught.value)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["a: [", "just words", "", "\0"])
def test_what_is_no_recipe_is_told_in_one_line(recipe_file, content):
    recipe_file.write_text(content)
    with pytest.raises(BadInput, match="recipe"):
        load_recipe(recipe_file)


def test_a_missing_recipe(tmp_path):
    with pytest.raises(BadInput, match="nowhere"):
        load_recipe(tmp_path / "nowhere.yaml")


def test_the_shipped_recipe_trains_at_short_lengths():
    recipe = load_recipe(Path(__file__).parents[3] / "models/tiny-bam-ssmax/recipe.yaml")
    assert recipe.name == "tiny-bam-ssmax"
    assert recipe.train_length <= 512
    assert recipe.limits


def test_text_of_files_folders_and_python(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "one.txt").write_text("First line\nwrapped.\n\nSecond paragraph. " + "x " * 6000)
    (tmp_path / "more/b.md").write_text("Bee.")
    (tmp_path / "more/a.txt").write_text("Ay.")
    (tmp_path / "more/c.py").write_text("no text")
    text = load_text(["one.txt", "more"], relative_to=tmp_path)
    assert text.startswith("First line wrapped.\nSecond paragraph.")
    assert text.endswith("Ay.\n\nBee.")
    assert len(load_text([PYTHON_DOCS], relative_to=tmp_path)) > 500_000


@pytest.mark.parametrize("content", [b"too short", b"\xff\xfe bad", None])
def test_text_that_is_none(tmp_path, content):
    if content is not None:
        (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(BadInput, match="text"):
        load_text(["text.txt"], relative_to=tmp_path)
