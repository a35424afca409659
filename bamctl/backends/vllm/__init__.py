"""The vLLM backend: our model inside vLLM (`plugin`, `modeling`, `attention`), and vLLM inside bamctl."""
