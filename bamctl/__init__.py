"""Benchmarks of long-context retrieval: how far does a language model really read?"""

__version__ = "0.1.0"
