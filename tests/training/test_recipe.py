"""A run of the recipe, tiny: resumed where it was, fed by processes as by itself, exported as what was trained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[2]))  # the recipe is run from the repository, never installed

from training.average import between
from training.checkpoint import Position, load_checkpoint, saved_config
from training.export import export, load_model
from training.feeder import Feeder, made
from training.loss import as_tensors, distilled_loss, weighted_loss
from training.model import Llama, ModelConfig
from training.optimizer import optimizer_of, orthogonal
from training.prose import encode_prose, read_books, split_books
from training.rows import RowMaker
from training.schedule import TokenBudget, learning_rate
from training.tokenizer import SPACE, carry_embeddings, load_tokenizer, train_tokenizer
from training.train import Run, train

TOKENIZER = Path(__file__).parents[2] / "builtin" / "tokenizer.json"
WORDS = "gard sunny moony starling the and riverside meadows castles zim vim pel".split()  # noqa: SIM905
PROSE = [f"Line {number} of a play.\n\nIt has two parts.\n\n" for number in range(40)]
TINY = ModelConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                   num_key_value_heads=1, head_dim=16)  # fmt: skip
STEP = 512


@pytest.fixture(scope="module")
def maker() -> RowMaker:
    tokenizer = load_tokenizer(TOKENIZER)
    return RowMaker(tokenizer, encode_prose(["".join(PROSE)], tokenizer), seed=3)


def trained(maker: RowMaker, work: Path, tokens: int, planned: int) -> Llama:
    """The model of the work folder after a run that is cut off after `tokens` of the planned ones."""
    torch.manual_seed(0)
    model = Llama(TINY)
    optimizer = optimizer_of(model, "muon")
    position = load_checkpoint(work, model, optimizer)

    class CutOff(TokenBudget):
        def advanced(self, progress: float, tokens_seen: int) -> float:
            return 1.0 if tokens_seen >= tokens else super().advanced(progress, tokens_seen)

    run = Run(model, optimizer, position, CutOff(planned), work, STEP)
    with Feeder(maker, STEP, position.step, run.length, workers=0, tokenizer=TOKENIZER, prose=work) as feeder:
        train(run, feeder, maker, torch.device("cpu"))
    assert position.tokens == tokens
    return model


def test_a_run_that_was_cut_off_ends_as_one_that_was_not(maker: RowMaker, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    expected = trained(maker, whole, 4 * STEP, 4 * STEP).state_dict()
    trained(maker, cut, 2 * STEP, 4 * STEP)
    found = trained(maker, cut, 4 * STEP, 4 * STEP).state_dict()
    assert saved_config(cut) == TINY
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-5)


def test_a_run_that_pauses_keeps_where_it_was(maker: RowMaker, tmp_path: Path) -> None:
    model = Llama(TINY)
    run = Run(model, optimizer_of(model, "muon"), Position(), TokenBudget(STEP), tmp_path, STEP, pause_s=0.0)
    with Feeder(maker, STEP, 0, run.length, workers=0, tokenizer=TOKENIZER, prose=tmp_path) as feeder:
        train(run, feeder, maker, torch.device("cpu"))
    assert load_checkpoint(tmp_path, Llama(TINY)) == Position()


def test_rows_are_the_same_whoever_makes_them(tmp_path: Path) -> None:
    (tmp_path / "play.txt").write_text("".join(PROSE), encoding="utf-8")
    tokenizer = load_tokenizer(TOKENIZER)
    maker = RowMaker(tokenizer, encode_prose(split_books(read_books(tmp_path))[0], tokenizer), seed=3)

    def length(step: int) -> int:
        return 128 if step % 2 else 256

    fed = []
    for workers in (0, 2):
        with Feeder(maker, STEP, 5, length, workers=workers, tokenizer=TOKENIZER, prose=tmp_path) as feeder:
            fed.append([feeder.batch() for _ in range(5)])
    for (ids, weights), (other_ids, other_weights) in zip(*fed, strict=True):
        assert (ids == other_ids).all()
        assert (weights == other_weights).all()
    assert fed[0][0][0].shape == (4, 129)  # step 5


def test_an_exported_model_is_the_one_that_was_trained(maker: RowMaker, tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = Llama(TINY)
    export(model, maker.tokenizer, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config == TINY
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight.bfloat16().float())


def test_an_average_lies_between_two_models() -> None:
    first, second = Llama(TINY), Llama(TINY)
    found = between(first, second, 0.25).state_dict()
    for name, weight in first.state_dict().items():
        torch.testing.assert_close(found[name], 0.75 * weight + 0.25 * second.state_dict()[name])


def test_distilling_learns_what_the_teacher_expects_and_not_the_text(maker: RowMaker) -> None:
    torch.manual_seed(4)
    teacher, model = Llama(TINY).eval(), Llama(TINY)
    model.load_state_dict(teacher.state_dict())
    ids, weights = as_tensors(made(maker, 0, 64, 256), torch.device("cpu"))

    def slope(loss: torch.Tensor) -> float:
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(model.model.embed_tokens.weight.grad.norm())  # type: ignore[union-attr]

    assert slope(distilled_loss(model, teacher, ids, weights)) < 0.05 * slope(weighted_loss(model, ids, weights))


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (16, 16)])
def test_orthogonal_keeps_the_directions_and_evens_the_singular_values(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    matrix = torch.randn(shape)
    found = orthogonal(matrix[None])[0]
    values = torch.linalg.svdvals(found)
    assert 0.6 < values.min() <= values.max() < 1.3
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    exact = left @ right
    assert torch.nn.functional.cosine_similarity(found.flatten(), exact.flatten(), dim=0) > 0.95


def test_rate_rises_and_then_falls_to_nothing() -> None:
    assert learning_rate(0, 0.0) < learning_rate(50, 0.01) < learning_rate(100, 0.02)
    assert learning_rate(1000, 0.5) == 0.5
    assert learning_rate(2000, 1.0) == 0.0


def test_models_have_the_size_they_are_to_be_shipped_with() -> None:
    assert Llama(ModelConfig.of_size("wide")).num_parameters * 2 < 32_000_000
    assert 1_000_000 < Llama(ModelConfig.of_size("draft")).num_parameters < 2_000_000
    assert Position().step == 0


@pytest.fixture(scope="module")
def trained_tokenizer() -> Tokenizer:
    words = "sun moon star river meadow castle garden window"
    return train_tokenizer([f"The {first} and the {second} are here.\n" for first in words.split() for second in WORDS])


def test_a_word_is_cut_alike_in_a_sentence_and_in_quotes(trained_tokenizer: Tokenizer) -> None:
    for word in ("ergarden", "unsunny", "Zvimpel"):
        pieces = trained_tokenizer.encode(word).tokens
        assert len(pieces) > 1
        for text in (f"a {word}.", f'a "{word}".', f'{{"{word}": 1}}', f"get_{word}"):
            said = trained_tokenizer.encode(text).tokens
            assert any(said[place : place + len(pieces)] == pieces for place in range(len(said))), said


def test_a_common_word_is_one_token_with_its_space(trained_tokenizer: Tokenizer) -> None:
    assert trained_tokenizer.encode("and the").tokens[-1] == f"{SPACE}the"
    text = '{"the key": "and <|im_start|>"} 12 \u00e9\u4e2d\n'
    assert trained_tokenizer.decode(trained_tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_another_tokenizer_begins_with_what_the_old_tokens_meant(trained_tokenizer: Tokenizer) -> None:
    old = load_tokenizer(TOKENIZER)
    model = Llama(TINY)
    before = model.model.embed_tokens.weight.detach().clone()
    carry_embeddings(model, old, trained_tokenizer)
    after = model.model.embed_tokens.weight.detach()
    vocabulary = trained_tokenizer.get_vocab()
    assert torch.equal(after[vocabulary["<|im_end|>"]], before[old.token_to_id("<|im_end|>")])
    new = next(
        token for token in vocabulary if old.token_to_id(token) is None and old.token_to_id(SPACE + token) is None
    )
    pieces = old.encode(trained_tokenizer.decode([vocabulary[new]])).ids
    torch.testing.assert_close(after[vocabulary[new]], before[pieces].mean(0))
