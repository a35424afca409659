"""The plan: every sample that is to exist, before the first one is run."""

import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from bamctl.errors import BadInput
from bamctl.evaluation.depths import DepthPolicy
from bamctl.results.shard import Shard
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


def select_samples(
    plan: Mapping[int, Sequence[PlannedSample]], *, shard: Shard | None = None, only: Set[str] | None = None
) -> dict[int, list[PlannedSample]]:
    """The samples of a shard that `only` names, None for all; lengths of which none is left are left out.

    Raises:
        BadInput: the plan has no sample of a row_id in `only`.
    """
    if only is not None:
        unknown = sorted(only - {sample.row_id for samples in plan.values() for sample in samples})
        if unknown:
            raise BadInput(
                f"--only {unknown[0]}: no sample of these lengths, depths and seed has this row_id;"
                " bamctl show prints the command that has it"
            )
    selected = {
        length: [
            sample
            for sample in samples
            if (shard is None or shard.holds(sample.sample)) and (only is None or sample.row_id in only)
        ]
        for length, samples in plan.items()
    }
    return {length: samples for length, samples in selected.items() if samples}
