"""Dragoman: one text-generation server that speaks the HTTP dialect a client already speaks."""

__version__ = "0.1.0"
