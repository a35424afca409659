"""The files that hold a model's weights, and a digest of what is in them."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bamctl.errors import BadInput
from bamctl.models.reading import one_line, read_json

NAMES = ("model.safetensors", "pytorch_model.bin")
"""Of single files, the one that is taken first in front; beside each an index of several: NAME.index.json."""

VOLATILE = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"})
"""Fields of a config.json that do not decide what a model computes; the dtype is told apart elsewhere."""

_BLOCK = 1 << 24
"""Bytes that are hashed at once."""


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files, sorted; none where the folder has no weights.

    Raises:
        BadInput: an index names files that are not there, or is none.
    """
    for name in NAMES:
        if (folder / name).is_file():
            return (folder / name,)
        index = folder / f"{name}.index.json"
        if index.is_file():
            content = read_json(index)
            places = content.get("weight_map") if isinstance(content, dict) else None
            if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
                raise BadInput(f"{index} is no index of weights: it has no weight_map")
            files = tuple(folder / file for file in sorted(set(places.values())))
            missing = next((file for file in files if not file.is_file()), None)
            if missing is not None:
                raise BadInput(f"{folder}: weights {missing.name} are missing; {index.name} names them")
            return files
    return ()


def digest_model(form: dict[str, Any], files: Sequence[Path], code: Sequence[Path] = ()) -> str:
    """SHA-256, in hex, of what decides a model's answers, however its weights are spread over files.

    Args:
        form: its configuration; `VOLATILE` fields do not count.
        files: of weights. Of safetensors every tensor counts, of any other file its bytes.
        code: the model's own source files, where it runs some.

    Raises:
        BadInput: a file cannot be read.
    """
    digest = hashlib.sha256()
    kept = {key: value for key, value in form.items() if key not in VOLATILE}
    digest.update(json.dumps(kept, sort_keys=True).encode())
    tensors: list[tuple[str, Path, int, int]] = []
    whole: list[tuple[str, Path, int, int]] = []
    for file in files:
        try:
            if file.suffix == ".safetensors":
                tensors += _stored_tensors(file)
            else:
                whole.append((file.name, file, 0, file.stat().st_size))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{file} is damaged or cut short ({one_line(error)})") from None
    whole += [(file.name, file, 0, file.stat().st_size) for file in code]
    for name, file, begin, end in (*sorted(tensors), *sorted(whole)):
        digest.update(name.encode())
        with file.open("rb") as opened:
            opened.seek(begin)
            while begin < end:
                block = opened.read(min(_BLOCK, end - begin))
                if not block:
                    raise BadInput(f"{file} is damaged or cut short ({name} ends too early)")
                digest.update(block)
                begin += len(block)
    return digest.hexdigest()


def _stored_tensors(file: Path) -> list[tuple[str, Path, int, int]]:
    """Name with form, file, and the bytes [begin, end) of each tensor of a safetensors file."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > file.stat().st_size:
            raise ValueError("its header is longer than the file")
        header = json.loads(opened.read(size))
    header.pop("__metadata__", None)
    return [
        (f"{name} {info['dtype']} {info['shape']}", file, *(8 + size + at for at in info["data_offsets"]))
        for name, info in header.items()
    ]
