"""What configs of models with images may say: what cannot be honoured is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from vision_models import CONFIGS, PREPROCESSORS, description, image, kind_of

from dragoman.core.errors import ModelError
from dragoman.models.families import read_spec
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.geometry import Grid, are_tiles, cut_of, image_token_count
from dragoman.models.vision.places import position_shift, rotary_positions, seen_ends
from dragoman.models.vision.preprocess import preprocess

Image = pytest.importorskip("PIL.Image")
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5")


HOSTILE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "tower that is no object": ({"vision_config": "siglip"}, {}, "vision_config must be an object"),
    "four channels": ({"vision_config": {"num_channels": 4}}, {}, "num_channels must be 3, got 4"),
    "heads that do not divide": ({"vision_config": {"num_attention_heads": 7}}, {}, "not a multiple of num_attention"),
    "patches that do not divide": ({"vision_config": {"patch_size": 15}}, {}, "multiple of patch_size 15"),
    "tile of a gigapixel": ({"vision_config": {"image_size": 14 << 20}}, {}, "up to 4096, got"),
    "layers without end": ({"vision_config": {"num_hidden_layers": 500}}, {}, "num_hidden_layers must be at most 256"),
    "unknown activation": ({"vision_config": {"hidden_act": "mish"}}, {}, "hidden_act 'mish' is not supported"),
    "squares that do not divide": ({"scale_factor": 3}, {}, "cannot be joined 3 by 3"),
    "image token that is a word": ({"image_token_id": "<image>"}, {}, "image_token_id must be a token id"),
    "tiles of another size": ({}, {"max_image_size": {"longest_edge": 64}}, "max_image_size 64 differs"),
    "tiles without end": ({}, {"size": {"longest_edge": 4000}}, "more than 256 tiles"),
    "size without sense": ({}, {"size": 448}, "size must be an object"),
    "no resizing": ({}, {"do_resize": False}, "do_resize = false is not supported"),
    "unknown resampling": ({}, {"resample": 9}, "resample 9 is not supported"),
    "resampling that is a flag": ({}, {"resample": True}, "resample True is not supported"),
    "two channels": ({}, {"image_mean": [0.5, 0.5]}, "image_mean must be three numbers"),
    "deviation of nothing": ({}, {"image_std": [0.0, 0.5, 0.5]}, "image_std must be three numbers"),
    "levels that are no number": ({}, {"rescale_factor": "1/255"}, "rescale_factor must be a positive number"),
}


@pytest.mark.parametrize(("changes", "prepared", "message"), HOSTILE.values(), ids=HOSTILE)
def test_configs_that_cannot_be_honoured_are_refused(
    changes: dict[str, Any], prepared: dict[str, Any], message: str
) -> None:
    config = CONFIGS["smolvlm"] | {key: value for key, value in changes.items() if key != "vision_config"}
    if isinstance(block := changes.get("vision_config", {}), dict):
        config = config | {"vision_config": config["vision_config"] | block}
    else:
        config = config | {"vision_config": block}
    with pytest.raises(ModelError, match=message):
        VisionDescription.from_config(config, PREPROCESSORS["smolvlm"] | prepared)


OTHERS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "layer beyond the last": ("llava", {"vision_feature_layer": 9}, {}, "must be ascending layers of 3, got 9"),
    "layers the wrong way": ("granite-vision", {"vision_feature_layer": [-1, -2]}, {}, "must be ascending layers"),
    "layer that is a word": ("llava", {"vision_feature_layer": "last"}, {}, "must be a layer or a list of them"),
    "class token kept": ("llava", {"vision_feature_select_strategy": "full"}, {}, "'full' is not supported"),
    "another tower": ("llava", {"vision_config": {"model_type": "dinov2"}}, {}, "model_type 'dinov2' is not supported"),
    "padding": ("llava", {}, {"do_pad": True}, "do_pad = true is not supported"),
    "crop of another size": ("llava", {}, {"crop_size": {"height": 64, "width": 64}}, "crop_size 64 differs"),
    "canvases that are no tiles": ("llava_next", {"image_grid_pinpoints": [[50, 56]]}, {}, "56-pixel tiles, got"),
    "no canvases": ("llava_next", {"image_grid_pinpoints": []}, {"image_grid_pinpoints": []}, "must list sizes"),
    "canvases without end": ("llava_next", {"image_grid_pinpoints": [[5600, 5600]]}, {}, "more than 256 tiles"),
    "other canvases": ("llava_next", {}, {"image_grid_pinpoints": [[56, 56]]}, "differ from those of config.json"),
    "third of a patch": ("internvl", {"downsample_ratio": 0.3}, {}, "cannot be joined by downsample_ratio 0.3"),
    "tiles backwards": ("internvl", {}, {"min_patches": 5, "max_patches": 2}, "max_patches must be 5 to 255, got 2"),
    "no positions": ("internvl", {"vision_config": {"use_absolute_position_embeddings": False}}, {}, "not supported"),
    "tokens that are no square": ("gemma3", {"mm_tokens_per_image": 15}, {}, "cannot be averaged to 15 tokens"),
    "crops besides": ("gemma3", {}, {"do_pan_and_scan": True}, "do_pan_and_scan = true is not supported"),
    "pixels that cannot be": ("qwen2_vl", {}, {"min_pixels": 10**8}, "images of 100,000,000 to"),
    "other patches": ("qwen2_vl", {}, {"patch_size": 16}, "patch_size differs from the tower's 14"),
    "windows of half a token": ("qwen2_5_vl", {"vision_config": {"window_size": 100}}, {}, "not a multiple of 28"),
    "full layer beyond": ("qwen2_5_vl", {"vision_config": {"fullatt_block_indexes": [3]}}, {}, "some of 3 layers"),
    "another decoder": ("qwen2_5_vl", {"vision_config": {"out_hidden_size": 65}}, {}, "out_hidden_size differs"),
    "sections that do not add up": (
        "qwen2_vl",
        {"text_config": CONFIGS["qwen2_vl"]["text_config"] | {"rope_scaling": {"mrope_section": [1, 2, 3]}}},
        {},
        "mrope_section must divide 8 pairs",
    ),
    "fewer tokens": ("paligemma", {}, {"image_seq_length": 16}, "image_seq_length 16 differs from the tower's 64"),
    "another width": ("paligemma", {"projection_dim": 48}, {}, "projection_dim 48 differs"),
    "parts of the last layer": (
        "qwen3_vl",
        {"vision_config": {"deepstack_visual_indexes": [3]}},
        {},
        r"some of the first 3 layers, got \[3\]",
    ),
    "table of no square": ("qwen3_5", {"vision_config": {"num_position_embeddings": 35}}, {}, "must be a square, got"),
    "another decoder's": ("qwen3_5", {"vision_config": {"out_hidden_size": 65}}, {}, "out_hidden_size 65 differs"),
    "another layer": ("lfm2_vl", {"vision_feature_layer": -2}, {}, "vision_feature_layer = -2 is not supported"),
    "patches of no square": ("lfm2_vl", {"vision_config": {"num_patches": 50}}, {}, "num_patches must be a square"),
    "another patch": ("lfm2_vl", {}, {"encoder_patch_size": 16}, "encoder_patch_size differs"),
    "tiles of half a token": ("lfm2_vl", {}, {"tile_size": 40}, "tile_size must be a multiple of 16"),
    "no whole image": ("lfm2_vl", {}, {"use_thumbnail": False}, "use_thumbnail = false is not supported"),
    "one tile of several": ("lfm2_vl", {}, {"min_tiles": 1}, "1 to 6 tiles are not 2 to 255"),
    "tokens without end": ("lfm2_vl", {}, {"max_image_tokens": 10**6}, "max_image_tokens must be 4 to 2048"),
    "heads that do not share": (
        "idefics2",
        {"perceiver_config": CONFIGS["idefics2"]["perceiver_config"] | {"num_key_value_heads": 3}},
        {},
        "4 heads of 24 numbers, 2 layers are not supported",
    ),
    "edges of no patch": ("idefics2", {}, {"size": {"shortest_edge": 5}}, "size must have edges of 14 pixels and more"),
    "several layers": ("mistral3", {"vision_feature_layer": [-2, -1]}, {}, "must be one layer, got"),
    "heads of another size": ("mistral3", {"vision_config": {"head_dim": 24}}, {}, "heads of 24 numbers"),
    "no square": ("gemma3", {}, {"size": {"height": 112, "width": 56}}, r"size \(112, 56\) differs"),
}


@pytest.mark.parametrize(("name", "changes", "prepared", "message"), OTHERS.values(), ids=OTHERS)
def test_configs_of_other_families_that_cannot_be_honoured_are_refused(
    name: str, changes: dict[str, Any], prepared: dict[str, Any], message: str
) -> None:
    block = CONFIGS[name]["vision_config"] | changes.get("vision_config", {})
    known = PREPROCESSORS[name]
    if "image_grid_pinpoints" in changes and "image_grid_pinpoints" not in prepared:
        known = known | {"image_grid_pinpoints": changes["image_grid_pinpoints"]}
    with pytest.raises(ModelError, match=message):
        VisionDescription.from_config(CONFIGS[name] | changes | {"vision_config": block}, known | prepared)


@pytest.mark.parametrize("name", ["qwen2_vl", "mistral3"])
def test_images_of_any_shape_have_at_most_2048_tokens(name: str) -> None:
    size = {"max_pixels": 10**8} if name == "qwen2_vl" else {"size": {"longest_edge": 8000}}
    vision = VisionDescription.from_config(CONFIGS[name], PREPROCESSORS[name] | size)
    assert vision is not None
    for width, height in ((4000, 4000), (8000, 900), (300, 7000)):
        grid = cut_of(width, height, vision, "auto").grid
        assert 1900 < grid.rows * grid.columns <= 2048 == vision.tile_tokens
        assert abs(grid.columns / grid.rows / (width / height) - 1) < 0.1


def test_text_goes_on_after_the_largest_place_of_an_image() -> None:
    size = preprocess(image(5, 5), description("llava")).grid.size
    images = [(2, Grid(2, 3, size)), (9, Grid(4, 1, size))]
    found = rotary_positions(images, 15)
    expected = [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 6, 6, 10, 11],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8, 9, 10, 11],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 6, 6, 6, 10, 11],
    ]
    assert found.tolist() == expected
    assert position_shift(images) == found[0, -1] - 14
    assert rotary_positions([], 3).tolist() == [[0, 1, 2]] * 3


def test_an_image_sees_itself_and_what_is_before_it() -> None:
    images = [(2, 5), (8, 10)]
    assert seen_ends(images, 0, 11).tolist() == [1, 2, 5, 5, 5, 6, 7, 8, 10, 10, 11]
    assert seen_ends(images, 5, 3).tolist() == [6, 7, 8]
    assert seen_ends(images, 9, 2).tolist() == [10, 11]
    for first, count in ((0, 4), (3, 6)):
        with pytest.raises(ValueError, match="of an image are not all before"):
            seen_ends(images, first, count)


def test_contexts_are_no_longer_than_the_windows_of_prompts_seen_both_ways() -> None:
    assert read_spec(CONFIGS["paligemma"]).context == 2048
    assert read_spec(CONFIGS["paligemma2"]).context == 1024


@pytest.mark.parametrize("name", CONFIGS)
def test_what_an_image_is_cut_into_is_told_from_anything_else(name: str) -> None:
    vision = description(name)
    for size in ((100, 70), (300, 500)):
        found = preprocess(image(*size), vision)
        tiles, _, height, width = found.pixels.shape
        assert are_tiles(tiles, height, width, found.grid, vision)
        for other in ((tiles + 1, height, width), (tiles, height + vision.patch, width), (tiles, 0, width)):
            assert not are_tiles(*other, found.grid, vision)
        wrong = Grid(found.grid.rows + 500, found.grid.columns + 1, found.grid.size)
        assert not are_tiles(tiles, height, width, wrong, vision)


def test_a_config_without_images_has_no_description() -> None:
    assert VisionDescription.from_config({"model_type": "llama"}) is None
    assert VisionDescription.from_config({"model_type": "smolvlm", "text_config": {}}) is None


def test_images_that_are_none_are_refused() -> None:
    vision = description("smolvlm")
    with pytest.raises(ValueError, match="RGB"):
        preprocess(Image.new("L", (5, 5)), vision)
    with pytest.raises(ValueError, match="at least one pixel"):
        image_token_count(0, 5, vision)


@pytest.mark.parametrize("name", CONFIGS)
def test_text_configs_are_read_by_their_own_family(name: str) -> None:
    spec = read_spec(CONFIGS[name])
    assert (spec.architecture, spec.tied) == (CONFIGS[name]["architectures"][0], CONFIGS[name]["tie_word_embeddings"])
    if kind_of(name) in ("gemma3", "gemma4", "mistral3", *QWEN):  # whose decoder is the same in all
        return
    with pytest.raises(ModelError, match=r"model_type 'rwkv' is not supported; known: (llama|paligemma)"):
        read_spec(CONFIGS[name] | {"text_config": {"model_type": "rwkv"}})


JUNK: tuple[Any, ...] = (None, -1, 0, 1, 3, 2**40, 0.5, 1e300, "", "junk", True, [], [1], [[1]], {}, {"a": 1}, [None])


def _with(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    key, *rest = path
    return config | {key: _with(config[key], tuple(rest), value) if rest else value}


@pytest.mark.parametrize("name", CONFIGS)
def test_junk_in_any_field_is_refused_or_has_no_effect(name: str) -> None:
    """No field of a tower or of a preprocessor makes anything but a description or a ModelError."""
    config, prepared = CONFIGS[name], PREPROCESSORS[name]
    paths = [
        ("vision_config", key)
        for key in (*config["vision_config"], "image_size", "hidden_act", "layer_norm_eps", "in_channels")
    ]
    paths += [(key,) for key in config] + [("text_config", key) for key in config["text_config"]]
    texts = [("size",), ("crop_size",), *((key,) for key in prepared), ("image_mean",), ("resample",), ("max_pixels",)]
    for value in JUNK:
        for path in paths:
            _read(_with(config, path, value), prepared)
        _read(_with(config, ("text_config", "rope_scaling"), {"mrope_section": value}), prepared)
        _read(_with(config, ("vision_config", "rope_parameters"), {"rope_theta": value}), prepared)
        for path in texts:
            _read(config, _with(prepared, path, value))
            for edges in (("height", "width"), ("longest_edge", "shortest_edge")):
                _read(config, prepared | {path[0]: dict.fromkeys(edges, value)})
                _read(config, prepared | {path[0]: {edges[0]: value}})


def _read(config: dict[str, Any], prepared: dict[str, Any]) -> None:
    try:
        found = VisionDescription.from_config(config, prepared)
    except ModelError:
        return
    if found is None:
        return
    assert 0 < found.most_tokens < 1 << 20
    assert image_token_count(640, 480, found) > 0
