"""The two fields that give embeddings for tokens of the prompt, as Friendli's engine names them."""

from __future__ import annotations

from dragoman.core.errors import BadRequest
from dragoman.core.lazy_numpy import np
from dragoman.core.request import PromptEmbeddings
from dragoman.dialects.field import CoreParams, Field
from dragoman.dialects.field_types import Floats, Integer, ListOf

PLACES, VECTORS = "token_index_to_replace", "embedding_to_replace"

EMBEDDING_FIELDS: tuple[Field, ...] = (
    Field(
        name=PLACES,
        kind=ListOf(Integer(0, 2**31 - 1), minimum=1, maximum=2**20),
        becomes="embeddings.token_indices",
        note="Places in the one prompt, from 0 and with its BOS counted, whose embedding is given. Each once.",
    ),
    Field(
        name=VECTORS,
        kind=Floats(),
        becomes="embeddings.values",
        note="The vectors for these places, one behind the other, each as wide as the model's embeddings. They take "
        "the place of the embedding layer's output, before positions are added.",
    ),
)


def prompt_embeddings(core: CoreParams) -> PromptEmbeddings | None:
    """What the two fields amount to, in ascending order. BadRequest where they do not go together."""
    places: tuple[int, ...] | None = core.get("embeddings.token_indices")
    vectors: bytes | None = core.get("embeddings.values")
    if places is None and vectors is None:
        return None
    if places is None or vectors is None:
        given, missing = (PLACES, VECTORS) if vectors is None else (VECTORS, PLACES)
        raise BadRequest(f"'{given}' needs '{missing}'.", param=missing)
    if len(set(places)) < len(places):
        raise BadRequest(f"'{PLACES}' names a place more than once.", param=PLACES)
    numbers = np.frombuffer(vectors, np.float32)
    if len(numbers) % len(places):
        message = f"'{VECTORS}' has {len(numbers)} numbers, which are no whole vectors for {len(places)} places."
        raise BadRequest(message, param=VECTORS)
    order = np.argsort(np.array(places, np.int64))
    rows = numbers.reshape(len(places), -1)[order]
    return PromptEmbeddings(token_indices=tuple(sorted(places)), values=rows.tobytes())
