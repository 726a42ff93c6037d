"""Beam search: the beams, their continuations, and one step of all."""
