"""Models that see: the description of a vision tower, its input, its computation, and its place in the prompt."""
