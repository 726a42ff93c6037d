"""The recipe: `python -m training.train --prose FOLDER --out builtin` trains the model and writes it."""

import argparse
import time
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer

from training import exercises
from training.chat import render
from training.checkpoint import Position, load_checkpoint, save_checkpoint
from training.export import export
from training.loss import as_tensors, held_out_loss, weighted_loss
from training.model import Llama, ModelConfig
from training.prose import encode_prose, read_books, split_books
from training.rows import RowMaker
from training.schedule import Deadline, TokenBudget, learning_rate, row_length
from training.tokenizer import load_tokenizer, train_tokenizer

TOKENS_PER_STEP = 2048
PEAK_LEARNING_RATE = 2e-3
SAVE_EVERY_S = 180
HELD_OUT_EVERY_STEPS = 1000
TOKENIZER_CONVERSATIONS = 4000


def main() -> None:
    options = _options()
    options.work.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)

    training_text, held_out_text = split_books(read_books(options.prose))
    tokenizer = _tokenizer(options.work / "tokenizer.json", training_text, options.seed)
    training = RowMaker(tokenizer, encode_prose(training_text, tokenizer), seed=options.seed)
    held_out = RowMaker(tokenizer, encode_prose(held_out_text, tokenizer), seed=options.seed, held_out=True)
    print(f"prose: {training.prose.num_tokens:,} tokens, held out {held_out.prose.num_tokens:,}", flush=True)

    model = Llama(ModelConfig()).to(device)
    optimizer = _optimizer(model)
    position = load_checkpoint(options.work, model, optimizer)
    print(f"model: {model.num_parameters:,} parameters; starting at step {position.step} on {device}", flush=True)
    train(model, optimizer, position, training, held_out, _budget(options), options.work, device)
    for kind in ("prose", "exercises", "fim"):
        loss = held_out_loss(model, held_out, kind, count=64, length=512, device=device)
        print(f"held-out {kind}: {loss:.4f} nats per token", flush=True)
    export(model, tokenizer, options.out)
    print(f"wrote {options.out}: step {position.step}, {position.tokens:,} tokens", flush=True)


def train(
    model: Llama,
    optimizer: torch.optim.Optimizer,
    position: Position,
    training: RowMaker,
    held_out: RowMaker,
    budget: Deadline | TokenBudget,
    work: Path,
    device: torch.device,
) -> None:
    """Steps until the budget is spent, moving `position`; checkpoints lie in `work`."""
    saved_s = reported_s = time.time()
    reported_tokens = position.tokens
    position.progress = budget.advanced(position.progress, position.tokens)
    while position.progress < 1.0:
        length = row_length(position.step, position.progress)
        rate = learning_rate(position.step, position.progress, PEAK_LEARNING_RATE)
        for group in optimizer.param_groups:
            group["lr"] = rate
        rows = [training.row(position.step, place, length) for place in range(TOKENS_PER_STEP // length)]
        loss = weighted_loss(model, *as_tensors(rows, device))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        position.step += 1
        position.tokens += TOKENS_PER_STEP
        position.progress = budget.advanced(position.progress, position.tokens)

        now = time.time()
        if position.step % 50 == 0:
            speed = (position.tokens - reported_tokens) / (now - reported_s)
            print(
                f"step {position.step} tokens {position.tokens:,} progress {position.progress:.4f} rate {rate:.2e} "
                f"row {length} loss {loss.item():.4f} {speed:.0f} tokens/s",
                flush=True,
            )
            reported_s, reported_tokens = now, position.tokens
        if position.step % HELD_OUT_EVERY_STEPS == 0:
            losses = {
                kind: held_out_loss(model, held_out, kind, count=12, length=512, device=device)
                for kind in ("prose", "exercises", "fim")
            }
            print("held-out " + ", ".join(f"{kind} {value:.4f}" for kind, value in losses.items()), flush=True)
        if now - saved_s > SAVE_EVERY_S:
            save_checkpoint(work, model, optimizer, position)
            saved_s = now
    save_checkpoint(work, model, optimizer, position)


def _tokenizer(path: Path, training_text: list[str], seed: int) -> Tokenizer:
    """The work folder's tokenizer, trained there on the first run."""
    if not path.exists():
        dialogues = (
            render(exercises.draw_conversation(Random(f"{seed}/tokenizer/{n}"))) for n in range(TOKENIZER_CONVERSATIONS)
        )
        train_tokenizer([*training_text, *dialogues]).save(str(path))
    return load_tokenizer(path)


def _optimizer(model: Llama) -> torch.optim.AdamW:
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    gains = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), fused=True)


def _budget(options: argparse.Namespace) -> Deadline | TokenBudget:
    if options.until:
        return Deadline.at(options.until)
    return Deadline.after(options.minutes) if options.minutes else TokenBudget(options.tokens)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prose", type=Path, required=True, help="a folder of plain-text books (*.txt)")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write the model to")
    parser.add_argument(
        "--work", type=Path, default=Path.home() / ".cache" / "dragoman-training",
        help="where the tokenizer and the checkpoint lie; a run found there is resumed",
    )  # fmt: skip
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--tokens", type=int, default=25_000_000, help="train on this many tokens (the default)")
    budget.add_argument("--minutes", type=float, help="train for this long instead, however many tokens that is")
    budget.add_argument("--until", metavar="HH:MM", help="train until this time of day in UTC instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; more only where cores are idle")
    options: argparse.Namespace = parser.parse_args()
    return options


if __name__ == "__main__":
    main()
