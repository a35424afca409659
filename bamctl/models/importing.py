"""A checkpoint of BAM's authors → a folder in Hugging Face layout, with its answers and its digest."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from bamctl.errors import BadInput, RunFailed
from bamctl.models.authors import ARGS, WEIGHTS, AuthorsWeights
from bamctl.models.loading import (
    DTYPES,
    BareCheckpoint,
    Checkpoint,
    has_tokenizer,
    no_progress_bar,
    open_bare_checkpoint,
    open_checkpoint,
)
from bamctl.models.modeling import BamForCausalLM
from bamctl.models.reading import one_line

CARD = "README.md"


def import_checkpoint(
    name_or_folder: str, *, to: Path | None = None, tokenizer: str | None = None, dtype: str | None = None
) -> BareCheckpoint:
    """Writes configuration, weights, tokenizer and a card; all of it, or nothing.

    Args:
        name_or_folder: a checkpoint with `args.json` and `model.pt`.
        to: the folder to make; default its own name below ``models/``.
        tokenizer: as for `bamctl.models.loading.open_tokenizer`; default the folder's own, if it has one.
        dtype: a key of `DTYPES` to round the weights to; default as they are. Priors and SSMax stay in fp32.

    Returns:
        What was written, read again; a `Checkpoint` where it has a tokenizer.

    Raises:
        BadInput: no such checkpoint, something wrong with it, or `to` is there already.
        RunFailed: it cannot be written.
    """
    source = _open(name_or_folder, tokenizer)
    if not isinstance(source.weights, AuthorsWeights):
        raise BadInput(f"{source.folder} is in Hugging Face layout already: --model takes it as it is")
    target = Path("models") / source.name if to is None else to.expanduser()
    if target.exists():
        raise BadInput(f"{target} is there already; name another folder with --to, or remove it")
    place = next(parent for parent in target.absolute().parents if parent.exists())
    if not place.is_dir():
        raise BadInput(f"{target} cannot be made: {place} is no folder")
    weights = dict(source.weights.tensors()) if dtype is None else dict(_rounded(source, dtype))
    try:
        # Written aside, on the same disk, one folder deeper than checkpoints are looked for.
        with tempfile.TemporaryDirectory(dir=place, prefix=".bamctl-import-") as aside:
            folder = Path(aside) / "checkpoint"
            _write(source, weights, folder)
            card = _card(target.name, source, open_bare_checkpoint(str(folder)))
            (folder / CARD).write_text("\n".join(card) + "\n", encoding="utf-8")
            target.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(target)
    except (OSError, SafetensorError) as error:
        told = getattr(error, "strerror", None) or one_line(error)  # it names a file that nobody knows of
        raise RunFailed(f"{target} cannot be written ({told})") from None
    return _open(str(target.absolute()), None)


def describe(checkpoint: BareCheckpoint) -> list[tuple[str, str]]:
    """What a checkpoint is, as names and values for people to read."""
    config = checkpoint.config
    positions: list[str] = [config.position_encoding]
    if config.position_encoding == "ggd":
        positions.append("one prior for all layers" if config.shared_prior else "one prior a layer")
        positions += ["location learned"] if config.learned_location else []
    if config.ssmax and config.position_encoding in ("ggd", "laplace"):
        positions.append(f"SSMax of {'content and prior' if config.ssmax_scales_prior else 'content alone'}")
    elif config.ssmax:
        positions.append("SSMax")
    heads = f"{config.num_attention_heads} heads of {config.head_dim}"
    size = (
        f"{config.num_hidden_layers} layers, width {config.hidden_size}, {heads}, SwiGLU"
        f" {config.intermediate_size}, vocabulary {config.vocab_size}"
    )
    return [
        ("positions", ", ".join(positions)),
        ("size", size),
        ("parameters", f"{checkpoint.parameters:,}"),
        ("trained at", f"{config.train_length} tokens"),
        ("weights", str(config.dtype).removeprefix("torch.")),
    ]


def _open(name_or_folder: str, tokenizer: str | None) -> BareCheckpoint:
    bare = open_bare_checkpoint(name_or_folder)
    if tokenizer is None and not has_tokenizer(bare.folder):
        return bare
    return open_checkpoint(name_or_folder, tokenizer=tokenizer)


def _rounded(source: BareCheckpoint, dtype: str) -> Iterator[tuple[str, Tensor]]:
    in_full = set(BamForCausalLM._keep_in_fp32_modules_strict)
    for name, value in source.weights.tensors():
        rounded = value if in_full & set(name.split(".")) else value.to(DTYPES[dtype])
        if not rounded.isfinite().all():
            raise BadInput(f"{source.folder}: weight {name} is not finite in {dtype}")
        yield name, rounded


def _write(source: BareCheckpoint, weights: dict[str, Tensor], folder: Path) -> None:
    tokenizer = source.tokenizer if isinstance(source, Checkpoint) else None
    if tokenizer is not None:
        source.config.bos_token_id = tokenizer.bos_token_id
        source.config.eos_token_id = tokenizer.eos_token_id
        tokenizer.save_pretrained(folder)
    with torch.device("meta"):  # it says what is saved beside the weights, and needs none of its own
        model = BamForCausalLM(source.config)
    torch.nn.Module.to(model, weights["lm_head.weight"].dtype)
    with no_progress_bar():
        model.save_pretrained(folder, state_dict=weights)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # safetensors keeps them to their owner


def _card(name: str, source: BareCheckpoint, written: BareCheckpoint) -> Iterator[str]:
    yield from ("---", "library_name: transformers", "tags: [bamctl, bayesian-attention]", "---", "")
    yield from (f"# {name}", "")
    yield (
        f"Imported by `bamctl import` from `{source.name}`, a folder in the format of the authors of the"
        f" Bayesian Attention Mechanism (arXiv 2505.22842): `{ARGS}` and `{WEIGHTS}`. What it was trained on"
        " is not recorded there."
    )
    yield from ("", *(f"- {label}: {value}" for label, value in describe(written)))
    if not isinstance(source, Checkpoint):
        yield "- it came without a tokenizer: name one with `--tokenizer` to measure it"
