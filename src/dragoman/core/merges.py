"""The order of merges of a vocabulary that is stored without it: with a rank for each token alone.

SentencePiece and tiktoken join, of all neighbours that form a token, those of the best rank first, the leftmost of
equal ones. A list of merges says the same where each token is listed once, with the two parts from which it comes
about: within a text's part that becomes this token, everything happens as in the token alone.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

MOST_STEPS = 1 << 26
"""Sum of the squared lengths of all tokens, which takes a few seconds: the largest vocabularies have a third of it."""
MOST_MERGES = 1 << 20
"""The largest vocabularies have 600,000. The library keeps the GIL while it reads them."""


class TooManyMerges(ValueError):
    """Finding the merges of these tokens would take minutes. The message goes on after "the tokens"."""


def merges_of(ranks: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the merges, best rank first (the lowest number). Tokens that never come about have none.

    Tokens of the same rank have all pairs of parts: which of them come about depends on the text. Raises
    TooManyMerges.
    """
    if sum(len(token) ** 2 for token in ranks) > MOST_STEPS:
        raise TooManyMerges("are too long to be those of a vocabulary")
    shared = {rank for rank, tokens in Counter(ranks.values()).items() if tokens > 1}
    merges: list[tuple[str, str]] = []
    for token in sorted(ranks, key=ranks.__getitem__):
        if len(token) < 2:
            continue
        parts = _last_parts(token, ranks)
        if parts is not None:
            merges.append(parts)
        if ranks[token] in shared:
            cuts = range(len(token) - 1, 0, -1)
            pairs = ((token[:cut], token[cut:]) for cut in cuts)
            merges += [pair for pair in pairs if pair != parts and pair[0] in ranks and pair[1] in ranks]
        if len(merges) > MOST_MERGES:
            raise TooManyMerges(f"can be joined in more than {MOST_MERGES:,} ways")
    return merges


def _last_parts(token: str, ranks: Mapping[str, float]) -> tuple[str, str] | None:
    """Return the two parts of which a token is joined in the end; None where the merges end before."""
    cuts = [cut for cut in range(1, len(token)) if token[:cut] in ranks and token[cut:] in ranks]
    if len(cuts) < 2:  # a quarter of the tokens: the same, faster
        return (token[: cuts[0]], token[cuts[0] :]) if cuts else None
    parts = list(token)
    never = float("inf")
    found = [ranks.get(left + right, never) for left, right in itertools.pairwise(parts)]
    while len(parts) > 2:
        best = min(found)
        if best == never:
            return None
        place = found.index(best)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
        del found[place]
        if place:
            found[place - 1] = ranks.get(parts[place - 1] + parts[place], never)
        if place < len(found):
            found[place] = ranks.get(parts[place] + parts[place + 1], never)
    return (parts[0], parts[1]) if parts[0] in ranks and parts[1] in ranks else None
