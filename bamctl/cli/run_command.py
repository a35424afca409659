"""`bamctl run`: a task file of one's own."""

from pathlib import Path
from typing import Annotated

import typer

from bamctl.cli import options


def run(
    task: Annotated[str, typer.Argument(help="A task file, or the name of a task.")],
    model: options.Models = None,
    max_len: options.MaxLen = None,
    lengths: options.Lengths = None,
    samples: options.Samples = 20,
    depths: options.Depths = "equidistant",
    seed: options.Seed = 0,
    backend: options.BackendName = "native",
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    batch_size: options.BatchSize = 1,
    share_prefixes: options.SharePrefixes = True,
    patience: options.Patience = None,
    out: options.Out = Path("results"),
    explain: options.Explain = False,
) -> None:
    """Measure models on a task file of your own. tasks/passkey.yaml shows what one looks like."""
    from bamctl.cli.measure import MeasureOptions, measure

    chosen = MeasureOptions(
        models=model,
        max_len=max_len,
        lengths=lengths,
        samples=samples,
        depths=depths,
        seed=seed,
        backend=backend,
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        share_prefixes=share_prefixes,
        patience=patience,
        out=out,
        explain=explain,
    )
    measure(task, {}, chosen)
