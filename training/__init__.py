"""How the small built-in model is made: its exercises, its tokenizer, its training."""
