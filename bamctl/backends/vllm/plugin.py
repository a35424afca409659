"""What vLLM calls in each of its processes, so that it knows `model_type: bam`.

The entry point ``bamctl`` of the group ``vllm.general_plugins`` names `register`.
"""

ARCHITECTURE = "BamForCausalLM"
"""What a checkpoint's configuration calls the model, under ``architectures``."""


def register() -> None:
    """Tells transformers of the configuration and vLLM of the model; more than once does no harm.

    The model is named, not imported: a process that runs another model does not pay for ours.
    """
    from transformers import AutoConfig
    from vllm import ModelRegistry

    from bamctl.models.config import BamConfig

    AutoConfig.register(BamConfig.model_type, BamConfig, exist_ok=True)
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, "bamctl.backends.vllm.modeling:BamForCausalLM")
