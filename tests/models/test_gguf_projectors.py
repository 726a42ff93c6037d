"""GGUF models with projector files, written with the `gguf` package as llama.cpp's converter writes them: their towers
and decoders are those of the folders that they were made of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import numpy as np
import pytest
import vision_models
from gguf import GGMLQuantizationType as Type
from gguf_cases import Case, as_stored, describe_all, interleave
from gguf_files import interleave_halves, quantize, write_gguf
from small_models import prompt, run_rows
from vision_models import CONFIGS, PREPROCESSORS, image

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models.gguf.parts import choose_projector
from dragoman.models.model import Model
from dragoman.models.vision.preprocess import preprocess

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SETTINGS = models.ModelSettings(precision="float32", max_tokens=512, kv_tokens=2048, cache_bytes=0)
Writer = gguf.GGUFWriter
TEXTS: dict[str, tuple[str, str, Callable[[str, np.ndarray, Any], np.ndarray]]] = {
    "gemma3": ("gemma3", "<image_soft_token>", lambda name, value, _: value + 1 if "norm" in name else value),
    "smolvlm": ("llama", "<image>", interleave),
    "qwen2_vl": ("qwen2vl", "<|image_pad|>", as_stored),
    "qwen2_5_vl": ("qwen2vl", "<|image_pad|>", as_stored),
    "qwen3_vl": ("qwen3vl", "<|image_pad|>", as_stored),
    "qwen3_vl_moe": ("qwen3vlmoe", "<|image_pad|>", as_stored),
    "pixtral": ("llama", "[IMG]", interleave),
    "mistral3": ("llama", "[IMG]", interleave),
    "internvl": ("qwen2", "<IMG_CONTEXT>", as_stored),
    "internvl-rms": ("qwen3", "<IMG_CONTEXT>", as_stored),
    "llava": ("llama", "<image>", interleave),
    "llava_next": ("llama", "<image>", interleave),
}
"""Of each model the architecture of its decoder, the token of an image, and what the converter changes."""
KINDS = {
    "gemma3": "gemma3",
    "smolvlm": "idefics3",
    "qwen2_vl": "qwen2vl_merger",
    "qwen2_5_vl": "qwen2.5vl_merger",
    "qwen3_vl": "qwen3vl_merger",
    "qwen3_vl_moe": "qwen3vl_merger",
    "pixtral": "pixtral",
    "mistral3": "pixtral",
    "internvl": "internvl",
    "internvl-rms": "internvl",
    "llava": "mlp",
    "llava_next": "mlp",
}


def config_of(name: str) -> dict[str, Any]:
    config = json.loads(json.dumps(CONFIGS[name]))
    if name == "internvl-rms":  # the files have all layers
        config["vision_feature_layer"] = -1
    if name == "gemma3":  # files do not say it
        config["text_config"]["query_pre_attn_scalar"] = config["text_config"]["head_dim"]
    if name == "qwen3_vl_moe":  # nor dense layers
        config["text_config"]["mlp_only_layers"] = []
    if name == "qwen2_5_vl":  # every so-manieth layer
        config["vision_config"]["fullatt_block_indexes"] = [1]
    if "llava" in name:
        config["vision_feature_layer"] = -1
    if name in ("llava_next", "mistral3", "pixtral"):
        config["text_config"] |= {"model_type": "llama"} if name != "mistral3" else {}
    return config


def describe_text(name: str) -> Callable[[Writer, Any], None]:
    def describe(writer: Writer, config: Any) -> None:
        if name.startswith("qwen"):
            block = CONFIGS[name]["text_config"]["rope_scaling"]
            writer.add_rope_dimension_sections([*block["mrope_section"], 0])
        if name == "qwen3_vl_moe":
            writer.add_expert_count(config.num_experts)
            writer.add_expert_used_count(config.num_experts_per_tok)
            writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        if name == "gemma3":
            writer.add_sliding_window(config.sliding_window)
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])

    return describe


def write_text(name: str, root: Path, theirs: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The decoder as a GGUF file, with a vocabulary that has the token of an image at its id."""
    arch, token, change = TEXTS[name]
    folder = root / "text"
    folder.mkdir()
    config = theirs.config.get_text_config()
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    weights = {}
    for key, value in theirs.state_dict().items():
        if "language_model" in key or "text_model" in key or key.startswith("lm_head"):
            weights[re.sub(r"^model\.(language_model|text_model)\.", "model.", key)] = value.contiguous().clone()
    for key in [key for key in weights if ".experts." in key]:
        parts = {"gate_up": ("gate", "up")}.get(key.rpartition(".")[2].removesuffix("_proj"), ("down",))
        for part, value in zip(parts, weights.pop(key).chunk(len(parts), dim=1), strict=True):
            weights[f"{key.rpartition('.')[0]}.{part}_proj.weight"] = value.contiguous()
    if CONFIGS[name]["tie_word_embeddings"]:
        del weights["lm_head.weight"]
    from safetensors.torch import save_file

    save_file(weights, folder / "model.safetensors")

    def tokens(writer: Writer) -> None:
        names = ["<|end|>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyzĠ", "th"]
        names += [f"<{place}>" for place in range(len(names), 129)] + [token, "<end>"]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(names)
        writer.add_token_types([3, 3, 3] + [1] * 28 + [4] * 100)
        writer.add_token_merges(["t h"])

    monkeypatch.setattr(gguf_files, "add_tokens", tokens)
    case = Case(arch, config.to_dict(), describe_text(name))
    describe = describe_all(case, config)
    path = root / "model.gguf"
    return write_gguf(path, folder, arch, lambda _: Type.F32, describe, change)


def tower_keys(name: str, writer: Writer) -> None:
    """The keys that the converter writes."""
    config, prepared = config_of(name), PREPROCESSORS[name]
    vision = dict(config["vision_config"])
    qwen, width = name.startswith("qwen"), vision.get("embed_dim", vision["hidden_size"])
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(KINDS[name])
    writer.add_vision_projection_dim(64)
    side = vision.get("image_size", 560)
    longest = prepared.get("size", {}).get("longest_edge", side)
    writer.add_vision_image_size(longest if KINDS[name] == "pixtral" else side[0] if isinstance(side, list) else side)
    patch = vision["patch_size"]
    writer.add_vision_patch_size(patch[0] if isinstance(patch, list) else patch)
    writer.add_vision_embedding_length(width)
    writer.add_vision_feed_forward_length(4 * width if name == "qwen2_vl" else vision["intermediate_size"])
    writer.add_vision_block_count(vision["depth"] if qwen else vision["num_hidden_layers"])
    writer.add_vision_head_count(vision["num_heads"] if qwen else vision["num_attention_heads"])
    usual = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    if KINDS[name] in ("gemma3", "idefics3"):
        usual = [0.5] * 3, [0.5] * 3
    writer.add_vision_image_mean(prepared.get("image_mean", usual[0]))
    writer.add_vision_image_std(prepared.get("image_std", usual[1]))
    eps = {"clip": 1e-5, "pixtral": 1e-5}.get(str(vision.get("model_type")).partition("_")[0], 1e-6)
    writer.add_vision_attention_layernorm_eps(vision.get("layer_norm_eps", eps))
    silu = name == "qwen2_5_vl" or vision.get("hidden_act") == "silu"
    if silu:
        writer.add_vision_use_silu(True)
    elif KINDS[name] not in ("mlp", "qwen2vl_merger"):
        writer.add_vision_use_gelu(True)
    if name == "gemma3":
        writer.add_vision_projector_scale_factor(2)
    if name == "smolvlm":
        writer.add_vision_projector_scale_factor(config["scale_factor"])
        writer.add_vision_preproc_image_size(longest)
    if KINDS[name] == "internvl":
        writer.add_vision_projector_scale_factor(2)
        writer.add_vision_preproc_min_tiles(prepared.get("min_patches", 1))
        writer.add_vision_preproc_max_tiles(prepared.get("max_patches", 12))
    if name == "mistral3":
        writer.add_vision_spatial_merge_size(2)
    if qwen:
        sizes = prepared.get("size", {})
        writer.add_uint32("clip.vision.image_min_pixels", prepared.get("min_pixels", sizes.get("shortest_edge")))
        writer.add_uint32("clip.vision.image_max_pixels", prepared.get("max_pixels", sizes.get("longest_edge")))
        writer.add_vision_spatial_merge_size(2)
    if name == "qwen2_5_vl":
        writer.add_vision_n_wa_pattern(2)
        writer.add_uint32("clip.vision.window_size", vision["window_size"])
    if name in ("qwen3_vl", "qwen3_vl_moe"):
        stacked = vision["deepstack_visual_indexes"]
        writer.add_vision_is_deepstack_layers([layer in stacked for layer in range(vision["depth"])])
    if name == "llava_next":
        pairs = [edge for height, width in config["image_grid_pinpoints"] for edge in (width, height)]
        writer.add_array("clip.vision.image_grid_pinpoints", pairs)
        writer.add_string("clip.vision.mm_patch_merge_type", "spatial_unpad")
        writer.add_uint32("clip.vision.image_crop_resolution", 56)


STORED = {
    "model.image_newline": "model.image_newline",
    "model.multi_modal_projector.mm_input_projection_weight": "mm.input_projection.weight",
    "model.multi_modal_projector.mm_soft_emb_norm.weight": "mm.soft_emb_norm.weight",
    "model.multi_modal_projector.norm.weight": "mm.input_norm.weight",
    "model.multi_modal_projector.patch_merger.merging_layer.weight": "mm.patch_merger.weight",
}
PIECES = (
    (r"^model\.(vision_model|vision_tower|visual)\.", "v."),
    (r"\.(vision_model\.)?(encoder|transformer)\.layers?\.", ".blk."),
    (r"\.blocks\.", ".blk."),
    (
        r"v\.(embeddings\.patch_embeddings\.projection|embeddings\.patch_embedding|patch_conv|patch_embed\.proj)",
        "v.patch_embd",
    ),
    (r"v\.embeddings\.(class_embedding|cls_token)", "v.class_embd"),
    (r"v\.(embeddings\.position_embeddings?|pos_embed)", "v.position_embd"),
    (r"v\.(pre_layrnorm|ln_pre)", "v.pre_ln"),
    (r"v\.(post_layernorm|merger\.ln_q|merger\.norm|layernorm)\.", "v.post_ln."),
    (r"\.(layer_norm1|layernorm_before|attention_norm|norm1)\.", ".ln1."),
    (r"\.(layer_norm2|layernorm_after|ffn_norm|norm2)\.", ".ln2."),
    (r"\.(?:self_attn|attention|attn)\.([qkv])_proj\.", r".attn_\1."),
    (r"\.(?:self_attn|attention|attn)\.([qk])_norm\.", r".attn_\1_norm."),
    (r"\.(self_attn\.out_proj|attention\.projection_layer|attention\.o_proj|attn\.proj)\.", ".attn_out."),
    (r"\.attn\.qkv\.", ".attn_qkv."),
    (r"\.lambda_([12])$", r".ls\1.weight"),
    (r"\.(mlp\.fc1|mlp\.linear_fc1|mlp\.up_proj|feed_forward\.up_proj)\.", ".ffn_up."),
    (r"\.(mlp\.fc2|mlp\.linear_fc2|mlp\.down_proj|feed_forward\.down_proj)\.", ".ffn_down."),
    (r"\.(mlp|feed_forward)\.gate_proj\.", ".ffn_gate."),
    (r"^v\.merger\.mlp\.", "mm."),
    (r"^v\.merger\.linear_fc1\.", "mm.0."),
    (r"^v\.merger\.linear_fc2\.", "mm.2."),
    (r"^model\.connector\.modality_projection\.proj\.", "mm.model.fc."),
)


def stored_name(name: str, key: str) -> str:
    if key in STORED:
        return STORED[key]
    numbers = {"internvl": (1, 3), "pixtral": (1, 2), "mlp": (0, 2)}.get(KINDS[name], (0, 0))
    prefix = "mm.model.mlp" if KINDS[name] == "internvl" else "mm"
    key = re.sub(r"^model\.multi_modal_projector\.linear_([12])", lambda m: f"{prefix}.{numbers[int(m[1]) - 1]}", key)
    key = key.replace("model.multi_modal_projector.layer_norm", "mm.model.mlp.0")
    for pattern, replacement in PIECES:
        key = re.sub(pattern, replacement, key)
    if found := re.match(r"v\.deepstack_merger_list\.(\d+)\.(norm|linear_fc)(\d?)", key):
        layer = CONFIGS[name]["vision_config"]["deepstack_visual_indexes"][int(found[1])]
        part = "norm" if found[2] == "norm" else f"fc{found[3]}"
        return f"v.deepstack.{layer}.{part}.{key.rpartition('.')[2]}"
    return key


def write_projector(
    name: str, path: Path, theirs: Any, kind: Type = Type.F32, more: Callable[[Writer], None] = lambda writer: None
) -> Path:
    writer = Writer(path, "clip")
    tower_keys(name, writer)
    more(writer)

    def add(stored: str, value: np.ndarray) -> None:
        value = np.ascontiguousarray(value, np.float32)
        if value.ndim == 2 and value.shape[1] % 32 == 0 and kind != Type.F32 and "position" not in stored:
            writer.add_tensor(stored, quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored, value)

    heads = CONFIGS[name]["vision_config"].get("num_attention_heads", 3)
    for key, tensor in theirs.state_dict().items():
        if "language_model" in key or "text_model" in key or key.startswith("lm_head"):
            continue
        stored, value = stored_name(name, key), tensor.numpy()
        if stored == "v.patch_embd.weight" and value.ndim == 5:  # of two frames
            add(stored, value[:, :, 0])
            add(f"{stored}.1", value[:, :, 1])
        elif "attn_qkv" in stored and not name.startswith("qwen3"):
            for part, third in zip("qkv", np.split(value, 3), strict=True):
                add(stored.replace("qkv", part), third)
        elif KINDS[name] == "pixtral" and re.search(r"attn_[qk]\.", stored):
            add(stored, interleave_halves(value, heads))
        elif stored == "mm.soft_emb_norm.weight":
            add(stored, value + 1)
        elif stored.startswith("v.post_ln") and KINDS[name] == "mlp":
            continue  # of a layer that is not taken
        else:
            add(stored, value.squeeze())
    assert all(each.startswith(("v.", "mm.", "model.image")) for each in writer.tensors[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of each model the folder with its files, transformers' model, and ours of the folder in Hugging Face layout."""
    known: dict[str, tuple[Path, Any, Model]] = {}

    def of(name: str) -> tuple[Path, Any, Model]:
        if name not in known:
            root, config = tmp_path_factory.mktemp(name), CONFIGS[name]
            patch = pytest.MonkeyPatch()
            patch.setitem(vision_models.CONFIGS, name, config_of(name))
            folder = root / "folder"
            folder.mkdir()
            theirs = vision_models.save(folder, name)
            write_text(name, root, theirs, patch)
            write_projector(name, root / "mmproj-F32.gguf", theirs)
            patch.undo()
            assert CONFIGS[name] is config
            known[name] = root, theirs, models.load(folder, SETTINGS)
        return known[name]

    return of


@pytest.mark.parametrize("name", TEXTS)
def test_a_projector_beside_a_model_is_its_tower(name: str, made: Any) -> None:
    root, _, whole = made(name)
    found = models.load(root / "model.gguf", SETTINGS)
    assert found.tower is not None
    ours, theirs = found.tower.vision, whole.tower.vision
    assert ours.tiling == theirs.tiling
    assert (ours.both_ways, ours.rotary_sections) == (theirs.both_ways, theirs.rotary_sections)
    assert ours.tags.image_id == theirs.tags.image_id == 129
    for size in ((100, 70), (300, 500)):
        prepared = preprocess(image(*size), ours)
        np.testing.assert_array_equal(prepared.pixels, preprocess(image(*size), theirs).pixels)
        expected = whole.tower.encode(prepared.pixels, prepared.grid)
        embeddings = found.tower.encode(prepared.pixels, prepared.grid)
        np.testing.assert_allclose(embeddings, expected, atol=1e-5 * np.abs(expected).max())
    expected = run_rows(whole, prompt(60))
    np.testing.assert_allclose(run_rows(found, prompt(60)), expected, atol=1e-5 * np.abs(expected).max())


def test_a_projector_is_named_or_turned_off(made: Any, tmp_path: Path) -> None:
    root, theirs, whole = made("smolvlm")
    assert models.describe(root / "model.gguf", mmproj="none").spec.vision is None
    (tmp_path / "model.gguf").write_bytes((root / "model.gguf").read_bytes())
    assert models.describe(tmp_path / "model.gguf").spec.vision is None
    other = write_projector("smolvlm", tmp_path / "tower.gguf", theirs, Type.Q8_0)
    found = models.load(tmp_path / "model.gguf", models.ModelSettings(mmproj=str(other), kv_tokens=2048, cache_bytes=0))
    assert found.tower is not None
    prepared = preprocess(image(300, 200), found.tower.vision)
    expected = whole.tower.encode(prepared.pixels, prepared.grid)
    close = found.tower.encode(prepared.pixels, prepared.grid)
    assert 0 < np.abs(close - expected).max() < 0.05 * np.abs(expected).max()
    with pytest.raises(ModelError, match="there is no projector file"):
        models.describe(tmp_path / "model.gguf", mmproj=str(tmp_path / "nowhere.gguf"))
    with pytest.raises(ModelError, match="a projector file goes with a GGUF model"):
        models.describe(root / "folder", mmproj=str(other))
    with pytest.raises(ModelError, match="it is no projector file"):
        models.describe(tmp_path / "model.gguf", mmproj=str(root / "model.gguf"))


def test_a_projector_of_another_model_is_refused_where_it_is_named(made: Any, tmp_path: Path, caplog: Any) -> None:
    _, theirs, _ = made("smolvlm")
    (tmp_path / "model.gguf").write_bytes((made("gemma3")[0] / "model.gguf").read_bytes())
    write_projector("smolvlm", tmp_path / "mmproj.gguf", theirs)
    with pytest.raises(ModelError, match="a projector of kind idefics3 does not go with gemma3_text"):
        models.describe(tmp_path / "model.gguf", mmproj=str(tmp_path / "mmproj.gguf"))
    assert models.describe(tmp_path / "model.gguf").spec.vision is None
    assert "text only: " in caplog.text
    assert models.describe(tmp_path).spec.vision is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.add_clip_projector_type("resampler"), "'resampler' is not supported; known: gemma3"),
        (lambda w: w.add_clip_has_audio_encoder(True), "only projectors for images are supported"),
        (lambda w: w.add_vision_projection_dim(65), "65 differs from 64 of text"),
        (lambda w: w.add_vision_head_count(7), "not a multiple of num_attention_heads"),
        (lambda w: w.add_vision_block_count(4), r"layers\.3\..* is missing"),
        (lambda w: w.add_vision_block_count(2), "is not part of SmolVLM"),
        (lambda w: w.add_uint32("clip.vision.new_trick", 3), "new_trick"),
        (lambda w: w.add_tensor("v.blk.0.new_trick.weight", np.zeros(4, np.float32)), "is of no known use"),
        (lambda w: w.add_vision_image_mean([0.5, 0.5]), "must be an array of 3 numbers"),
        (lambda w: w.add_vision_patch_size(0), "must be a positive integer"),
    ],
)
def test_a_projector_that_cannot_be_honoured_is_refused_by_the_key(
    change: Callable[[Writer], None], message: str, made: Any, tmp_path: Path
) -> None:
    root, theirs, _ = made("smolvlm")

    def other(writer: Writer) -> None:
        written = writer.kv_data[0]
        before = dict(written)
        written.clear()
        change(writer)
        written.update({key: value for key, value in before.items() if key not in written})

    path = write_projector("smolvlm", tmp_path / "mmproj.gguf", theirs, more=other)
    with pytest.raises(ModelError, match=message):
        models.describe(root / "model.gguf", mmproj=str(path))


def test_a_vocabulary_without_the_token_of_an_image_has_another(made: Any, tmp_path: Path) -> None:
    root, _, _ = made("gemma3")
    stored = (root / "model.gguf").read_bytes()
    token = b"<image_soft_token>"
    changed = stored.replace(token, b"<pad>".ljust(len(token), b"x"))
    (tmp_path / "model.gguf").write_bytes(changed)
    with pytest.raises(ModelError, match="its vocabulary has no token <image_soft_token> for images"):
        models.describe(tmp_path / "model.gguf", mmproj=str(root / "mmproj-F32.gguf"))
    place = stored.index(b"<60>")
    other = stored[: place - 8] + (5).to_bytes(8, "little") + b"<pad>" + stored[place + 4 :]
    at = other.index(token)
    other = other[: at - 8] + (len(token) - 1).to_bytes(8, "little") + token[:-1] + other[at + len(token) :]
    (tmp_path / "model.gguf").write_bytes(other)
    vision = models.describe(tmp_path / "model.gguf", mmproj=str(root / "mmproj-F32.gguf")).spec.vision
    assert vision is not None
    assert (vision.tags.image, vision.tags.image_id) == ("<pad>", 60)


def test_of_several_projectors_the_one_in_float16_is_taken() -> None:
    names = ["a.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"]
    assert choose_projector(names) == "mmproj-F16.gguf"
    assert choose_projector(names[:2]) == "mmproj-BF16.gguf"
    assert choose_projector(["Qwen.mmproj-f16.gguf", "Qwen.gguf"]) == "Qwen.mmproj-f16.gguf"
    assert choose_projector(["a.gguf"]) is None
