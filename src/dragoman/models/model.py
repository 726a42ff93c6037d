"""A loaded model, as the engine runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.models.adapters import AdapterInfo
from dragoman.models.adapters.loading import load_adapter
from dragoman.models.batch import Batch, Int32s, PoolSize
from dragoman.models.decoder import build_hidden_program
from dragoman.models.description import ModelInfo
from dragoman.models.draft_head import DraftHead
from dragoman.models.image_layers import ImageWriter
from dragoman.models.kv_groups import BLOCK_TOKENS
from dragoman.models.memory import MemoryPlan
from dragoman.models.packing import Weights
from dragoman.models.pooling import ModelPooling
from dragoman.models.reads import ReadCounter
from dragoman.models.recording import StepLimits
from dragoman.models.settings import ModelSettings
from dragoman.models.spec import DecoderSpec
from dragoman.models.vision.towers import Tower


class Model:
    """Program, weights and KV memory of one model; implements the engine's ``Runner``.

    Attributes:
        config: the decoder's spec. card: its public description. plan: the memory plan it was loaded with.
        block_size: tokens of a KV block. pools: blocks of each group of layers. num_blocks: of the first.
        max_context: maximum positions of a sequence.
        encoder_context: maximum tokens of an encoder's input; 0: the model has no encoder.
        tower: makes embeddings of images; None: the model sees none. image_cache_bytes: kept of them.
        head: guesses one token more, where it was asked for; the hidden states of all rows are then kept.
        num_states: slots for the states of recurrent layers; 0: the model has none.
        max_tokens, max_sequences, max_logit_rows: limits of one step.
    """

    block_size = BLOCK_TOKENS

    def __init__(
        self,
        *,
        config: DecoderSpec,
        program: kernels.Program,
        weights: Weights,
        kv: kernels.KVPool,
        card: ModelInfo,
        plan: MemoryPlan,
        settings: ModelSettings,
        encoder: kernels.Program | None = None,
        states: kernels.StatePool | None = None,
        pooling: ModelPooling | None = None,
        tower: Tower | None = None,
        image_writer: ImageWriter | None = None,
        head: DraftHead | None = None,
        hidden: int | None = None,
    ) -> None:
        """``hidden``: the program's buffer of final hidden states, where it keeps those of all rows."""
        self.config, self.program, self.weights, self.kv, self.card, self.plan = (
            config,
            program,
            weights,
            kv,
            card,
            plan,
        )
        self.vocab_size = config.vocab_size
        self.hidden_size = config.embedding_width
        self.states = states
        self.pools = tuple(PoolSize(group.window, group.blocks, group.own) for group in plan.groups)
        self.num_blocks = plan.kv_blocks
        self.num_states = 0 if states is None else states.slots
        self.max_context = plan.context_tokens
        self.encoder = encoder
        self.encoder_context = plan.encoder_tokens
        self.max_tokens = settings.max_tokens
        self.max_sequences = settings.max_sequences
        self.max_logit_rows = settings.max_logit_rows
        self.max_adapters = settings.max_adapters
        self._reads = ReadCounter(config, plan)
        self._adapter_bytes = settings.adapter_bytes
        self.causal = config.causal
        self.tower = tower
        self._image_writer = image_writer
        self.head = head
        self._kept = hidden
        self.image_cache_bytes = settings.image_cache_bytes
        self._pooling = pooling
        self._hidden: kernels.Program | None = None if config.causal else program
        """The program up to hidden states; recorded when a request first needs it, where the model generates."""
        self._programs = [program] if encoder is None else [program, encoder]
        self._matrices = {name: matrix for each in self._programs for name, (_, matrix) in each.products.items()}
        """The matrices that adapters can change, by the names of their products."""
        self._adapters: dict[int, int] = {}
        """Bytes of the adapter in each slot."""
        self._changes: dict[int, dict[str, kernels.LowRank]] = {}
        """Changes of products by the adapter in each slot."""
        self._adapters_lock = threading.Lock()

    @property
    def block_data(self) -> list[NDArray[np.uint8]]:
        """The memory of the KV blocks of each group of layers, ``[blocks, bytes]``."""
        return [self.kv.block_data(group) for group in range(len(self.pools))]

    @property
    def read_bytes(self) -> int:
        """Bytes of weights and of cached keys and values that all steps so far had to read."""
        return self._reads.total

    def run(
        self, batch: Batch, meanwhile: Callable[[], None] | None = None, interrupt: int | None = None
    ) -> NDArray[np.float32]:
        """Run one step: return the logits ``[len(batch.logit_rows), vocab_size]``, overwritten by the next step.

        ``meanwhile`` is called once, during the computation and from any thread. ``interrupt``: a file descriptor;
        kernels.Interrupted is raised when it becomes readable before the end.
        """
        logits = self.program.run(*self._without_image_tokens(batch), meanwhile, interrupt)
        self._reads.add_step(batch)
        return logits

    def hidden_rows(self, rows: int) -> NDArray[np.float32]:
        """Return the hidden states of the last step's first rows after the last norm, ``[rows, width]``, overwritten by
        the next step. Of a model with a ``head``."""
        assert self._kept is not None
        return self.program.rows(self._kept, rows)

    def _without_image_tokens(self, batch: Batch) -> Batch:
        """Return the batch with padding in place of image tokens, where layers have inputs that are made of tokens:
        those of an image are the padding's (Gemma 4)."""
        if self.config.layer_inputs is None or self.config.vision is None:
            return batch
        images = batch.token_ids == self.config.vision.tags.image_id
        return batch._replace(token_ids=np.where(images, np.int32(self.config.vision.padding_id), batch.token_ids))

    def pool(self, batch: Batch, second_text: Int32s, interrupt: int | None = None) -> NDArray[np.float32]:
        """Run one step up to the hidden states after the last norm: ``[len(batch.logit_rows), width]``, overwritten by
        the next step. ``second_text``: rows of the second of two texts. ``interrupt``: as in ``run``."""
        if len(second_text) and self.config.embedding.types > 1:
            values = self._second_type(batch.token_ids[second_text])
            batch = batch._replace(embedding_rows=second_text, embedding_values=values)
        hidden = self._hidden_program().run(*batch, interrupt=interrupt)
        self._reads.add_step(batch)
        return hidden

    def project(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a pooled vector after the layers that the model has for it."""
        return vector if self._pooling is None else self._pooling.project(vector)

    def _hidden_program(self) -> kernels.Program:
        if self._hidden is not None:
            return self._hidden
        with self._adapters_lock:  # an adapter is either set below, or later in all programs
            limits = StepLimits(self.max_context, self.max_tokens, self.max_sequences, self.max_logit_rows)
            program = build_hidden_program(self.config, self.weights, self.kv, limits, self.states)
            for slot, changes in self._changes.items():
                _set_adapter(program, slot, changes)
            self._programs.append(program)
            self._hidden = program
        return program

    def _second_type(self, token_ids: Int32s) -> NDArray[np.float32]:
        """Return embeddings of the second type, less those of the first, which are part of the positions."""
        table, types = self.weights.matrix("embedding"), self.weights.vector("types")
        count = len(token_ids)
        lookup = kernels.Program(max_tokens=count, max_sequences=1, max_logit_rows=count, kv=self.kv)
        found, wanted = lookup.buffer(self.config.width), lookup.buffer(self.config.width)
        lookup.embed(found, table)
        lookup.select_rows(wanted, found)
        lookup.logits(wanted)
        rows, starts = np.arange(count, dtype=np.int32), np.array([0, count], np.int32)
        tables = np.zeros((1, 0), np.int32)
        values: NDArray[np.float32] = lookup.run(token_ids, rows, starts, tables, rows) + (types[1] - types[0])
        return values

    def encode(self, batch: Batch) -> None:
        """Encode inputs, each whole, into the blocks of ``batch.block_tables``."""
        assert self.encoder is not None
        self._reads.add_encoding(batch)
        self.encoder.run(*batch)

    def write_image(self, values: NDArray[np.float32], blocks: Int32s) -> None:
        """Write what layers that look at images need of embeddings ``[rows, hidden_size]`` into blocks of their own."""
        assert self._image_writer is not None
        self._image_writer.write(values, blocks)

    def copy_blocks(self, sources: Int32s, targets: Int32s, group: int = 0) -> None:
        """Copy KV blocks in all layers of a group, ``sources[i]`` to ``targets[i]``."""
        self.kv.copy_blocks(sources, targets, group)

    @property
    def state_data(self) -> NDArray[np.uint8]:
        """The memory of the states, ``[num_states, bytes]``."""
        assert self.states is not None
        return self.states.data

    def copy_states(self, sources: Int32s, targets: Int32s) -> None:
        """Copy states of recurrent layers, ``sources[i]`` to ``targets[i]``, in ascending order of i."""
        assert self.states is not None
        self.states.copy_slots(sources, targets)

    def load_adapter(self, slot: int, name: str, source: str) -> AdapterInfo:
        """Read the adapter in the folder ``source`` into a free slot. Raises ModelError."""
        with self._adapters_lock:
            left = None if self._adapter_bytes is None else self._adapter_bytes - sum(self._adapters.values())
            changes, info = load_adapter(
                Path(source), name, self._matrices, self.weights, self.config, self.card, limit_bytes=left
            )
            for program in self._programs:
                _set_adapter(program, slot, changes)
            self._adapters[slot], self._changes[slot] = info.nbytes, dict(changes)
        return info

    def unload_adapter(self, slot: int) -> None:
        """Free a slot that no later step uses."""
        with self._adapters_lock:
            for program in self._programs:
                program.remove_adapter(slot)
            self._adapters.pop(slot, None)
            self._changes.pop(slot, None)


def _set_adapter(program: kernels.Program, slot: int, changes: Mapping[str, kernels.LowRank]) -> None:
    """Set the changes of those products that the program has."""
    program.set_adapter(slot, {name: change for name, change in changes.items() if name in program.products})
