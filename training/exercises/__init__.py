"""Plain-English dialogues and exercises, drawn from closed lists by a seeded generator."""

from training.exercises.conversation import Conversation, Exchange
from training.exercises.generator import draw_conversation, draw_exchange, draw_long_conversation

__all__ = ["Conversation", "Exchange", "draw_conversation", "draw_exchange", "draw_long_conversation"]
