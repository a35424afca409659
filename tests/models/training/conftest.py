"""A recipe small enough to be trained in seconds, on text of its own."""

from pathlib import Path

import pytest
import yaml

WORDS = (
    "river",
    "stone",
    "cloud",
    "garden",
    "window",
    "letter",
    "morning",
    "silver",
    "bridge",
    "candle",
    "forest",
    "harbour",
)


@pytest.fixture
def recipe_content():
    return {
        "name": "smallest",
        "summary": "a recipe for tests",
        "seed": 3,
        "weights_dtype": "float32",
        "tokenizer": {"vocab_size": 400},
        "model": {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "position_encoding": "ggd",
            "prior_beta": [[1, 1], [-0.5, 0.5]],
        },
        "data": {
            "text": ["text.txt"],
            "examples": [
                {"kind": "passkey", "weight": 4, "digits": [2, 4]},
                {
                    "kind": "lookup",
                    "weight": 3,
                    "keys": [1, 2],
                    "digits": [2, 3],
                    "needle": "The number for {key} is: {value}.",
                    "question": "What is the number for {key}? It is",
                },
                {"kind": "text", "weight": 1},
                {"kind": "copy", "weight": 1},
            ],
            "distractors": ["{word} is {number}.", "Page {number}."],
        },
        "stages": [{"until": 0.5, "lengths": [70, 90]}, {"until": 1, "lengths": [100, 140]}],
        "optimiser": {
            "steps": 8,
            "tokens_per_step": 600,
            "learning_rate": 0.003,
            "prior_learning_rate": 0.006,
            "warmup_steps": 2,
        },
        "log_length_jitter": {"share": 0.75, "lowest": 0.6, "highest": 2.0},
        "search": ["Half the rate was worse"],
        "limits": ["It has learned nothing"],
    }


@pytest.fixture
def recipe_file(tmp_path, recipe_content) -> Path:
    sentences = [
        f"The {WORDS[i % 12]} by the {WORDS[(i * 5 + 3) % 12]} was {WORDS[(i * 7 + 1) % 12]} and quiet."
        for i in range(400)
    ]
    (tmp_path / "text.txt").write_text(" ".join(sentences))
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe_content))
    return path
