"""Starting vLLM's engine, and being rid of it."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import psutil

from bamctl.backends.hub import HubModel
from bamctl.backends.vllm.installed import hushed, import_vllm, start_failed
from bamctl.backends.vllm.memory import (
    SPACE,
    choose_cache_bytes,
    position_bytes,
    told_by_environment,
    too_little,
)
from bamctl.backends.vllm.options import EngineOptions, check_engine_args
from bamctl.backends.weights import weight_files
from bamctl.errors import BadInput
from bamctl.models.loading import DTYPES

PROCESSES = "VLLM_ENABLE_V1_MULTIPROCESSING"
"""vLLM's own variable: whether its engine has a process of its own, however few ranks it has."""


def in_process(options: EngineOptions) -> bool:
    """Whether the engine runs in this process: where it has one rank, and nobody asked otherwise.

    It then starts in seconds instead of a quarter of a minute, Ctrl-C ends it at once, and an error in it
    is the error itself rather than the news that a process is gone.
    """
    if PROCESSES in os.environ:
        return os.environ[PROCESSES] == "0"
    executor = options.given().get("distributed_executor_backend")
    return options.ranks == 1 and executor in (None, "uni")


def start_engine(
    opened: HubModel, options: EngineOptions, *, dtype: str, share_prefixes: bool, longest: int
) -> Any:
    """A ``vllm.LLM``.

    Args:
        opened: a model whose weights are in its folder.
        options: what a user asked for.
        dtype: a key of `DTYPES`, or ``auto`` where vLLM shall choose.
        share_prefixes: whether the prefix cache is on.
        longest: tokens of the longest prompt with its answer.

    Raises:
        BadInput: an argument or an architecture that vLLM does not know.
        RunFailed: it did not start, or has no memory for a prompt of that length.
    """
    vllm = import_vllm()
    from vllm.engine.arg_utils import EngineArgs

    check_engine_args(options, set(EngineArgs.__dataclass_fields__))
    arguments = {
        "model": str(opened.folder),
        "skip_tokenizer_init": True,
        "trust_remote_code": opened.trust_remote_code,
        "dtype": dtype,
        "max_model_len": longest,
        "enable_prefix_caching": share_prefixes,
        "generation_config": "vllm",
        "logprobs_mode": "raw_logprobs",
        "disable_log_stats": False,  # the requests' times are part of them
        "use_tqdm_on_load": False,
        "seed": 0,
        **_on_cpu(opened, options, dtype, longest),
        **options.given(),
    }
    if opened.has_arguments:
        arguments["hf_overrides"] = _Replaced(opened.config)
    print(f"{opened.name}: starting vLLM's engine", file=sys.stderr, flush=True)
    with _environment(in_process(options)), hushed() as unseen:
        try:
            return vllm.LLM(**arguments)
        except Exception as error:  # whatever vLLM, torch or a worker makes of it
            cause = unseen.cause(error)
            raise too_little(opened.name, f"{error} {cause}") or start_failed(
                opened.name, error, cause
            ) from None


def stop_engine(llm: Any) -> None:
    """Ends an engine's processes and frees its memory; more than once does no harm."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    with contextlib.suppress(Exception), hushed():
        llm.llm_engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()


def check_device(device: str) -> str:
    """The kind of device that vLLM was built for: ``cpu``, ``cuda``.

    Raises:
        BadInput: another one is asked for.
    """
    import_vllm()
    from vllm.platforms import current_platform

    kind = str(current_platform.device_type)
    if device not in ("auto", kind):
        which = "; CUDA_VISIBLE_DEVICES chooses among several" if device.startswith("cuda:") else ""
        raise BadInput(f"--device {device}: the vllm that is installed runs on {kind}{which}")
    return kind


class _Replaced:
    """A configuration in the place of the one that vLLM has read; travels to vLLM's processes."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def __call__(self, _: Any) -> Any:
        return self._config


def _on_cpu(opened: HubModel, options: EngineOptions, dtype: str, longest: int) -> dict[str, object]:
    """What vLLM's defaults for a CPU are not made for: runs that take seconds, beside other programs."""
    if check_device("auto") != "cpu":
        return {}
    chosen: dict[str, object] = {"enforce_eager": True}  # compiling takes longer than most runs
    named = {"kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override"} & set(
        options.given()
    )
    if named or told_by_environment():
        return chosen
    itemsize = DTYPES[dtype].itemsize if dtype in DTYPES else 2
    weights = sum(file.stat().st_size for file in weight_files(opened.folder))
    chosen["kv_cache_memory_bytes"] = choose_cache_bytes(
        longest,
        position_bytes(opened.config.get_text_config(decoder=True), itemsize),
        free=psutil.virtual_memory().available - weights,
    )
    return chosen


@contextlib.contextmanager
def _environment(here: bool) -> Iterator[None]:
    """vLLM's variables while it starts; afterwards they are as they were."""
    wanted: dict[str, str | None] = {
        PROCESSES: "0" if here else "1",
        # How many positions a model has is our own check, made before; ours have no limit to name.
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    }
    if not told_by_environment():
        wanted[SPACE] = None  # empty, it would be no number
    before = {name: os.environ.get(name) for name in wanted}
    try:
        _put(wanted)
        yield
    finally:
        _put(before)


def _put(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
