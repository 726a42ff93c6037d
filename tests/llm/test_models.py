"""Other models than the embedded one: with adapters, with an encoder, with a chat template of the program's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman import LLM, SamplingParams
from dragoman.core.errors import UnsupportedFeature
from dragoman.models import embedded_path

SEEDED = SamplingParams(max_tokens=16, seed=7)
START = 7
T5: dict[str, Any] = {
    "vocab_size": 4096,
    "d_model": 48,
    "d_kv": 12,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "feed_forward_proj": "gated-gelu",
    "decoder_start_token_id": START,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def make_adapter(folder: Path, seed: int) -> Path:
    """One that changes the queries of the embedded model's first layer, in PEFT's format."""
    save_file = pytest.importorskip("safetensors.numpy").save_file
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 256, "target_modules": ["layers.0.self_attn.q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    rng, name = np.random.default_rng(seed), "base_model.model.model.layers.0.self_attn.q_proj"
    size = json.loads((embedded_path() / "config.json").read_text())["hidden_size"]
    tensors = {
        f"{name}.lora_A.weight": rng.normal(size=(4, size)).astype(np.float32),
        f"{name}.lora_B.weight": rng.normal(size=(size, 4)).astype(np.float32),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def test_adapters_are_named_by_requests(llm: LLM, tmp_path: Path) -> None:
    adapters = {"poems": make_adapter(tmp_path / "a", 3), "recipes": make_adapter(tmp_path / "b", 2)}
    messages = [{"role": "user", "content": "Tell me a story."}]
    with LLM(max_context=512, adapters=adapters) as own:
        plain = own.generate("Once upon a time", SEEDED)[0].text
        texts = [own.generate("Once upon a time", SEEDED, adapter=name)[0].text for name in adapters]
        assert plain == llm.generate("Once upon a time", SEEDED)[0].text
        assert len({plain, *texts}) == 3
        streamed = own.stream("Once upon a time", SEEDED, adapter="poems")
        assert "".join(delta.text for delta in streamed) == texts[0]
        assert own.chat(messages, SEEDED, adapter="poems")[0].text != own.chat(messages, SEEDED)[0].text
        assert own.score("Once upon a time", adapter="poems")[0].logprob != own.score("Once upon a time")[0].logprob


def test_a_chat_template_of_the_programs_own_is_used(llm: LLM, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    with LLM(max_context=512, chat_template=template, threads=1) as own:
        answer = own.chat([{"role": "user", "content": "Once upon a time"}], SEEDED)[0]
        assert answer.text == llm.generate("Once upon a time", SEEDED)[0].text


def test_an_encoder_decoder_scores_what_follows_a_prompt(tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(1)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.15)
    model.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(embedded_path() / name, tmp_path)
    with LLM(tmp_path, precision="float32", max_context=128) as own:
        score, other = own.score([" a fox", " the dog"], "Once upon a time", top_logprobs=2)
        with torch.no_grad():
            logits = model(
                input_ids=torch.tensor([own.tokenize("Once upon a time")]),
                decoder_input_ids=torch.tensor([[START, *score.token_ids[:-1]]]),
            ).logits[0]
        theirs = torch.log_softmax(logits, dim=-1)[range(len(score.token_ids)), list(score.token_ids)]
        assert [token.logprob for token in score.logprobs] == pytest.approx(theirs.tolist(), abs=1e-3)
        assert {len(token.top) for token in score.logprobs} == {2}
        assert score.logprob != other.logprob
        with pytest.raises(UnsupportedFeature, match="give 'prompts'"):
            own.score("Once upon a time")
