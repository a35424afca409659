"""Checkpoints: a name or a folder in, a model that answers out.

Importing this package registers ``model_type: bam`` with transformers' Auto classes.
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from bamctl.models.config import BamConfig
from bamctl.models.modeling import BamForCausalLM, BamModel

AutoConfig.register("bam", BamConfig, exist_ok=True)
AutoModel.register(BamConfig, BamModel, exist_ok=True)
AutoModelForCausalLM.register(BamConfig, BamForCausalLM, exist_ok=True)

__all__ = ["BamConfig", "BamForCausalLM", "BamModel"]
