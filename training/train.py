"""The recipe: `python -m training.train --prose FOLDER --out builtin` trains the model and writes it."""

import argparse
import math
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer

from training import attention, exercises
from training.chat import render
from training.checkpoint import Position, load_checkpoint, save_checkpoint
from training.export import export, load_model
from training.feeder import Feeder
from training.loss import as_tensors, distilled_loss, held_out_loss, weighted_loss
from training.model import Llama, ModelConfig
from training.optimizer import Together, optimizer_of
from training.prose import encode_prose, read_books, split_books
from training.rows import RowMaker
from training.schedule import Deadline, TokenBudget, learning_rate, row_length
from training.tokenizer import carry_embeddings, load_tokenizer, train_tokenizer

CPU_STEP = 2048
GPU_STEP = 131_072
SAVE_EVERY_S = 180
REPORT_EVERY_S = 30
HELD_OUT_EVERY_S = 600
TOKENIZER_CONVERSATIONS = 4000


def main() -> None:
    options = _options()
    options.work.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(options.seed)
    gpu = device.type == "cuda"
    compiled = gpu if options.compile is None else options.compile
    if compiled and not gpu and attention.can_compile():
        attention.compile_kernel()
    workers = options.workers if options.workers is not None else max(1, (os.cpu_count() or 2) - 1) if gpu else 0

    training_text, held_out_text = split_books(read_books(options.prose))
    tokenizer_path = options.work / "tokenizer.json"
    tokenizer = _tokenizer(tokenizer_path, training_text, options)
    training = RowMaker(tokenizer, encode_prose(training_text, tokenizer), seed=options.seed)
    held_out = RowMaker(tokenizer, encode_prose(held_out_text, tokenizer), seed=options.seed, held_out=True)
    print(f"prose: {training.prose.num_tokens:,} tokens, held out {held_out.prose.num_tokens:,}", flush=True)

    model = _first_model(options, tokenizer).to(device)
    optimizer = optimizer_of(model, options.optimizer, rate=options.rate)
    position = load_checkpoint(options.work, model, optimizer)
    print(f"model: {model.num_parameters:,} parameters; starting at step {position.step} on {device}", flush=True)
    run = Run(
        model,
        optimizer,
        position,
        budget=_budget(options),
        work=options.work,
        step_tokens=options.step_tokens or (GPU_STEP if gpu else CPU_STEP),
        compiled=compiled,
        pause_s=time.time() + 60 * options.pause_after,
        teacher=load_model(options.teacher).to(device) if options.teacher else None,
    )
    with Feeder(training, run.step_tokens, position.step, run.length, workers=workers, tokenizer=tokenizer_path,
                prose=options.prose) as feeder:  # fmt: skip
        train(run, feeder, held_out, device)
    if position.progress < 1.0:
        print(f"paused at step {position.step}: the same command goes on", flush=True)
        return
    for kind, loss in held_out_losses(model, held_out, device, count=64).items():
        print(f"held-out {kind}: {loss:.4f} nats per token", flush=True)
    export(model, tokenizer, options.out)
    print(f"wrote {options.out}: step {position.step}, {position.tokens:,} tokens", flush=True)


@dataclass
class Run:
    """A model in training: where it stands, and until when."""

    model: Llama
    optimizer: Together
    position: Position
    budget: Deadline | TokenBudget
    work: Path
    step_tokens: int
    compiled: bool = False
    pause_s: float = math.inf  # the time at which to leave off, with a checkpoint
    teacher: Llama | None = None  # whose expectations the model learns, instead of the text alone

    def length(self, step: int) -> int:
        """The row length of a step near the present one."""
        return row_length(step, self.position.progress)


def train(run: Run, feeder: Feeder, held_out: RowMaker, device: torch.device) -> None:
    """Steps until the budget is spent, moving the run's position; checkpoints lie in its work folder."""
    model, optimizer, position = run.model, run.optimizer, run.position
    loss_of = weighted_loss if run.teacher is None else partial(distilled_loss, teacher=run.teacher)
    loss_of = torch.compile(loss_of, dynamic=False) if run.compiled else loss_of
    saved_s = reported_s = measured_s = time.time()
    reported_tokens = position.tokens
    position.progress = run.budget.advanced(position.progress, position.tokens)
    while position.progress < 1.0 and time.time() < run.pause_s:
        share = learning_rate(position.step, position.progress)
        optimizer.set_rate(share)
        batch = feeder.batch()
        ids, weights = as_tensors(batch, device)
        loss = loss_of(model, ids=ids, weights=weights)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        position.step += 1
        position.tokens += batch[0].shape[0] * (batch[0].shape[1] - 1)
        position.progress = run.budget.advanced(position.progress, position.tokens)

        now = time.time()
        if now - reported_s > REPORT_EVERY_S:
            speed = (position.tokens - reported_tokens) / (now - reported_s)
            print(
                f"step {position.step} tokens {position.tokens:,} progress {position.progress:.4f} rate {share:.3f} "
                f"row {batch[0].shape[1] - 1} loss {loss.item():.4f} {speed:.0f} tokens/s",
                flush=True,
            )
            reported_s, reported_tokens = now, position.tokens
        if now - measured_s > HELD_OUT_EVERY_S:
            losses = held_out_losses(model, held_out, device, count=12)
            print("held-out " + ", ".join(f"{kind} {value:.4f}" for kind, value in losses.items()), flush=True)
            measured_s = time.time()
        if now - saved_s > SAVE_EVERY_S:
            save_checkpoint(run.work, model, optimizer, position)
            saved_s = now
    save_checkpoint(run.work, model, optimizer, position)


def held_out_losses(model: Llama, held_out: RowMaker, device: torch.device, *, count: int) -> dict[str, float]:
    """Nats per token of each kind of row, over `count` rows of 512 tokens."""
    return {
        kind: held_out_loss(model, held_out, kind, count=count, length=512, device=device)
        for kind in ("prose", "exercises", "fim")
    }


def _first_model(options: argparse.Namespace, tokenizer: Tokenizer) -> Llama:
    """The model at the start of a run: of the size asked for, or with the weights of the folder to begin with.

    A draft model begins with its teacher's embeddings, which are most of it.
    """
    if not options.begin:
        model = Llama(ModelConfig.of_size(options.size))
        if options.size == "draft" and options.teacher:
            model.model.embed_tokens.load_state_dict(load_model(options.teacher).model.embed_tokens.state_dict())
        return model
    model = load_model(options.begin).train()
    if options.new_tokenizer:
        carry_embeddings(model, load_tokenizer(options.begin / "tokenizer.json"), tokenizer)
    return model


def _tokenizer(path: Path, training_text: list[str], options: argparse.Namespace) -> Tokenizer:
    """The work folder's tokenizer, trained there on the first run, or taken from the folder to begin with."""
    seed, begin = options.seed, options.begin or options.teacher
    if not path.exists() and begin and not options.new_tokenizer:
        load_tokenizer(begin / "tokenizer.json").save(str(path))
    if not path.exists():
        dialogues = (
            render(exercises.draw_conversation(Random(f"{seed}/tokenizer/{n}"))) for n in range(TOKENIZER_CONVERSATIONS)
        )
        train_tokenizer([*training_text, *dialogues]).save(str(path))
    return load_tokenizer(path)


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
    parser.add_argument(
        "--pause-after",
        type=float,
        metavar="MINUTES",
        default=math.inf,
        help="leave off after this long with a checkpoint, for the same command to go on from",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; more only where cores are idle")
    parser.add_argument("--size", choices=["draft", "small", "wide"], default="small",
                        help="1.7, 5.2 or 14.2 million parameters")  # fmt: skip
    parser.add_argument(
        "--teacher",
        type=Path,
        metavar="FOLDER",
        help="an exported model whose guesses are learned, not the text",
    )
    parser.add_argument(
        "--from",
        dest="begin",
        type=Path,
        metavar="FOLDER",
        help="begin with weights and tokenizer of an exported model instead of from nothing",
    )
    parser.add_argument(
        "--new-tokenizer",
        action="store_true",
        help="with --from: train the tokenizer anew, and begin its embeddings with those of the old one's tokens",
    )
    parser.add_argument("--optimizer", choices=["adamw", "muon"], default="muon")
    parser.add_argument("--rate", type=float, default=1.0, help="scale of all learning rates")
    parser.add_argument("--step-tokens", type=int, help=f"tokens a step: {CPU_STEP:,} on a CPU, {GPU_STEP:,} on a GPU")
    parser.add_argument("--workers", type=int, help="processes that make rows: none on a CPU, all cores for a GPU")
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, help="torch.compile, and the kernel of attention"
    )
    options: argparse.Namespace = parser.parse_args()
    return options


if __name__ == "__main__":
    main()
