"""What is stored as a run's command: typed again, it asks for the same."""

import shlex
from dataclasses import fields, replace

import pytest

from bamctl.cli.command_words import REPEATED, command_words
from bamctl.cli.options import MeasureOptions
from bamctl.tasks.catalog import load_spec

OF_THE_MOMENT = {"shard", "only", "out", "explain", "quiet", "json"}
ALWAYS = {"models", "lengths", "max_len", "samples", "depths", "engine"}


@pytest.fixture
def parse(call, monkeypatch):
    """What a command would measure: its tasks, what they are to have otherwise, and its options."""

    def parsed(*words):
        measured = []
        monkeypatch.setattr("bamctl.cli.measure.measure", lambda *arguments: measured.append(arguments))
        assert call(*words).status == 0
        (arguments,) = measured
        return arguments

    return parsed


@pytest.mark.parametrize(
    "typed",
    [
        "passkey",
        "passkey --samples 3 --lengths 4k,128 --out there --quiet",
        "passkey --max-len 64k --json --explain",
        "passkey --digits 7 --haystack 'my essays.txt' --apply-chat-template",
        "passkey --no-apply-chat-template --depths '0, 50%'",
        "passkey --shard 1/2 --only abcd --seed 3 --dtype bfloat16",
        'passkey --backend transformers --model-arg a=1 --model-arg \'b={"c": "d e"}\'',
        "passkey --tokenizer t --trust-remote-code --device cuda:1",
        "passkey --batch-size 3 --no-share-prefixes --patience 2",
        "passkey --backend vllm --tensor-parallel-size 2 --gpu-memory-utilization 0.5",
        "passkey --backend vllm --engine-arg max_num_seqs=8 --engine-arg 'a=\"8\"' --engine-arg 'x=a b'",
        "passkey --backend vllm --engine-arg enforce_eager=true --engine-arg 'y={\"a\": [1, null]}'",
        "ruler",
        "ruler --tasks vt,niah_single_1 --depths equidistant",
        "ruler --tokens-to-generate 9 --no-length-includes-generation",
        "run niah_single_1",
        "run 'a folder/mine.yaml' --apply-chat-template",
    ],
)
def test_the_command_asks_for_the_same(parse, typed):
    tasks, overrides, options = parse(*shlex.split(typed))
    name = next(iter(tasks))
    spec = load_spec("passkey" if "yaml" in name else name)
    stored = command_words(
        tasks[name], spec=spec, overrides=overrides, model="some model", lengths=(512, 1000), options=options
    )
    assert stored[0] == "bamctl"
    tasks_again, overrides_again, options_again = parse(*stored[1:])
    assert list(tasks_again.items()) == [(name, tasks[name])]
    assert overrides_again == overrides
    assert options_again == replace(
        options,
        models=["some model"],
        lengths="512,1000",
        max_len=None,
        **{name: getattr(MeasureOptions, name) for name in OF_THE_MOMENT},
    )


def test_defaults_are_left_out(parse):
    tasks, overrides, options = parse("passkey")
    stored = command_words(
        tasks["passkey"],
        spec=load_spec("passkey"),
        overrides=overrides,
        model="tiny",
        lengths=(4096,),
        options=options,
    )
    expected = "bamctl passkey --model tiny --lengths 4k --samples 20 --depths equidistant"
    assert stored == tuple(expected.split())


def test_an_option_that_one_of_the_tasks_has_no_use_for_is_left_out_of_its_command(parse):
    tasks, overrides, options = parse("ruler", "--tasks", "niah_single_*", "--essays", "mine.txt")
    for name, uses in (("niah_single_1", False), ("niah_single_2", True)):
        stored = command_words(
            tasks[name], spec=load_spec(name), overrides=overrides, model="m", lengths=(512,), options=options
        )
        assert ("--essays" in stored) == uses


def test_every_option_is_part_of_the_command_or_known_not_to_be():
    assert {field.name for field in fields(MeasureOptions)} == set(REPEATED) | ALWAYS | OF_THE_MOMENT
