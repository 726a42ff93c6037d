"""Models with images: what their image processors, towers and decoders make is what transformers makes."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vision_models
from msgspec.structs import replace
from numpy.typing import NDArray
from small_models import prompt, run_rows
from vision_models import CONFIGS, description, image, kind_of
from vision_witness import LFM2_SHAPES, PIXTRAL, SIZES, WHOLE, processor, sizes_of, their_inputs, their_pixels

from dragoman import kernels, models
from dragoman.core.errors import ModelError
from dragoman.models.batch import Batch, rows_of_slot, tables_of_one
from dragoman.models.model import Model
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.geometry import Grid, image_token_count, tile_embeddings, tile_sizes
from dragoman.models.vision.places import position_shift, rotary_positions, seen_ends
from dragoman.models.vision.preprocess import PreparedImage, normalise, preprocess
from dragoman.models.vision.prompt import expand, replacement, with_text_tags
from dragoman.models.vision.tower import VisionTower
from dragoman.models.vision.tower_programs import kept_precision

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

SETTINGS = models.ModelSettings(precision="float32", max_tokens=512, kv_tokens=2048, cache_bytes=0)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each model once: transformers' own, and ours."""
    made: dict[str, tuple[Any, Model]] = {}

    def of(name: str) -> tuple[Any, Model]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            theirs = vision_models.save(folder, name)
            made[name] = theirs, models.load(folder, SETTINGS)
        return made[name]

    return of


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CONFIGS)
def test_pixels_equal_those_of_transformers(name: str, size: tuple[int, int]) -> None:
    vision, picture = description(name), image(*size)
    if size not in sizes_of(name):
        if kind_of(name) == "idefics2":  # of no quarters; transformers makes some of no width
            assert preprocess(picture, vision).grid[:2] == (0, 0)
            return
        if kind_of(name) == "lfm2_vl":
            with pytest.raises(ValueError, match="less than 20 times as long as wide, got"):
                preprocess(picture, vision)
            return
        if kind_of(name) in PIXTRAL:
            assert preprocess(picture, vision).grid[:2] == (11, 1)
            return
        with pytest.raises(ValueError, match="at most 200 times as long as wide, got 1 x 3000"):
            preprocess(picture, vision)
        return
    least = {"auto": {}, "low": WHOLE.get(kind_of(name), {})}
    for detail, changes in least.items():
        if detail == "low" and vision.tiling.kind == "fit":
            continue  # transformers has no name for it
        found = preprocess(picture, vision, detail)
        assert found.pixels.dtype == np.uint8
        theirs = their_pixels(name, picture, **changes)
        # torch and Pillow round otherwise.
        apart = 1.01 * 2 / 255 if kind_of(name) == "lfm2_vl" else 0
        np.testing.assert_allclose(normalise(found.pixels, vision.pixels), theirs, atol=apart, rtol=0)


def test_of_an_endless_image_only_the_middle_is_scaled() -> None:
    picture = image(1, 40_000)
    found = preprocess(picture, description("llava")).pixels[0]
    near = preprocess(picture.crop((0, 19_000, 1, 21_000)), description("llava")).pixels[0]
    assert np.abs(found.astype(int) - near).max() <= 1


@pytest.mark.parametrize("name", CONFIGS)
def test_prompts_equal_those_of_transformers(name: str) -> None:
    vision = description(name)
    for size in sizes_of(name):
        found = preprocess(image(*size), vision)
        expected = lfm2_prompt(*size) if kind_of(name) == "lfm2_vl" else their_prompt(name, vision, image(*size))
        assert replacement(vision, found) == expected
        assert expected.count(vision.tags.image) == found.embeddings
        tags = expected.replace(vision.tags.image, "")
        assert found.tokens - found.embeddings == len(re.findall(r"<|\[|\n+", tags))
        assert found.tokens == image_token_count(*size, vision)


def lfm2_prompt(width: int, height: int) -> str:
    """What transformers' processor has for an image, which asks for torchvision."""
    rows, columns, *whole = LFM2_SHAPES[width, height]
    parts = [f"<|img_row_{row + 1}_col_{column + 1}|>" for row in range(rows) for column in range(columns)]
    tiles = "".join(part + "<image>" * 16 for part in parts) + "<|img_thumbnail|>" if parts else ""
    return f"<|image_start|>{tiles}{'<image>' * (whole[0] * whole[1] // 256)}<|image_end|>"


def their_prompt(name: str, vision: VisionDescription, picture: Any) -> str:
    """What transformers' processor has for an image."""
    if kind_of(name) == "idefics2":
        fake = "<fake_token_around_image>"
        return fake + ("<image>" * 9 + fake) * 5
    kind, prepared = kind_of(name), processor(name)(picture, return_tensors="np")
    if kind in PIXTRAL:  # their module asks for torchvision
        (height, width), side = prepared["image_sizes"][0], vision.tiling.side
        return "[IMG_BREAK]".join(["[IMG]" * (width // side)] * (height // side)) + "[IMG_END]"
    kind = {"qwen3_5": "qwen3_vl", "qwen3_vl_moe": "qwen3_vl"}.get(kind, kind)
    module = importlib.import_module(f"transformers.models.{kind}.processing_{kind}")
    (made,) = (getattr(module, each) for each in module.__all__ if each.endswith("Processor"))
    return str(made.replace_image_token(_Tokens(made, vision, processor(name)), prepared, 0))


class _Tokens:
    """What a processor of transformers knows of its tokenizer, without one."""

    fake_image_token = "<fake_token_around_image>"
    global_image_tag = global_image_token = "<global-img>"
    start_image_token, end_image_token = "<img>", "</img>"
    boi_token, eoi_token = "<|image>", "<image|>"
    num_additional_image_tokens = 1

    def __init__(self, kind: type, vision: VisionDescription, image_processor: Any) -> None:
        self._kind = kind
        self.image_token = vision.tags.image
        self.image_seq_len = self.image_seq_length = vision.tile_tokens
        self.full_image_sequence = f"\n\n<start_of_image>{vision.tags.image * vision.tile_tokens}<end_of_image>\n\n"
        self.patch_size = vision.patch
        self.vision_feature_select_strategy = "default"  # one additional token, and one dropped
        self.image_processor = image_processor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kind, name).__get__(self)


def test_the_text_of_a_prompt_begins_after_its_last_image() -> None:
    vision = description("paligemma")
    assert with_text_tags(vision, "<image><image>what is it") == "<image><image><bos>what is it\n"
    for text in ("what is it", "<image><bos>what is it\n"):
        assert with_text_tags(vision, text) == text
    assert with_text_tags(description("llava"), "a <image> b") == "a <image> b"


class Characters:
    """A tokenizer with a token for each name in brackets, and for line breaks in a row."""

    def encode(self, text: str, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        found = [1] if add_special_tokens else []
        while text:
            name = re.match(r"<[^>]*>|\[[^]]*]|\n+", text)
            assert name is not None
            end = name.end()
            found.append(1000 + sum(map(ord, text[:end])))
            text = text[end:]
        return found


@pytest.mark.parametrize("name", CONFIGS)
def test_a_placeholder_becomes_as_many_tokens_as_are_counted(name: str) -> None:
    vision = description(name)
    for size in sizes_of(name):
        found = preprocess(image(*size), vision)
        ids = expand(vision, Characters(), found)
        assert len(ids) == found.tokens
        assert ids.count(vision.tags.image_id) == found.embeddings


@pytest.mark.parametrize("name", CONFIGS)
def test_embeddings_equal_those_of_transformers(name: str, served: Any) -> None:
    theirs, ours = served(name)
    for size in {(100, 70), (300, 500), (10, 400)}.intersection(sizes_of(name)):
        found = preprocess(image(*size), ours.tower.vision)
        with torch.no_grad():
            features = theirs.get_image_features(**their_inputs(name, image(*size)))
        expected = torch.cat(list(features.pooler_output)).reshape(-1, features.pooler_output[0].shape[-1])
        stacked = getattr(features, "deepstack_features", None) or []
        expected = torch.cat([expected, *map(torch.cat, stacked)], dim=1).numpy()
        expected *= ours.tower.vision.projection.factor  # transformers has it in the decoder
        close = 1e-4 * np.abs(expected).max()
        np.testing.assert_allclose(ours.tower.encode(found.pixels, found.grid), expected, atol=close)


def with_image(ours: Model, found: PreparedImage) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """A prompt with an image: token ids, and the rows of its embeddings."""
    token = ours.tower.vision.tags.image_id
    ids = np.array([*range(5, 35), *[token] * found.embeddings, *range(40, 50)], np.int32)
    return ids, np.flatnonzero(ids == token)


def states_of(ours: Model, rows: int) -> dict[str, NDArray[np.int32]]:
    """The slot of the state, where a model keeps one, and after which row it is kept."""
    if not ours.num_states:
        return {}
    return {"state_slots": np.zeros(1, np.int32), "state_rows": rows_of_slot(rows, 0)}


def logits_of(ours: Model, ids: NDArray[np.int32], rows: NDArray[np.intp], found: PreparedImage) -> NDArray[np.float32]:
    count, sections = len(ids), ours.tower.vision.rotary_sections
    both_ways = ours.tower.vision.both_ways
    spans = [(0, count) if both_ways == "prompt" else (int(rows[0]), int(rows[-1]) + 1)]
    batch = Batch(
        token_ids=ids,
        positions=np.arange(count, dtype=np.int32),
        row_starts=np.array([0, count], np.int32),
        block_tables=tables_of_one(ours.pools, -(-count // ours.block_size)),
        logit_rows=np.arange(max(0, count - ours.max_logit_rows), count, dtype=np.int32),
        embedding_rows=rows.astype(np.int32),
        embedding_values=ours.tower.encode(found.pixels, found.grid),
        seen_ends=seen_ends(spans, 0, count) if both_ways != "none" else None,
        rotary_positions=rotary_positions([(int(rows[0]), found.grid)], count) if sections else None,
        **states_of(ours, count),
    )
    return np.array(ours.run(batch))


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_those_of_transformers(name: str, served: Any) -> None:
    theirs, ours = served(name)
    found = preprocess(image(300, 500), ours.tower.vision)
    ids, rows = with_image(ours, found)
    with torch.no_grad():
        inputs = their_inputs(name, image(300, 500)) | {"input_ids": torch.tensor(ids)[None].long()}
        is_image = (inputs["input_ids"] == ours.tower.vision.tags.image_id).long()
        if ours.tower.vision.both_ways != "none" and kind_of(name) != "gemma4":  # 0: in PaliGemma, of the prompt
            inputs["token_type_ids"] = is_image if ours.tower.vision.both_ways == "image" else 0 * is_image
        if ours.tower.vision.rotary_sections or kind_of(name) == "gemma4":
            inputs["mm_token_type_ids"] = is_image
        expected = theirs(**inputs).logits[0].numpy()
    logits = logits_of(ours, ids, rows, found)
    np.testing.assert_allclose(logits, expected[-len(logits) :], atol=1e-4 * np.abs(expected).max())


GREEDY = 64
GREEDILY = ("smolvlm", "gemma3", "gemma4", "gemma4-small", "paligemma2", "llava_next", "qwen2_5_vl", "qwen3_vl")


@pytest.mark.parametrize("name", [*GREEDILY, "qwen3_vl_moe", "qwen3_5", "lfm2_vl", "idefics2"])
def test_greedy_tokens_equal_those_of_transformers(name: str, served: Any) -> None:
    theirs, ours = served(name)
    vision, picture = ours.tower.vision, image(120, 90)
    found = preprocess(picture, vision)
    ids, rows = with_image(ours, found)
    inputs = their_inputs(name, picture) | {"input_ids": torch.tensor(ids)[None].long()}
    is_image = (inputs["input_ids"] == vision.tags.image_id).long()
    if vision.both_ways != "none" and kind_of(name) != "gemma4":
        inputs["token_type_ids"] = is_image if vision.both_ways == "image" else 0 * is_image
    if vision.rotary_sections or kind_of(name) == "gemma4":
        inputs["mm_token_type_ids"] = is_image
    limits = {"max_new_tokens": GREEDY, "min_new_tokens": GREEDY, "do_sample": False, "pad_token_id": 0}
    expected = theirs.generate(**inputs, **limits)[0, len(ids) :].tolist()
    # min_new_tokens forbids the end, which these models have no reason to choose.
    ends = theirs.generation_config.eos_token_id or 0
    made = [_likeliest(logits_of(ours, ids, rows, found)[-1], ends)]
    shift = position_shift([(int(rows[0]), found.grid)]) if vision.rotary_sections else 0
    blocks = -(-(len(ids) + GREEDY) // ours.block_size)
    while len(made) < GREEDY:
        place = len(ids) + len(made) - 1
        batch = Batch(
            token_ids=np.array(made[-1:], np.int32),
            positions=np.array([place], np.int32),
            row_starts=np.array([0, 1], np.int32),
            block_tables=tables_of_one(ours.pools, blocks),
            logit_rows=np.zeros(1, np.int32),
            rotary_positions=np.full((3, 1), place + shift, np.int32) if vision.rotary_sections else None,
            **states_of(ours, 1),
        )
        made.append(_likeliest(ours.run(batch)[0], ends))
    assert made == expected


def _likeliest(logits: NDArray[np.float32], ends: int | list[int]) -> int:
    logits = np.array(logits)
    logits[ends] = -np.inf
    return int(logits.argmax())


@pytest.mark.parametrize("name", CONFIGS)
def test_text_is_served_as_before_between_the_parts_of_an_image(name: str, served: Any) -> None:
    theirs, ours = served(name)
    ids = prompt(120)
    inputs = {"input_ids": torch.tensor(ids)[None].long()}
    if ours.tower.vision.both_ways == "prompt":  # without images there is no prompt that is seen both ways
        inputs["token_type_ids"] = torch.ones_like(inputs["input_ids"])
    with torch.no_grad():
        expected = theirs(**inputs).logits[0].numpy()
    before = run_rows(ours, ids)
    np.testing.assert_allclose(before, expected, atol=1e-4 * np.abs(expected).max())
    found = preprocess(image(300, 500), ours.tower.vision)
    whole, parts = ours.tower.encode(found.pixels, found.grid), []
    for part in ours.tower.encode_steps(found):
        parts.append(part)
        np.testing.assert_array_equal(run_rows(ours, ids), before)
    assert all(part is None for part in parts[:-1])
    assert len(parts) > 2 * ours.tower.vision.layers.count
    np.testing.assert_array_equal(parts[-1], whole)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_tile_has_the_same_bits_alone_and_with_others(name: str, served: Any) -> None:
    _, ours = served(name)
    found = preprocess(image(300, 500), ours.tower.vision)
    whole = ours.tower.encode(found.pixels, found.grid)
    one = Grid(0, 0, found.grid.size)
    if ours.tower.vision.tiling.kind == "mixed":  # the last is the whole image, and the others are less high or wide
        size = tile_sizes(one, ours.tower.vision)[0]
        last = found.pixels[-1:, :, : size.height, : size.width]
        np.testing.assert_array_equal(
            ours.tower.encode(last, one), whole[-tile_embeddings(one, ours.tower.vision)[0] :]
        )
        return
    alone = [ours.tower.encode(found.pixels[i : i + 1], one) for i in range(len(found.pixels))]
    if ours.tower.vision.tiling.kind == "fit":  # of the others it drops rows
        alone = [alone[0][:-1]]
        whole = whole[: len(alone[0])]
    np.testing.assert_array_equal(np.concatenate(alone), whole)


@pytest.mark.parametrize("precision", ["bfloat16", "int8", "int4"])
def test_a_packed_tower_is_close_to_the_whole_one(precision: Any, tmp_path: Path) -> None:
    """In int4 a tower is int8: of these random weights that is an error of a hundredth of the largest number."""
    vision_models.save(tmp_path, "smolvlm")
    towers = [
        models.load(tmp_path, models.ModelSettings(precision=each, kv_tokens=2048, cache_bytes=0)).tower
        for each in ("float32", precision)
    ]
    found = preprocess(image(200, 100), towers[0].vision)
    exact, close = (tower.encode(found.pixels, found.grid) for tower in towers)
    assert np.abs(exact - close).max() < 0.02 * np.abs(exact).max()
    assert np.abs(exact - close).max() > 0


def test_a_quantized_tower_keeps_what_the_processor_multiplies_fastest(tmp_path: Path) -> None:
    """On every instruction set: its keys and values are as near, and a tile has the same bits alone and with others."""
    vision_models.save(tmp_path, "smolvlm")
    exact = models.load(tmp_path, settings_of("float32")).tower
    found = preprocess(image(200, 100), exact.vision)
    true = exact.encode(found.pixels, found.grid)
    alone, used = found.grid._replace(rows=0, columns=0), kernels.instruction_set()
    try:
        for name in kernels.instruction_sets():
            kernels.force(name)
            has_products = name in ("amx", "avx512", "neon_i8mm")
            assert kept_precision("int8") == kept_precision("int4") == ("bfloat16" if has_products else "int8")
            assert [kept_precision(each) for each in ("float32", "bfloat16")] == ["float32", "bfloat16"]
            tower = models.load(tmp_path, settings_of("int8")).tower
            together = tower.encode(found.pixels, found.grid)
            assert 0 < np.abs(together - true).max() < 0.02 * np.abs(true).max()
            apart = [tower.encode(found.pixels[i : i + 1], alone) for i in range(len(found.pixels))]
            np.testing.assert_array_equal(np.concatenate(apart), together)
    finally:
        kernels.force(used)


def settings_of(precision: Any) -> models.ModelSettings:
    return models.ModelSettings(precision=precision, kv_tokens=2048, cache_bytes=0)


def test_the_tower_of_a_quantized_model_is_int8(tmp_path: Path) -> None:
    """Its file has it as it was."""
    from safetensors.torch import load_file, save_file

    vision_models.save(tmp_path, "smolvlm")
    path, tensors = tmp_path / "model.safetensors", {}
    for name, each in load_file(tmp_path / "model.safetensors").items():
        if "text_model.layers" in name and each.ndim == 2:
            tensors[f"{name}_scale_inv"] = torch.ones(-(-each.shape[0] // 128), -(-each.shape[1] // 128))
            each = each.to(torch.float8_e4m3fn)
        tensors[name] = each
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    left = ["model.vision_model", "model.connector", "lm_head"]
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config["quantization_config"] |= {"activation_scheme": "dynamic", "modules_to_not_convert": left}
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = models.describe(tmp_path).formats
    model = models.load(tmp_path, settings_of("auto"))
    exact = models.load(tmp_path, settings_of("float32"))
    for name in ("vision_patch", "layers.0.vision_qkv", "layers.2.vision_feed_forward_out", "vision_project_out"):
        assert model.weights[f"{name}.weight"].precision == expected[f"{name}.weight"].precision == "int8"
        assert exact.weights[f"{name}.weight"].precision == "float32"
    found = preprocess(image(200, 100), model.tower.vision)
    close, true = (each.tower.encode(found.pixels, found.grid) for each in (model, exact))
    assert 0 < np.abs(close - true).max() < 0.02 * np.abs(true).max()


def test_plans_count_the_tower(tmp_path: Path) -> None:
    vision_models.save(tmp_path, "smolvlm")
    described = models.describe(tmp_path)
    seeing = models.plan(described, SETTINGS)
    blind = models.plan(replace(described, spec=replace(described.spec, vision=None)), SETTINGS)
    assert blind.vision_bytes == 0
    padding = seeing.weight_bytes - blind.weight_bytes - seeing.vision_bytes
    assert 0 <= padding < 1000  # each matrix begins with a cache line
    assert seeing.activation_bytes > blind.activation_bytes
    assert seeing.bytes_per_decoded_token == blind.bytes_per_decoded_token


def test_files_without_a_tower_are_text_alone(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    vision_models.save(tmp_path, "smolvlm")
    whole = models.load(tmp_path, SETTINGS)
    path = tmp_path / "model.safetensors"
    text = {name: each for name, each in load_file(path).items() if "vision_model" not in name}
    save_file({name: each for name, each in text.items() if "connector" not in name}, path)
    alone = models.load(tmp_path, SETTINGS)
    assert alone.tower is None
    assert alone.card.vision is None
    np.testing.assert_array_equal(run_rows(alone, prompt(120)), run_rows(whole, prompt(120)))


def test_a_half_tower_is_refused_by_the_missing_tensor(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    vision_models.save(tmp_path, "smolvlm")
    path = tmp_path / "model.safetensors"
    kept = {name: each for name, each in load_file(path).items() if "layers.2.mlp.fc1" not in name}
    save_file(kept, path)
    with pytest.raises(ModelError, match=r"encoder\.layers\.2\.mlp\.fc1\.weight is missing"):
        models.load(tmp_path, SETTINGS)


def test_tiles_of_another_shape_are_refused(served: Any) -> None:
    tower: VisionTower = served("smolvlm")[1].tower
    with pytest.raises(ValueError, match="tiles must be"):
        tower.encode(np.zeros((1, 3, 28, 28), np.uint8), preprocess(image(5, 5), tower.vision).grid)


def test_published_files_have_stacks_of_experts_transposed(tmp_path: Path, served: Any) -> None:
    from safetensors.torch import load_file, save_file

    _, ours = served("qwen3_vl_moe")
    vision_models.save(tmp_path, "qwen3_vl_moe")
    weights = load_file(tmp_path / "model.safetensors")
    stacks = [name for name in weights if ".experts." in name]
    assert len(stacks) == 4
    published = {name: weights[name].transpose(1, 2).contiguous() for name in stacks}
    save_file(weights | published, tmp_path / "model.safetensors")
    found = models.load(tmp_path, SETTINGS)
    np.testing.assert_array_equal(run_rows(found, prompt(40)), run_rows(ours, prompt(40)))
