"""Routed feed-forward networks against NumPy on every instruction set, and promise 1 for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.kernels.reference import experts as reference
from dragoman.kernels.reference import linear as linear_reference
from dragoman.kernels.reference import transform as transform_reference

Floats = NDArray[np.float32]
WIDTH, HIDDEN = 72, 40  # no multiples of 32


@pytest.fixture(params=kernels.instruction_sets(), autouse=True)
def _instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    before = kernels.instruction_set()
    kernels.force(request.param)
    yield
    kernels.force(before)


@dataclass
class Network:
    """Random experts, as the operation takes them and in NumPy."""

    count: int
    active: int
    precisions: tuple[str, ...] = ("float32",)
    hidden: int = HIDDEN
    shared: kernels.SharedExpert | None = None
    shared_hidden: int = 50
    gated: bool = True
    activation: kernels.Activation = "silu"
    over_all: bool = False
    seed: int = 0
    identities: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)

        def normal(*shape: int) -> Floats:
            return np.asarray(rng.normal(size=shape) / np.sqrt(shape[-1]), np.float32)

        hidden = [self.hidden] * self.count + [self.shared_hidden] * (self.shared is not None)
        self.router = normal(self.count + self.identities + (self.shared == "gated"), WIDTH) * 3
        self.inward = [normal((1 + self.gated) * size, WIDTH) for size in hidden]
        self.outward = [normal(WIDTH, size) for size in hidden]

    def form(self, expert: int) -> dict[str, Any]:
        precision = self.precisions[expert % len(self.precisions)]
        return {"precision": precision.removeprefix("wide "), "wide": precision.startswith("wide")}

    def record(self, p: kernels.Program, out: int, x: int, **options: Any) -> None:
        p.experts(
            out,
            x,
            kernels.pack(self.router, "float32"),
            [kernels.pack(w, **self.form(e)) for e, w in enumerate(self.inward)],
            [kernels.pack(w, **self.form(e)) for e, w in enumerate(self.outward)],
            active=self.active,
            over_all=self.over_all,
            shared=self.shared,
            gated=self.gated,
            activation=self.activation,
            identities=self.identities,
            **options,
        )

    def program(self, rows: int, **options: Any) -> kernels.Program:
        """Token ids choose rows of ``x``."""
        p = program(rows)
        x, out, last = (p.buffer(WIDTH) for _ in range(3))
        p.embed(x, kernels.pack(self.x, "float32"))
        if options.get("accumulate"):
            p.embed(out, kernels.pack(self.x, "float32"))
        self.record(p, out, x, **options)
        p.select_rows(last, out)
        p.logits(last)
        return p

    @property
    def x(self) -> Floats:
        return np.asarray(np.random.default_rng(self.seed + 1).normal(size=(300, WIDTH)), np.float32)

    def expected(self, ids: NDArray[np.int32]) -> NDArray[np.float64]:
        x = self.x[ids]
        networks: list[Callable[..., Any]] = [partial(self._network, e) for e in range(len(self.inward))]
        networks[self.count : self.count] = [np.asarray] * self.identities
        logits = x.astype(np.float64) @ self.router.T.astype(np.float64)
        return np.asarray(
            reference.experts(x, logits, networks, self.active, over_all=self.over_all, shared=self.shared), np.float64
        )

    def _network(self, expert: int, x: Floats) -> NDArray[np.float64]:
        inner = linear_reference.linear(x, self.inward[expert], **self.form(expert)).astype(np.float32)
        apply = transform_reference.gate if self.gated else transform_reference.activate
        return linear_reference.linear(
            apply(inner, self.activation).astype(np.float32), self.outward[expert], **self.form(expert)
        )


def program(rows: int) -> kernels.Program:
    kv = kernels.KVPool(layers=1, blocks=1, kv_heads=1, head_dim=1, precision="float32")
    return kernels.Program(max_tokens=rows, max_sequences=1, max_logit_rows=rows, kv=kv)


def run(p: kernels.Program, ids: NDArray[np.int32]) -> Floats:
    count = len(ids)
    rows = np.arange(count)
    return p.run(ids, rows, [0, count], np.zeros((1, 1000), np.int32), rows).copy()


def some_ids(count: int) -> NDArray[np.int32]:
    return np.random.default_rng(5).integers(0, 300, count).astype(np.int32)


NETWORKS = {
    "two of eight": Network(8, 2),
    "one of three": Network(3, 1),
    "all of four": Network(4, 4, over_all=True),
    "eight of sixty, over all": Network(60, 8, over_all=True, hidden=33),
    "shared": Network(5, 2, shared="added", activation="gelu_tanh"),
    "gated shared": Network(6, 3, shared="gated", over_all=True),
    "without a gate": Network(7, 2, gated=False, activation="relu", shared="gated"),
    "one expert": Network(1, 1),
    "some give back what goes in": Network(4, 3, over_all=True, identities=3),
    "most give back what goes in": Network(1, 1, identities=7, shared="gated"),
    "almost all give back what goes in": Network(1, 1, identities=40),
}


@pytest.mark.parametrize("rows", [1, 2, 7, 150])
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_every_way_of_routing_equals_numpy(network: Network, rows: int) -> None:
    ids = some_ids(rows)
    expected = network.expected(ids)
    np.testing.assert_allclose(run(network.program(rows), ids), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "precisions", [("bfloat16",), ("int8",), ("int4",), ("wide int8",), ("int8", "wide int8", "int4", "float32")]
)
def test_precisions_may_differ_from_expert_to_expert(precisions: tuple[str, ...]) -> None:
    network = Network(8, 3, precisions, shared="gated")
    for rows in (1, 40):
        ids = some_ids(rows)
        # Now and then a number falls to the other side of a rounding; of these few it moves one by a step.
        error = np.abs(run(network.program(rows), ids) - network.expected(ids))
        assert np.median(error) < 1e-5
        assert error.max() < 2e-2


def test_inputs_may_stand_in_an_order_of_their_own() -> None:
    """As those of act-order checkpoints do, each expert's in its own order."""
    network, rng = Network(6, 2, ("int8",), shared="added"), np.random.default_rng(3)

    def packed(w: Floats, shuffled: bool) -> kernels.PackedMatrix:
        codes, scales = linear_reference.quantize_int8(w)
        rows, k = len(w), w.shape[1]
        order = rng.permutation(k).astype(np.int32) if shuffled else np.arange(k, dtype=np.int32)
        values = codes.reshape(rows, -1)[:, :k]
        scales = np.broadcast_to(scales.max(axis=1, keepdims=True), scales.shape).astype(np.float16)
        return kernels.pack_codes(np.ascontiguousarray(values[:, order]), scales, None, "int8", order)

    results = []
    for shuffled in (False, True):
        p = program(40)
        x, out, last = (p.buffer(WIDTH) for _ in range(3))
        p.embed(x, kernels.pack(network.x, "float32"))
        inward, outward = ([packed(w, shuffled) for w in each] for each in (network.inward, network.outward))
        p.experts(out, x, kernels.pack(network.router, "float32"), inward, outward, active=2, shared="added")
        p.select_rows(last, out)
        p.logits(last)
        results.append([run(p, some_ids(rows)) for rows in (1, 40)])
    for plain, shuffled in zip(*results, strict=True):  # groups of 128 hold all inputs, in whatever order
        np.testing.assert_allclose(shuffled, plain, rtol=1e-4, atol=1e-5)


def test_result_is_scaled_and_added() -> None:
    network, ids = Network(8, 2, shared="added"), some_ids(9)
    plain = run(network.program(9), ids)
    assert (run(network.program(9, factor=0.25), ids) == plain * np.float32(0.25)).all()
    assert (run(network.program(9, accumulate=True), ids) == plain + network.x[ids]).all()


def test_equal_logits_choose_the_lower_numbers() -> None:
    network, ids = Network(6, 2), some_ids(3)
    network.router[:] = network.router[0]
    before = run(network.program(3), ids)
    network.inward[2:] = [np.zeros_like(w) for w in network.inward[2:]]
    assert (run(network.program(3), ids) == before).all()
    network.inward[1] = np.zeros_like(network.inward[1])
    assert (run(network.program(3), ids) != before).any(axis=1).all()


def test_what_is_not_a_number_stays_in_its_row() -> None:
    network = Network(6, 2, shared="gated")
    p = program(3)
    x, out, last = (p.buffer(WIDTH) for _ in range(3))
    rows = network.x[:3].copy()
    rows[1] = np.nan
    p.embed(x, kernels.pack(rows, "float32"))
    network.record(p, out, x)
    p.select_rows(last, out)
    p.logits(last)
    result = run(p, np.arange(3, dtype=np.int32))
    assert np.isnan(result[1]).all()
    np.testing.assert_allclose(result[[0, 2]], network.expected(np.array([0, 2], np.int32)), rtol=1e-4, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_row_has_the_same_bits_in_any_company(data: st.DataObject) -> None:
    precision = data.draw(st.sampled_from(["float32", "bfloat16", "int8", "int4", "wide int8"]))
    network = Network(
        data.draw(st.integers(2, 20)),
        2,
        (precision,),
        shared=data.draw(st.sampled_from([None, "added", "gated"])),
        over_all=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 9)),
    )
    p = network.program(300)
    threads = kernels.threads()
    try:
        kernels.set_threads(data.draw(st.integers(1, 3)))
        crowd = run(p, np.arange(300, dtype=np.int32))
        kernels.set_threads(data.draw(st.integers(1, 3)))
        start = data.draw(st.integers(0, 299))
        few = np.arange(start, min(300, start + data.draw(st.sampled_from([1, 2, 9, 33]))), dtype=np.int32)
        assert (run(p, few) == crowd[few]).all()
        assert (run(p, few[::-1].copy()) == crowd[few[::-1]]).all()
    finally:
        kernels.set_threads(threads)


def test_time_is_told_apart() -> None:
    network = Network(8, 2, shared="added")
    p = network.program(4)
    run(p, some_ids(4))
    assert p.profile(by_shape=True)["experts 2 of 8, 80 x 72"] > 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"active": 9}, "more than there are"),
        ({"active": 0}, "more than there are"),
        ({"shared": "plain"}, "shared expert is"),
        ({"shared": "added"}, "router does not fit"),
        ({"gated": False}, "do not fit"),
        ({"router": np.zeros((8, 73), np.float32)}, "router does not fit"),
        ({"inward": [np.zeros((80, 72), np.float32)] * 7}, "two matrices"),
        ({"outward": [np.zeros((72, 39), np.float32)] * 8}, "do not fit"),
        ({"activation": "mish"}, "activation"),
        ({"identities": 1}, "router does not fit"),
        ({"identities": -1}, "not possible"),
        ({"identities": 2**40}, "not possible"),
    ],
)
def test_what_does_not_fit_is_refused_when_recorded(change: dict[str, Any], said: str) -> None:
    network = Network(8, 2)
    options: dict[str, Any] = {"active": 2} | change
    router, inward, outward = (
        options.pop(name, default)
        for name, default in (("router", network.router), ("inward", network.inward), ("outward", network.outward))
    )
    p = program(2)
    x, out = p.buffer(WIDTH), p.buffer(WIDTH)
    p.embed(x, kernels.pack(network.x, "float32"))
    with pytest.raises(ValueError, match=said):
        p.experts(
            out,
            x,
            kernels.pack(router, "float32"),
            [kernels.pack(w, "float32") for w in inward],
            [kernels.pack(w, "float32") for w in outward],
            **options,
        )
