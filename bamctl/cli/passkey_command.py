"""`bamctl passkey`: a number in a haystack, at every length."""

from pathlib import Path

from bamctl.cli import options


def passkey(
    model: options.Models = None,
    max_len: options.MaxLen = None,
    lengths: options.Lengths = None,
    samples: options.Samples = 20,
    depths: options.Depths = "equidistant",
    digits: options.Digits = None,
    haystack: options.Haystack = None,
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
    """Hide a number in a haystack and ask for it, at every length.

    Prints accuracy against length. Every sample is stored under --out as it finishes; the same command again
    goes on where it stopped.
    """
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
    measure("passkey", {"digits": digits, "haystack": haystack}, chosen)
