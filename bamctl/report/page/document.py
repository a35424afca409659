"""The page as one file: what `content` and `samples` gather, in the HTML, styles and scripts beside it."""

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

import bamctl
from bamctl.errors import BadInput
from bamctl.report.depths import depth_rows
from bamctl.report.page.content import Content, collect
from bamctl.report.page.looks import ON_DARK
from bamctl.report.page.samples import PackedSamples, pack_samples
from bamctl.report.page.texts import visible
from bamctl.results.files import reason, replace_file

SCRIPTS = (
    "elements.js",
    "store.js",
    "filters.js",
    "overview.js",
    "curves.js",
    "heatmaps.js",
    "samples.js",
    "drilldown.js",
    "runs.js",
    "main.js",
)
"""In the order of running. They share one scope; the last calls what the others define."""


@dataclass(frozen=True, kw_only=True)
class WrittenPage:
    """What was written."""

    size: int
    """Bytes."""
    samples: int
    left_out: int
    """Samples that are in the scores but cannot be looked at."""
    limit: int | None
    """Characters that a text of a sample has at most; None where none had to be shortened."""


def check_page_path(path: Path) -> None:
    """Whether a page can be written there, to be asked before the work.

    Raises:
        BadInput: its name does not end in .html, the folder does not exist, or `path` is a folder.
    """
    if path.suffix.lower() != ".html":
        raise BadInput(f"page {path}: its name must end in .html")
    if not path.parent.is_dir():
        raise BadInput(f"page {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise BadInput(f"page {path}: is a folder; name a file")


def write_page(
    samples: pd.DataFrame, path: Path, *, threshold: float, results: Sequence[Path] = ()
) -> WrittenPage:
    """Writes results as a page. The same results are the same file, byte for byte.

    Args:
        samples: rows of SAMPLE_SCHEMA, each sample once; at least one.
        path: the file; whoever looks sees the former one or this one, whole.
        threshold: score, 0 … 1, from which a length counts as effective.
        results: where the samples come from, for commands that look them up again; none for where `bamctl`
            looks of itself.

    Raises:
        BadInput: nothing can be written there; see `check_page_path`.
    """
    check_page_path(path)
    samples = samples.reset_index(drop=True)
    depths = depth_rows(samples)
    content = collect(samples, depths, threshold=threshold)
    packed = pack_samples(samples, depths.rows, content.run_ids)
    page = build_page(content, packed, results=results).encode()
    try:
        replace_file(path, lambda aside: _write(aside, page))
    except OSError as error:
        raise BadInput(f"page {path}: cannot be written ({reason(error)})") from error
    return WrittenPage(
        size=len(page), samples=len(packed.index["run"]), left_out=packed.left_out, limit=packed.limit
    )


def build_page(content: Content, samples: PackedSamples, *, results: Sequence[Path] = ()) -> str:
    """The page's HTML; `results` as `write_page` takes them."""
    style = _palette() + _static("page.css")
    script = "\n".join(['"use strict";', "(() => {", *map(_static, SCRIPTS), "})();"])
    parts = {
        "policy": _policy(style, script),
        "style": style,
        "content": _json(content),
        "samples": _json(
            {
                "index": samples.index,
                "fields": samples.fields,
                "commands": samples.commands,
                "block": samples.block,
                "left_out": samples.left_out,
                "results": visible(shlex.join(map(str, results))),
            }
        ),
        "blocks": "\n".join(
            f'<script type="text/plain" id="{kind}-{number}">{block}</script>'
            for kind, blocks in (("prompts", samples.prompts), ("rows", samples.rows))
            for number, block in enumerate(blocks)
        ),
        "script": script,
        "version": bamctl.__version__,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _static("page.html"))


def _static(name: str) -> str:
    return files("bamctl.report.page").joinpath(name).read_text(encoding="utf-8")


def _write(path: Path, page: bytes) -> None:
    path.write_bytes(page)


def _policy(style: str, script: str) -> str:
    """A Content-Security-Policy: nothing is loaded from anywhere, and only these two texts are believed."""
    return (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)};"
        " base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _palette() -> str:
    """The colours of curves, and of scores, as variables and classes."""
    light = "".join(f"--c{number}:{colour};" for number, colour in enumerate(ON_DARK))
    dark = "".join(f"--c{number}:{colour};" for number, colour in enumerate(ON_DARK.values()))
    return (
        f":root{{{light}}}"
        f":root[data-theme=dark]{{{dark}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
    )


def _json(value: Any) -> str:
    """JSON that is safe in a script element: no text in it can end the element, or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_known)
    return text.replace("<", "\\u003c")


def _known(value: Any) -> dict[str, Any]:
    """What of a dataclass is known."""
    entries = ((field.name, getattr(value, field.name)) for field in fields(value))
    return {name: entry for name, entry in entries if entry is not None}
