"""What a user may ask of vLLM's engine, and which of it makes another model of a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from bamctl.backends.arguments import parse_arguments
from bamctl.errors import BadInput, did_you_mean

OURS = {
    "model": "name the model with --model",
    "tokenizer": "--tokenizer does that",
    "tokenizer_mode": "--tokenizer names another one",
    "skip_tokenizer_init": "prompts are token ids, vLLM needs no tokenizer",
    "dtype": "--dtype does that",
    "hf_overrides": "--model-arg does that",
    "hf_config_path": "--model-arg changes a configuration",
    "trust_remote_code": "--trust-remote-code does that",
    "max_model_len": "it follows from the lengths",
    "enable_prefix_caching": "--share-prefixes and --no-share-prefixes do that",
    "seed": "answers are greedy; --seed draws the keys",
    "generation_config": "answers are greedy, whatever a model recommends",
    "override_generation_config": "answers are greedy, whatever a model recommends",
    "logprobs_mode": "answers are scored with the model's own log-probabilities",
    "max_logprobs": "one token's is asked for",
    "disable_log_stats": "seconds are taken from it",
    "use_tqdm_on_load": "stderr belongs to our own progress",
    "served_model_name": "results know the model by --model",
    "runner": "only generation is measured",
    "stream_interval": "every step is looked at",
}
"""Fields of vLLM's `EngineArgs` that this project sets, and why or how else."""

HARMLESS = frozenset(
    {
        "all2all_backend",
        "async_scheduling",
        "attention_backend",
        "attention_config",
        "block_size",
        "compilation_config",
        "cpu_distributed_timeout_seconds",
        "cpu_offload_gb",
        "cpu_offload_params",
        "cudagraph_capture_sizes",
        "data_parallel_backend",
        "decode_context_parallel_size",
        "disable_cascade_attn",
        "disable_custom_all_reduce",
        "disable_hybrid_kv_cache_manager",
        "distributed_executor_backend",
        "distributed_timeout_seconds",
        "download_dir",
        "enable_chunked_prefill",
        "enable_expert_parallel",
        "enable_flashinfer_autotune",
        "enforce_eager",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "kv_offloading_backend",
        "kv_offloading_size",
        "limit_mm_per_prompt",
        "long_prefill_token_threshold",
        "master_addr",
        "master_port",
        "max_cudagraph_capture_size",
        "max_num_batched_tokens",
        "max_num_seqs",
        "max_parallel_loading_workers",
        "moe_backend",
        "nnodes",
        "node_rank",
        "num_gpu_blocks_override",
        "numa_bind",
        "numa_bind_cpus",
        "numa_bind_nodes",
        "offload_backend",
        "optimization_level",
        "performance_mode",
        "pipeline_parallel_size",
        "prefix_caching_hash_algo",
        "pt_load_map_location",
        "ray_workers_use_nsight",
        "safetensors_load_strategy",
        "scheduler_reserve_full_isl",
        "scheduling_policy",
        "shutdown_timeout",
        "tensor_parallel_size",
    }
)
"""Fields that decide how fast and with how much memory a model runs, and no more than rounding of what it
answers. Whatever else is given makes another model of it."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What a user asked of vLLM's engine; None: vLLM's own default, or what this project chooses."""

    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    quantization: str | None = None
    distributed_executor_backend: str | None = None
    engine_args: Mapping[str, object] = field(default_factory=dict)
    """Any other fields of vLLM's `EngineArgs`."""

    def given(self) -> dict[str, object]:
        """All that was asked for, by the names of `EngineArgs`."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "engine_args"}
        return {name: value for name, value in named.items() if value is not None} | dict(self.engine_args)

    @property
    def ranks(self) -> int:
        """Processes that share one model, as far as the parallel sizes say."""
        given = self.given()
        sizes = (given.get("tensor_parallel_size", 1), given.get("pipeline_parallel_size", 1))
        ranks = 1
        for size in sizes:
            ranks *= size if isinstance(size, int) else 1
        return ranks

    def of_the_model(self) -> dict[str, object]:
        """What makes another model of a model, sorted by name."""
        return {name: value for name, value in sorted(self.given().items()) if name not in HARMLESS}


def parse_engine_args(typed: list[str] | None) -> dict[str, object]:
    """What `--engine-arg` was given: fields and their values, as JSON where they are some, else as text.

    Raises:
        BadInput: no value, a field twice, or one that has its own option or that this project sets.
    """
    parsed = parse_arguments(
        "--engine-arg",
        typed,
        example="max_num_seqs=8",
        spell=lambda key: key.lstrip("-").replace("-", "_"),
    )
    own = {f.name for f in fields(EngineOptions)} - {"engine_args"}
    for name in parsed:
        if name in own:
            raise BadInput(f"--engine-arg {name}: --{name.replace('_', '-')} does that")
        if name in OURS:
            raise BadInput(f"--engine-arg {name} cannot be given: {OURS[name]}")
    return parsed


def check_engine_args(options: EngineOptions, known: set[str]) -> None:
    """Refuses what vLLM does not know.

    Args:
        options: what was asked for.
        known: the fields of `EngineArgs` of the vLLM that is installed.

    Raises:
        BadInput: a field that is not among them.
    """
    for name in options.given():
        if name not in known or name.startswith("_"):
            close = did_you_mean(name, {field for field in known if not field.startswith("_")})
            hint = close if close.startswith(" (did") else ""
            raise BadInput(f"--engine-arg {name}: vLLM has no such engine argument{hint}")
