"""Runner: the interface of a model for the engine: one forward pass over a flat batch, and copies of cache blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.engine.arrays import Float32, Int32
from dragoman.engine.prompt_images import Tower
from dragoman.models import AdapterInfo
from dragoman.models.batch import Batch, PoolSize


class Runner(Protocol):
    """A model as the engine uses it. ``max_tokens``, ``max_sequences`` and ``max_logit_rows`` limit one step.

    ``max_adapters``: number of slots for adapters.
    ``pools``: the blocks of each group of layers; the first keeps most positions of a text.
    ``num_states``: slots for the states of recurrent layers; 0: the model has none.
    ``encoder_context``: the longest input of an encoder-decoder model's encoder; 0: the model has none.
    ``tower``: makes embeddings of images; None: the model sees none. ``image_cache_bytes``: kept of them.
    ``causal``: a token sees those before it. Otherwise it sees its whole text, and the model only pools.
    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def pools(self) -> Sequence[PoolSize]: ...
    @property
    def max_context(self) -> int: ...
    @property
    def encoder_context(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def max_sequences(self) -> int: ...
    @property
    def max_logit_rows(self) -> int: ...
    @property
    def max_adapters(self) -> int: ...
    @property
    def num_states(self) -> int: ...
    @property
    def tower(self) -> Tower | None: ...
    @property
    def image_cache_bytes(self) -> int: ...
    @property
    def block_data(self) -> Sequence[NDArray[np.uint8]]:
        """Memory of the blocks of each pool, ``[blocks, bytes]``: everything that later tokens read of them."""

    @property
    def read_bytes(self) -> int:
        """Bytes of weights and of cached keys and values that all steps so far had to read: a lower bound."""

    def run(self, batch: Batch, meanwhile: Callable[[], None] | None = None, interrupt: int | None = None) -> Float32:
        """Return the logits [len(batch.logit_rows), vocab_size]. The next call may overwrite them; the caller may too.

        ``meanwhile`` is called once, during the computation and from any thread; its exceptions pass through.
        ``interrupt``: a file descriptor. When it becomes readable before the end, kernels.Interrupted is raised; the
        blocks of the batch's own positions, its states and the result may then be anything.
        """

    @property
    def causal(self) -> bool: ...
    def pool(self, batch: Batch, second_text: Int32, interrupt: int | None = None) -> Float32:
        """Return the hidden states after the last norm, ``[len(batch.logit_rows), width]``. The next call may overwrite
        them. ``second_text``: the rows of the second of two texts. ``interrupt``: as in ``run``."""

    def project(self, vector: Float32) -> Float32:
        """Return a pooled vector after the layers that the model has for it."""

    def encode(self, batch: Batch) -> None:
        """Encode inputs, each whole, into the blocks of the batch's block table. At most ``max_tokens`` tokens, or one
        input alone."""

    def write_image(self, values: Float32, blocks: Int32) -> None:
        """Write what layers that look at images need of embeddings ``[rows, hidden_size]`` into blocks of their own;
        where the tower's ``cross_attention_layers`` says that there are such layers."""

    def copy_blocks(self, sources: Int32, targets: Int32, group: int = 0) -> None:
        """Copy whole blocks, all layers of a group, one pair after the other: a target may be the source of an earlier
        pair."""

    @property
    def state_data(self) -> NDArray[np.uint8]:
        """Memory of the states, ``[num_states, bytes]``; where the model has any."""

    def copy_states(self, sources: Int32, targets: Int32) -> None:
        """Copy states of recurrent layers, one pair after the other."""

    def load_adapter(self, slot: int, name: str, source: str) -> AdapterInfo:
        """Read the adapter in a folder into a free slot, from any thread, while steps run. Raises ModelError."""

    def unload_adapter(self, slot: int) -> None:
        """Free a slot that no later step uses."""
