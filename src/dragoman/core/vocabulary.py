"""Vocabulary: the bytes of every token, for grammars in the engine, and how those of two models correspond."""

from __future__ import annotations

import msgspec


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one model, by id.

    Attributes:
        tokens: the exact bytes that each token adds to a text; empty where the model has a row but no token.
        special_ids: tokens without text (turns, ends); a grammar allows them only by name.
        end_ids: tokens that end a generation, allowed where the text is complete. At least one.
    """

    tokens: tuple[bytes, ...]
    special_ids: tuple[int, ...]
    end_ids: tuple[int, ...]


class DraftVocabulary(msgspec.Struct, frozen=True, array_like=True):
    """How the tokens of a served model correspond to those of its draft model.

    Attributes:
        draft_size: tokens of the draft model that may be guessed.
        to_draft: by token of the served model, the draft model's tokens that have its bytes; None: both have the same
            ids.
        to_target: by token of the draft model, the served model's that has its bytes, -1: none has; None as above.
    """

    draft_size: int
    to_draft: tuple[tuple[int, ...], ...] | None = None
    to_target: tuple[int, ...] | None = None


def correspondence(target: Vocabulary, draft: Vocabulary) -> DraftVocabulary:
    """Return how two vocabularies correspond: by ids where each id that both have is the same token, else by bytes.

    Rows without a token fill up vocabularies to a round number and count as any token. A token of the target that the
    draft model has not becomes the longest tokens that its bytes can be divided into from the left, and loses what none
    has; special tokens, which have no text, are told by nothing and left out.
    """
    size = min(len(target.tokens), len(draft.tokens))
    if all(a == b or not a or not b for a, b in zip(target.tokens, draft.tokens, strict=False)) and set(
        target.special_ids
    ) == set(draft.special_ids):
        return DraftVocabulary(size)
    special = set(draft.special_ids)
    by_bytes: dict[bytes, int] = {}
    for token_id, token in enumerate(draft.tokens):
        if token and token_id not in special:
            by_bytes.setdefault(token, token_id)
    longest = max(map(len, by_bytes), default=0)
    hidden = set(target.special_ids)
    to_target = {token: token_id for token_id, token in reversed(list(enumerate(target.tokens))) if token}
    return DraftVocabulary(
        len(draft.tokens),
        tuple(
            () if token_id in hidden else _divided(token, by_bytes, longest)
            for token_id, token in enumerate(target.tokens)
        ),
        tuple(-1 if token_id in special else to_target.get(token, -1) for token_id, token in enumerate(draft.tokens)),
    )


def is_translatable(target: Vocabulary, found: DraftVocabulary) -> bool:
    """Return whether a draft model can say anything about texts of ``target``: it is told of at least half of the
    tokens, and some of those that it guesses are the target's."""
    if found.to_draft is None or found.to_target is None:
        return True
    told = [bool(ids) for token, ids in zip(target.tokens, found.to_draft, strict=True) if token]
    return 2 * sum(told) >= len(told) and max(found.to_target, default=-1) >= 0


def _divided(token: bytes, by_bytes: dict[bytes, int], longest: int) -> tuple[int, ...]:
    found: list[int] = []
    start = 0
    while start < len(token):
        for end in range(min(len(token), start + longest), start, -1):
            token_id = by_bytes.get(token[start:end])
            if token_id is not None:
                found.append(token_id)
                start = end
                break
        else:
            start += 1
    return tuple(found)
