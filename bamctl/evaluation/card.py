"""The card of a checkpoint: what it is, what it was trained on, what it measures, and where it ends."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from bamctl.attention import GeneralizedGaussian, Laplace
from bamctl.backends.native import NativeBackend
from bamctl.errors import NotInstalled
from bamctl.evaluation.depths import parse_depths
from bamctl.evaluation.run import EvaluationRequest, Progress, evaluate, has_prompts
from bamctl.lengths import doubling_lengths, format_length
from bamctl.models.loading import Checkpoint, open_checkpoint
from bamctl.models.modeling import BamForCausalLM
from bamctl.models.training.recipe import NiahExamples, Recipe, load_recipe
from bamctl.results.proportions import wilson_interval
from bamctl.results.statistics import ACCURACY_COLUMNS, LEARNED, unlearned_runs
from bamctl.results.store import accuracy_table, load_samples
from bamctl.tasks.catalog import RULER_TASKS, build_task, load_spec
from bamctl.tasks.spec import TaskSpec

CARD = "README.md"
LONGEST = 32 * 1024
SAMPLES = 20
_PARTS = 12
"""Lines that a training's course takes in a card."""


def write_card(
    folder: Path,
    *,
    out: Path,
    haystacks: Sequence[str] = ("garbage",),
    needle_tasks: Sequence[str] | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Path:
    """Measures what it was trained on from the train length to 32k, 20 samples a length, and writes the card.

    That is passkey accuracy, and RULER's score of the needle tasks that its recipe names. Lengths behind
    one at which everything was wrong are not measured.

    Args:
        folder: a checkpoint that `bamctl train` made, with its recipe beside the weights.
        out: folder of results, where the samples are stored; those that are there already are not run again.
        haystacks: each gets a row: ``garbage``, or the path of a text file it was not trained on.
        needle_tasks: RULER's needle tasks to measure; None for those that the recipe names.
        on_progress: told after every sample.

    Raises:
        BadInput: no checkpoint with a recipe, or a haystack that cannot be read.
    """
    checkpoint = open_checkpoint(str(folder))
    recipe = load_recipe(folder / "recipe.yaml")
    backend = NativeBackend(checkpoint)
    passkeys = [load_spec("passkey", haystack=haystack) for haystack in haystacks]
    tables = [_measure(backend, spec, "equidistant", out, on_progress) for spec in passkeys]
    if needle_tasks is None:
        needle_tasks = [ex.task for ex in recipe.data.examples if isinstance(ex, NiahExamples)]
    needles = []
    for task in (task for task in RULER_TASKS if task in needle_tasks):
        with contextlib.suppress(NotInstalled):  # what needs RULER's own essays is left out without them
            needles.append(_measure(backend, load_spec(task), "ruler", out, on_progress))
    model = checkpoint.load(device="cpu", dtype="float32")
    path = folder / CARD
    log = pd.read_json(folder / "training_log.jsonl", lines=True)
    lines = _lines(checkpoint, recipe, model, log, pd.concat(tables), needles)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _measure(
    backend: NativeBackend,
    spec: TaskSpec,
    depths: str,
    out: Path,
    on_progress: Callable[[Progress], None],
) -> pd.DataFrame:
    train_length = backend.model.train_length or 512
    task = build_task(spec, backend.tokenizer)
    request = EvaluationRequest(
        lengths=doubling_lengths(train_length, max(LONGEST, train_length)),
        samples=SAMPLES,
        depths=parse_depths(depths, SAMPLES),
        patience=1,
        out=out,
    )
    lengths = tuple(length for length in request.lengths if has_prompts(task, length, request))
    summary = evaluate(backend, task, replace(request, lengths=lengths), on_progress=on_progress)
    accuracy = accuracy_table(load_samples([summary.folder], ACCURACY_COLUMNS))
    return accuracy[accuracy["length"].isin(request.lengths)]


def _lines(
    checkpoint: Checkpoint,
    recipe: Recipe,
    model: BamForCausalLM,
    log: pd.DataFrame,
    accuracy: pd.DataFrame,
    needles: Sequence[pd.DataFrame],
) -> Iterator[str]:
    config = checkpoint.config
    shape = (
        f"{checkpoint.parameters:,} parameters: {config.num_hidden_layers} layers, width"
        f" {config.hidden_size}, {config.num_attention_heads} heads of {config.head_dim}"
    )
    yield from ("---", "library_name: transformers", "license: apache-2.0")
    yield from ("tags: [bamctl, bayesian-attention]", "---", "")
    yield from (f"# {recipe.name}", "", f"{_sentence(recipe.summary)}", "")
    yield f"- {shape}"
    yield f"- vocabulary {config.vocab_size}: byte-level BPE, every digit a token of its own"
    ssmax = "with" if config.ssmax else "without"
    yield f"- position encoding `{config.position_encoding}`, {ssmax} Scalable Softmax"
    yield (
        f"- trained at contexts of {recipe.stages[0].lengths[0]} to {config.train_length} tokens,"
        f" {recipe.optimiser.steps} steps of {recipe.optimiser.tokens_per_step} tokens, seed {recipe.seed}"
    )
    yield (
        "- `recipe.yaml` beside this card is the whole recipe, for `bamctl train`;"
        " `training_log.jsonl` has loss and answer accuracy of every step"
    )
    yield from ("", "## Trained on", "", *_data(recipe))
    if recipe.search:
        told = (f"- {_sentence(sentence)}" for sentence in recipe.search)
        yield from ("", "## How the recipe was found", "", *told)
    yield from ("", "## How it learned", "", *_curve(log))
    yield from ("", "## What it measures", "", *_accuracy(accuracy))
    yield from ("", _has_learned(accuracy, checkpoint.config.train_length))
    if needles:
        yield from ("", *_needles(pd.concat(needles)))
    yield from ("", "## What the heads learned", "", *_heads(model))
    yield from ("", "## Limits", "")
    yield (
        f"- It was trained on these very prompts, at {config.train_length} tokens and less. What it shows is"
        " how retrieval extrapolates in length, not how it generalises to other questions."
    )
    yield from (f"- {_sentence(limit)}" for limit in recipe.limits)


def _data(recipe: Recipe) -> Iterator[str]:
    total = sum(examples.weight for examples in recipe.data.examples)
    for examples in recipe.data.examples:
        yield f"- {examples.weight / total:.0%} {examples.kind}: {examples.describe()}"
    yield f"- haystacks: {recipe.data.garbage:.0%} the passkey task's garbage, else text"
    yield f"- text: {', '.join(recipe.data.text)}"
    if recipe.data.distractors:
        yield (
            f"- in {recipe.data.distractor_share:.0%} of the haystacks numbers that nobody asks for,"
            " so that not every number is an answer"
        )
    if recipe.data.held_out_nouns:
        yield f"- {recipe.data.held_out_nouns:.0%} of the nouns that keys are made of are in no example"
    jitter = recipe.log_length_jitter
    if jitter is not None:
        yield (
            f"- in {jitter.share:.0%} of the batches SSMax's ln n times a factor of {jitter.lowest} to"
            f" {jitter.highest}, which imitates other context lengths"
        )


def _curve(log: pd.DataFrame) -> Iterator[str]:
    """The losses in twelve parts of the training, of which a training log has every step."""
    yield "Means over the steps up to the one named; losses in nats a token."
    yield ""
    yield "| step | longest context | loss | loss of answers | answers all right |"
    yield "|---|---|---|---|---|"
    for part in np.array_split(np.arange(len(log)), min(_PARTS, len(log))):
        rows = log.iloc[int(part[0]) : int(part[-1]) + 1]
        answer_loss = rows["answer_loss"].mean()  # a step whose examples ask for nothing has none
        yield (
            f"| {rows['step'].iloc[-1]} | {rows['length'].max()} | {rows['loss'].mean():.2f}"
            f" | {'–' if pd.isna(answer_loss) else f'{answer_loss:.3f}'}"
            f" | {_percent(rows['answer_accuracy'].mean())} |"
        )


def _accuracy(accuracy: pd.DataFrame) -> Iterator[str]:
    lengths = sorted(accuracy["length"].unique())
    yield f"Passkey, five digits, exact match; {SAMPLES} samples a length, equidistant depths, fp32, seed 0."
    yield ""
    yield "| haystack | " + " | ".join(format_length(int(length)) for length in lengths) + " |"
    yield "|---|" + "---|" * len(lengths)
    for variant, rows in accuracy.groupby("variant", sort=True):
        by_length = rows.set_index("length")["accuracy"]
        name = str(variant).removeprefix("haystack=") or "garbage"
        yield f"| {name} | " + " | ".join(_percent(by_length.get(length)) for length in lengths) + " |"
    low, _ = wilson_interval(SAMPLES, SAMPLES)
    yield ""
    yield f"With {SAMPLES} samples, 100% means at least {100 * low:.0f}% with 95% confidence (Wilson)."


def _has_learned(accuracy: pd.DataFrame, train_length: int | None) -> str:
    """Whether what it does beyond its train length says anything about its positions."""
    at_train_length = accuracy[(accuracy["length"] == train_length) & (accuracy["variant"] == "")]
    share = float(at_train_length["accuracy"].iloc[0])
    figure = f"{100 * share:.0f}% at {train_length} tokens in garbage"
    if not unlearned_runs(at_train_length):
        return f"It has learned its training length: {figure}."
    return (
        f"**It has not learned its training length**: {figure}, where {100 * LEARNED:.0f}% is asked for. What"
        " it does at other lengths says nothing of its position encoding."
    )


def _needles(accuracy: pd.DataFrame) -> Iterator[str]:
    lengths = sorted(accuracy["length"].unique())
    yield (
        f"RULER's needle tasks, its score (recall of the answers); {SAMPLES} samples a length, RULER's"
        " depths, fp32, seed 0. A length counts the tokens to generate too; essays are RULER's."
    )
    yield ""
    yield "| task | " + " | ".join(format_length(int(length)) for length in lengths) + " |"
    yield "|---|" + "---|" * len(lengths)
    for task, rows in accuracy.groupby("task", sort=False):
        by_length = rows.set_index("length")["score"]
        cells = (_percent(by_length.get(length)) for length in lengths)
        yield f"| {task} | " + " | ".join(cells) + " |"


def _percent(share: float | None) -> str:
    """`–` where nothing was measured."""
    return "–" if share is None or pd.isna(share) else f"{100 * share:.0f}%"


def _heads(model: BamForCausalLM) -> Iterator[str]:
    if model.config.position_encoding != "ggd" and not model.config.ssmax:
        yield "Nothing of its prior is learned, and it has no Scalable Softmax."
        return
    yield "| layer | head | α | β | SSMax s |"
    yield "|---|---|---|---|---|"
    shared = model.model.prior
    for number, layer in enumerate(model.model.layers):
        prior = layer.self_attn.prior or shared
        ssmax = layer.self_attn.ssmax
        for head in range(model.config.num_attention_heads):
            alpha, beta = "–", "–"
            if isinstance(prior, GeneralizedGaussian):
                alpha, beta = f"{prior.alpha[head].item():.4g}", f"{prior.beta[head].item():.3f}"
            elif isinstance(prior, Laplace):
                alpha, beta = f"{1 / prior.slopes[head].item():.4g}", "1"
            scale = "–" if ssmax is None else f"{torch.as_tensor(ssmax.scale)[head].item():.3f}"
            yield f"| {number} | {head} | {alpha} | {beta} | {scale} |"


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
