"""RULER's tasks (NVIDIA/RULER, arXiv 2404.06654): its words and parameters, at an exact length."""
