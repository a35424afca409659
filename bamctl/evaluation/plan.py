"""The plan: every sample that is to exist, before the first one is run."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bamctl.evaluation.depths import DepthPolicy
from bamctl.tasks.spec import TaskSpec


@dataclass(frozen=True, kw_only=True)
class PlannedSample:
    """One row of the grid.

    `row_id` is a digest of what defines the sample, its depth included, and of nothing else: neither the
    model nor the tokenizer, so that two models are asked for the same keys at the same depths, nor what other
    lengths and samples there are. (Equidistant depths do depend on the number of samples.)
    """

    row_id: str
    length: int
    sample: int
    depth: float

    def rng(self) -> np.random.Generator:
        """The sample's own random stream, the same whenever it is asked for."""
        return np.random.default_rng(int(self.row_id, 16))


def plan_samples(
    spec: TaskSpec, *, lengths: Sequence[int], samples: int, depths: DepthPolicy, seed: int
) -> dict[int, list[PlannedSample]]:
    """The grid: for each length, shortest first, its samples in order."""
    defined = (spec.digest, spec.prompt_version, seed)  # once: a digest reads the haystack's whole text
    return {
        length: [_planned(defined, length, sample, depths) for sample in range(samples)]
        for length in sorted(lengths)
    }


def _planned(defined: tuple[str, int, int], length: int, sample: int, depths: DepthPolicy) -> PlannedSample:
    """A sample of a definition's digest, its prompt version and a seed."""
    depth = depths.depth(sample)
    definition = [*defined, length, sample, depths.text if depth is None else depth]
    row_id = hashlib.sha256(json.dumps(definition).encode()).hexdigest()[:24]
    if depth is None:  # from a stream beside the sample's own, which stays the same for a fixed depth
        depth = depths.drawn(np.random.default_rng([int(row_id, 16), 1]))
    return PlannedSample(row_id=row_id, length=length, sample=sample, depth=depth)
