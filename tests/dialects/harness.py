"""Run by the interpreter that has ``lm-eval``: one model over the offline tasks, its scores as JSON.

``python harness.py FOLDER_OF_TASKS KIND ARGUMENTS``, where kind and arguments are those of lm-eval's ``--model`` and
``--model_args``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def scores(folder: str, kind: str, arguments: str) -> dict[str, Any]:
    """By task, of each of its documents: what the model answered to every request."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    found = simple_evaluate(
        model=kind,
        model_args=arguments,
        tasks=["chosen", "continued", "rolled"],
        task_manager=TaskManager(include_path=folder, include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        batch_size=1 if kind == "hf" else 4,
    )
    return {
        task: [sample["resps"] for sample in sorted(samples, key=lambda sample: sample["doc_id"])]
        for task, samples in found["samples"].items()
    } | {
        "metrics": {
            task: {k: v for k, v in each.items() if isinstance(v, float)} for task, each in found["results"].items()
        }
    }


if __name__ == "__main__":
    print(json.dumps(scores(*sys.argv[1:4])))
