"""Patterns by which byte-level tokenizers split a text into words before they merge bytes.

Each match is a piece, and so is the text between matches. The patterns are those of the models' own tokenizers.
"""

from __future__ import annotations

ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


def words(digits: str, letters: str = r"\p{L}", line_ends: str = r"[\r\n]*", spaces: str = SPACES) -> str:
    """Return the pattern for words with a preceding sign, digits in groups, and signs with following line ends."""
    return rf"{ENDINGS}|{BEFORE_WORD}[{letters}]+|{digits}| ?[^\s{letters}\p{{N}}]+{line_ends}|{spaces}"


def cased_words(digits: str, endings: str) -> str:
    """Return the same pattern, with words also split before capitals."""
    return (
        rf"{BEFORE_WORD}{_UPPER}*{_LOWER}+{endings}|{BEFORE_WORD}{_UPPER}+{_LOWER}*{endings}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
    )


def cased_words_without(script: str, digits: str, endings: str) -> str:
    """Return the same pattern with words of one script apart."""
    upper, lower = (f"[{letters}&&[^{script}]]" for letters in (_UPPER, _LOWER))
    return (
        rf"{script}+|{BEFORE_WORD}{upper}*{lower}+{endings}|{BEFORE_WORD}{upper}+{lower}*{endings}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
    )


QWEN2 = words(r"\p{N}")
LLAMA3 = words(r"\p{N}{1,3}")
KIMI = cased_words_without(r"\p{Han}", r"\p{N}{1,3}", f"{ENDINGS}?")
