"""The training loop, on Lightning Fabric: one device or many, and it goes on where it was killed.

A half-finished training lies in ``<folder>/.training/``; when it is done the folder is a checkpoint in
Hugging Face layout with its recipe and its log.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch import nn
from transformers import PreTrainedTokenizerFast

from bamctl.attention import Prior, ScalableSoftmax
from bamctl.errors import BadInput, RunFailed
from bamctl.models.config import BamConfig
from bamctl.models.loading import no_progress_bar
from bamctl.models.modeling import BamForCausalLM, BamLayer
from bamctl.models.training.data import Batch, ExampleSource
from bamctl.models.training.muon import Muon
from bamctl.models.training.recipe import OptimiserRecipe, Recipe, load_recipe
from bamctl.models.training.text import load_text
from bamctl.models.training.tokenizer import train_tokenizer
from bamctl.models.training.wording import key_strings, prompt_strings
from bamctl.tasks.tokenization import PromptTokenizer

RECIPE = "recipe.yaml"
LOG = "training_log.jsonl"
UNFINISHED = ".training"
OPTIMISERS = ("optimizer", "muon")
"""What they are called in a half-finished training."""
SAVE_EVERY_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one step did; `seconds` and `tokens` count from the start of the training, pauses left out."""

    step: int
    steps: int
    length: int
    loss: float
    """Mean over all tokens, in nats."""
    answer_loss: float | None
    """Mean over the tokens that were asked for; None where the batch asked for none."""
    answer_accuracy: float | None
    """Share of the questions whose every answer token was the likeliest one."""
    learning_rate: float
    tokens: int
    seconds: float


def train(
    recipe_file: Path,
    folder: Path,
    *,
    devices: int | str = "auto",
    accelerator: str = "auto",
    until_step: int | None = None,
    on_step: Callable[[StepReport], None] = lambda report: None,
) -> list[StepReport] | None:
    """Trains a recipe into `folder`, or goes on with what an earlier run of the same recipe left there.

    Where that run had come to its end, its log is returned and nothing is done.

    Args:
        recipe_file: relative paths of text in it start from its folder.
        folder: becomes the checkpoint; may hold the recipe already.
        devices, accelerator: as Lightning Fabric takes them.
        until_step: pause behind this step, with the state saved: what a search compares several recipes at,
            before the best of them goes on. None for the recipe's end.
        on_step: called after every step, in the main process.

    Returns:
        The log, one report a step; None in the processes that only help the first one.

    Raises:
        BadInput: no such recipe, it describes no model, or `folder` holds something else.
        RunFailed: the loss is not finite any more.
    """
    recipe = load_recipe(recipe_file)
    unfinished = folder / UNFINISHED
    _check_folder(folder, recipe)
    if (folder / LOG).exists():
        return [StepReport(**json.loads(line)) for line in (folder / LOG).read_text().splitlines()]
    try:
        fabric = Fabric(accelerator=accelerator, devices=devices, precision=recipe.precision)
    except (ValueError, RuntimeError, MisconfigurationException) as error:
        told = " ".join(str(error).split())
        raise BadInput(f"accelerator {accelerator!r} with {devices} devices: {told}") from None
    fabric.launch()
    fabric.seed_everything(recipe.seed, verbose=False)

    text = load_text(recipe.data.text, relative_to=recipe_file.parent)
    tokenizer = train_tokenizer(
        text, prompt_strings(recipe), recipe.tokenizer.vocab_size, keys=key_strings(recipe)
    )
    config = model_config(recipe, tokenizer)
    source = ExampleSource(recipe, PromptTokenizer(tokenizer), text, tokenizer.eos_token_id)
    bare = BamForCausalLM(config)
    model, *optimisers = fabric.setup(bare, *make_optimisers(bare, recipe.optimiser))

    log: list[StepReport] = []
    state = {"model": model, **dict(zip(OPTIMISERS, optimisers, strict=False)), "log": []}
    if (unfinished / "state.ckpt").exists():
        fabric.load(unfinished / "state.ckpt", state)
        log = [StepReport(**report) for report in state["log"]]
    elif fabric.is_global_zero:
        unfinished.mkdir(parents=True, exist_ok=True)
        _write_recipe(recipe, unfinished)

    saved_at = time.monotonic()
    until_step = recipe.optimiser.steps if until_step is None else until_step
    for report in _steps(recipe, source, fabric, model, optimisers, log, until_step):
        log.append(report)
        if fabric.is_global_zero:
            on_step(report)
        # Saving waits for every process, so one clock decides for all.
        paused = report.step == until_step < recipe.optimiser.steps
        if fabric.broadcast(paused or time.monotonic() - saved_at > SAVE_EVERY_SECONDS):
            state["log"] = [asdict(report) for report in log]
            _save_state(fabric, state, unfinished)
            saved_at = time.monotonic()

    if fabric.is_global_zero and len(log) == recipe.optimiser.steps:
        _finish(recipe, recipe_file, bare, tokenizer, log, folder)
    fabric.barrier()
    return log if fabric.is_global_zero else None


def model_config(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> BamConfig:
    """The recipe's model for this tokenizer.

    Raises:
        BadInput: fields that describe no model.
    """
    try:
        return BamConfig(
            **recipe.model,
            vocab_size=len(tokenizer),
            train_length=recipe.train_length,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    except (ValueError, TypeError) as error:
        raise BadInput(f"recipe {recipe.name}: model: {error}") from None


def learning_rate_factor(step: int, recipe: OptimiserRecipe) -> float:
    """What both learning rates are multiplied with at `step`: warm-up, constant, linear to zero."""
    warm = min(1.0, (step + 1) / max(1, recipe.warmup_steps))
    fraction = step / recipe.steps
    if fraction < recipe.decay_from:
        return warm
    return warm * (1 - fraction) / (1 - recipe.decay_from)


def parameter_groups(model: nn.Module, recipe: OptimiserRecipe) -> list[dict[str, Any]]:
    """AdamW's: matrices decay; norms do not; priors and SSMax do not either, and have a rate of their own.

    Matrices that Muon has are not among them.
    """
    prior_ids = _prior_parameters(model)
    others = prior_ids | {id(p) for p in muon_parameters(model, recipe)}
    priors = [p for p in model.parameters() if id(p) in prior_ids]
    matrices = [p for p in model.parameters() if id(p) not in others and p.dim() >= 2]
    vectors = [p for p in model.parameters() if id(p) not in others and p.dim() < 2]
    groups = [
        {"params": matrices, "base_lr": recipe.learning_rate, "weight_decay": recipe.weight_decay},
        {"params": vectors, "base_lr": recipe.learning_rate, "weight_decay": 0.0},
        {"params": priors, "base_lr": recipe.prior_learning_rate, "weight_decay": 0.0},
    ]
    return [group | {"lr": group["base_lr"]} for group in groups if group["params"]]


def muon_parameters(model: nn.Module, recipe: OptimiserRecipe) -> list[nn.Parameter]:
    """The matrices inside the layers: all but embedding and output; none where Muon is not asked for."""
    if recipe.muon_learning_rate is None:
        return []
    prior_ids = _prior_parameters(model)
    layers = [module for module in model.modules() if isinstance(module, BamLayer)]
    return [p for layer in layers for p in layer.parameters() if id(p) not in prior_ids and p.dim() == 2]


def make_optimisers(model: nn.Module, recipe: OptimiserRecipe) -> list[torch.optim.Optimizer]:
    """AdamW, and Muon where the recipe has it; no parameter has both."""
    adamw = torch.optim.AdamW(parameter_groups(model, recipe), betas=recipe.betas, lr=recipe.learning_rate)
    if recipe.muon_learning_rate is None:
        return [adamw]
    rate = recipe.muon_learning_rate
    group = {"params": muon_parameters(model, recipe), "base_lr": rate}
    return [adamw, Muon([group], lr=rate, weight_decay=recipe.weight_decay)]


def _prior_parameters(model: nn.Module) -> set[int]:
    """The ids of the parameters of priors and of SSMax."""
    return {
        id(parameter)
        for module in model.modules()
        if isinstance(module, (Prior, ScalableSoftmax))
        for parameter in module.parameters()
    }


def _steps(
    recipe: Recipe,
    source: ExampleSource,
    fabric: Fabric,
    model: Any,
    optimisers: list[Any],
    log: list[StepReport],
    until_step: int,
) -> Iterator[StepReport]:
    """The loop itself, from the step behind the log's last one."""
    model.train()
    tokens, seconds = (log[-1].tokens, log[-1].seconds) if log else (0, 0.0)
    for step in range(len(log), min(until_step, recipe.optimiser.steps)):
        started = time.monotonic()
        factor = learning_rate_factor(step, recipe.optimiser)
        for group in (group for optimiser in optimisers for group in optimiser.param_groups):
            group["lr"] = group["base_lr"] * factor
        batch = source.batch(step, rank=fabric.global_rank, ranks=fabric.world_size)
        loss, answer_loss, answer_accuracy = _pass_batch(recipe, batch, step, fabric, model)
        fabric.clip_gradients(
            model, optimisers[0], max_norm=recipe.optimiser.clip, error_if_nonfinite=False
        )  # of the whole model, whichever optimiser is named
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        if not math.isfinite(loss):
            raise RunFailed(
                f"recipe {recipe.name}: the loss is {loss} at step {step + 1};"
                " lower optimiser.learning_rate or optimiser.prior_learning_rate"
            )
        tokens += batch.ids.size * fabric.world_size
        seconds += time.monotonic() - started
        yield StepReport(
            step=step + 1,
            steps=recipe.optimiser.steps,
            length=batch.ids.shape[1],
            loss=loss,
            answer_loss=answer_loss,
            answer_accuracy=answer_accuracy,
            learning_rate=optimisers[0].param_groups[0]["lr"],
            tokens=tokens,
            seconds=seconds,
        )


def _jitter(recipe: Recipe, step: int) -> float:
    """This step's factor on SSMax's ln n; the same on every rank."""
    jitter = recipe.log_length_jitter
    if jitter is None:
        return 1.0
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
    applies, place = torch.rand(2, generator=generator).tolist()
    return jitter.lowest * (jitter.highest / jitter.lowest) ** place if applies < jitter.share else 1.0


def _pass_batch(
    recipe: Recipe, batch: Batch, step: int, fabric: Fabric, model: Any
) -> tuple[float, float | None, float | None]:
    """Forward and backward, in as many parts as the recipe says.

    Returns:
        The mean loss over all tokens, over answer tokens, and the share of answers that are all right.
    """
    rows, length = batch.ids.shape
    most = recipe.optimiser.tokens_per_pass
    together = rows if most is None else max(1, most // length)
    answers = int(batch.is_answer[:, 1:].sum())
    asked = int(batch.is_answer[:, 1:].any(axis=1).sum())
    loss = answer_loss = right = 0.0
    for start in range(0, rows, together):
        part = slice(start, start + together)
        ids = fabric.to_device(torch.from_numpy(batch.ids[part]))
        is_answer = fabric.to_device(torch.from_numpy(batch.is_answer[part, 1:]))
        share = len(ids) / rows
        with fabric.no_backward_sync(model, enabled=part.stop < rows):
            logits = model(ids, use_cache=False, log_length_scale=_jitter(recipe, step)).logits
            nll_BL = F.cross_entropy(
                logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
            ).view(is_answer.shape)
            part_loss = nll_BL.mean() * share
            total = part_loss * recipe.optimiser.language_weight
            found = int(is_answer.sum())
            if found:
                part_answer_loss = nll_BL[is_answer].mean() * (found / answers)
                total = total + part_answer_loss
                answer_loss += part_answer_loss.item()
            fabric.backward(total)
        loss += part_loss.item()
        wrong_BL = (logits[:, :-1].argmax(dim=-1) != ids[:, 1:]) & is_answer
        right += int((~wrong_BL.any(dim=1) & is_answer.any(dim=1)).sum())
    return loss, answer_loss if answers else None, right / asked if asked else None


def _check_folder(folder: Path, recipe: Recipe) -> None:
    unfinished = folder / UNFINISHED
    if (unfinished / "recipe.sha256").exists():
        if (unfinished / "recipe.sha256").read_text().strip() != recipe.digest:
            raise BadInput(
                f"{folder} holds a half-finished training of another recipe;"
                f" remove {unfinished} to start over"
            )
    elif (folder / RECIPE).exists() and load_recipe(folder / RECIPE).digest != recipe.digest:
        raise BadInput(f"{folder} holds another recipe; name another folder with --to")
    elif (folder / LOG).exists():
        return
    elif folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - {RECIPE}):
        raise BadInput(f"{folder} is there already; name another folder with --to, or remove it")


def _write_recipe(recipe: Recipe, folder: Path) -> None:
    (folder / "recipe.sha256").write_text(recipe.digest + "\n")


def _save_state(fabric: Fabric, state: dict[str, Any], unfinished: Path) -> None:
    """Written aside and then moved, so that a kill leaves the former state or this one."""
    fabric.save(unfinished / "state.tmp", state)
    if fabric.is_global_zero:
        (unfinished / "state.tmp").replace(unfinished / "state.ckpt")


def _finish(
    recipe: Recipe,
    recipe_file: Path,
    model: BamForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    log: list[StepReport],
    folder: Path,
) -> None:
    """Makes the folder a checkpoint."""
    dtype = getattr(torch, recipe.weights_dtype)
    in_full = _prior_parameters(model)  # few, and they enter an exponential
    for parameter in model.parameters():
        if id(parameter) not in in_full:
            parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    with no_progress_bar():
        model.save_pretrained(folder)
    for weights in folder.glob("*.safetensors"):
        weights.chmod(0o644)  # safetensors keeps them to their owner
    tokenizer.save_pretrained(folder)
    if not (folder / RECIPE).exists():
        shutil.copyfile(recipe_file, folder / RECIPE)
    with (folder / LOG).open("w") as file:
        file.writelines(json.dumps(asdict(report)) + "\n" for report in log)
    shutil.rmtree(folder / UNFINISHED)
