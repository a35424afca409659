"""Triton kernels of attention under a prior; `bamctl.attention.triton` launches them."""
