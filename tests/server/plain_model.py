"""The embedded model without its switch for reasoning, for tests of what a server does for models that have none."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path

BUILTIN = Path(__file__).parents[2] / "builtin"
SWITCHED = re.compile(r"\{%- if enable_thinking.*?\{%- endif -%\}", re.DOTALL)
MARKS = {"<think>": "<|unused_1|>", "</think>": "<|unused_2|>"}


def plain_folder() -> Path:
    """A folder of its own for each version of the embedded model, which all processes of a user share."""
    tokenizer, config = ((BUILTIN / name).read_text("utf-8") for name in ("tokenizer.json", "tokenizer_config.json"))
    template = SWITCHED.sub("", json.loads(config)["chat_template"])
    assert "think" not in template
    digest = hashlib.sha256("\0".join([str(BUILTIN), tokenizer, config, template]).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"dragoman-tests-{os.getuid()}" / digest
    if folder.exists():
        return folder
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    for mark, name in MARKS.items():
        tokenizer, config = tokenizer.replace(f'"{mark}"', f'"{name}"'), config.replace(f'"{mark}"', f'"{name}"')
    (made / "tokenizer.json").write_text(tokenizer, "utf-8")
    (made / "tokenizer_config.json").write_text(json.dumps(json.loads(config) | {"chat_template": template}), "utf-8")
    for file in BUILTIN.iterdir():
        if not (made / file.name).exists():
            (made / file.name).symlink_to(file)
    try:
        made.rename(folder)
    except OSError:  # another process was first
        for file in made.iterdir():
            file.unlink()
        made.rmdir()
    return folder
