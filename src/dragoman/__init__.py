"""Dragoman: one text-generation server that speaks the HTTP dialect a client already speaks."""

import os

__version__ = "0.1.0"

# The hub's library asks the hub of its own accord who is asking, unless it is told not to before it is imported.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
