"""Tasks: a definition, a tokenizer and a length in, prompts of exactly that length out."""
