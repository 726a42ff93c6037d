"""Averages the weights of two exported models: `python -m training.average --first A --second B --out FOLDER`.

A model trained on from another one stays near it, and what lies between the two can keep what either does better
(Wortsman et al., 2022).
"""

import argparse
from pathlib import Path

from training.export import export, load_model
from training.model import Llama
from training.tokenizer import load_tokenizer


def between(first: Llama, second: Llama, share: float) -> Llama:
    """The model with `share` of the second one's weights and the rest of the first one's."""
    found, others = Llama(first.config), second.state_dict()
    found.load_state_dict(
        {name: (1 - share) * weight + share * others[name] for name, weight in first.state_dict().items()}
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=Path, required=True, help="the exported model that training began with")
    parser.add_argument(
        "--second", type=Path, required=True, help="the one that it made of it, with the same tokenizer"
    )
    parser.add_argument("--share", type=float, default=0.6, help="how much of the second one, 0 to 1")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    options = parser.parse_args()
    model = between(load_model(options.first), load_model(options.second), options.share)
    export(model, load_tokenizer(options.first / "tokenizer.json"), options.out)


if __name__ == "__main__":
    main()
