"""What a config.json may say: every supported variant is read, everything else is refused by name."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from encoder_decoders import VARIANTS as ENCODER_DECODERS
from encoder_decoders import config_of
from encoders import CONFIGS as ENCODERS
from published_models import PUBLISHED as NEWER
from published_recurrent import RECURRENT
from small_models import SCALED, VARIANTS, parameter_count
from test_vision_chat_names import chat_config
from text_part_variants import UNMADE
from vision_models import CONFIGS as WITH_IMAGES

from dragoman.core.errors import ModelError
from dragoman.models.families import FAMILIES, read_spec
from dragoman.models.parameters import parameter_count as counted
from dragoman.models.parameters import parameters


@pytest.mark.parametrize("name", VARIANTS)
def test_spec_asks_for_as_many_numbers_as_the_checkpoint_has(name: str) -> None:
    assert counted(read_spec(VARIANTS[name])) == parameter_count(VARIANTS[name])


@pytest.mark.parametrize("config", [*VARIANTS.values(), *SCALED.values()], ids=[*VARIANTS, *SCALED])
def test_config_reads_the_same_as_transformers_writes_it(config: dict[str, Any]) -> None:
    """Newer versions write all defaults, and some fields under other names."""
    transformers = pytest.importorskip("transformers")
    written = transformers.AutoConfig.for_model(**copy.deepcopy(config)).to_dict()
    assert read_spec(written) == read_spec(config)


def test_code_of_a_repository_is_no_reason_to_refuse_what_we_compute_ourselves() -> None:
    config = VARIANTS["phi3"] | {"auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}}
    assert read_spec(config) == read_spec(VARIANTS["phi3"])


@pytest.mark.parametrize("kind", ["su", "yarn"])
def test_first_checkpoints_of_phi3_call_longrope_by_other_names(kind: str) -> None:
    block = VARIANTS["phi3-long"]["rope_scaling"]
    assert read_spec(VARIANTS["phi3-long"] | {"rope_scaling": block | {"type": kind}}) == read_spec(
        VARIANTS["phi3-long"]
    )


def _llama(width: int, layers: int, heads: int, kv_heads: int, inner: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
    } | more


PUBLISHED: dict[str, tuple[dict[str, Any], int]] = (
    {
        "Llama 2 7B": (_llama(4096, 32, 32, 32, 11008, 32000, rope_scaling=None, pretraining_tp=1), 6_738_415_616),
        "Llama 3.1 8B": (_llama(4096, 32, 32, 8, 14336, 128256, rope_theta=500000.0), 8_030_261_248),
        "Mistral 7B": (
            _llama(4096, 32, 32, 8, 14336, 32000, architectures=["MistralForCausalLM"], sliding_window=4096),
            7_241_732_096,
        ),
        "Qwen2.5 7B": (
            _llama(3584, 28, 28, 4, 18944, 152064, architectures=["Qwen2ForCausalLM"], use_sliding_window=False),
            7_615_616_512,
        ),
        "Qwen3 0.6B": (
            _llama(1024, 28, 16, 8, 3072, 151936, architectures=["Qwen3ForCausalLM"], head_dim=128, sliding_window=None)
            | {"tie_word_embeddings": True},
            596_049_920,
        ),
        "Phi-2": (
            _llama(2560, 32, 32, 32, 10240, 51200, architectures=["PhiForCausalLM"])
            | {"partial_rotary_factor": 0.4, "qk_layernorm": False, "rope_scaling": None},
            2_779_683_840,
        ),
        "Phi-3 mini": (
            _llama(3072, 32, 32, 32, 8192, 32064, architectures=["Phi3ForCausalLM"])
            | {"sliding_window": 2047, "auto_map": {"AutoConfig": "x.Y"}},
            3_821_079_552,
        ),
        "Gemma 2B": (
            _llama(2048, 18, 8, 1, 16384, 256000, architectures=["GemmaForCausalLM"], head_dim=256, hidden_act="gelu"),
            2_506_172_416,
        ),
        "Gemma 2 2B": (
            _llama(2304, 26, 8, 4, 9216, 256000, architectures=["Gemma2ForCausalLM"], head_dim=256)
            | {"query_pre_attn_scalar": 256},
            2_614_341_888,
        ),
        "Gemma 3 1B": (
            _llama(1152, 26, 4, 1, 6912, 262144, architectures=["Gemma3ForCausalLM"], head_dim=256, sliding_window=512),
            999_885_952,
        ),
        "Gemma 3 4B text": (
            {
                "architectures": ["Gemma3ForConditionalGeneration"],
                "text_config": {
                    "hidden_size": 2560,
                    "intermediate_size": 10240,
                    "num_hidden_layers": 34,
                    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                    "sliding_window": 1024,
                },
            },
            3_880_263_168,
        ),
        "StarCoder 2 3B": (
            _llama(3072, 30, 24, 2, 12288, 49152, architectures=["Starcoder2ForCausalLM"], sliding_window=4096),
            3_030_371_328,
        ),
        "OLMo 2 1B": (
            _llama(2048, 16, 16, 16, 8192, 100352, architectures=["Olmo2ForCausalLM"]),
            1_484_916_736,
        ),
        "SmolLM 3 3B": (
            _llama(2048, 36, 16, 4, 11008, 128256, architectures=["SmolLM3ForCausalLM"]),
            3_075_098_624,
        ),
        "GLM-4 9B": (
            _llama(4096, 40, 32, 2, 13696, 151552, architectures=["GlmForCausalLM"], head_dim=128),
            9_399_951_360,
        ),
        "GLM-4-0414 9B": (
            _llama(4096, 40, 32, 2, 13696, 151552, architectures=["Glm4ForCausalLM"], head_dim=128),
            9_400_279_040,
        ),
        "Command R 35B": (
            _llama(8192, 40, 64, 64, 22528, 256000, architectures=["CohereForCausalLM"]),
            34_980_831_232,
        ),
        "Command R7B": (
            _llama(4096, 32, 32, 8, 14336, 256000, architectures=["Cohere2ForCausalLM"]),
            8_028_033_024,
        ),
        "Granite 3.3 2B": (
            _llama(2048, 40, 32, 8, 8192, 49159, architectures=["GraniteForCausalLM"], tie_word_embeddings=True),
            2_533_539_840,
        ),
        "StableLM 2 1.6B": (
            _llama(2048, 24, 32, 32, 5632, 100352, architectures=["StableLmForCausalLM"], use_qkv_bias=True),
            1_644_515_328,
        ),
        "Mixtral 8x7B": (
            _llama(4096, 32, 32, 8, 14336, 32000, architectures=["MixtralForCausalLM"], num_local_experts=8)
            | {"num_experts_per_tok": 2, "sliding_window": None, "rope_theta": 1e6, "output_router_logits": False},
            46_702_792_704,
        ),
        "Qwen1.5 MoE A2.7B": (
            _llama(2048, 24, 16, 16, 5632, 151936, architectures=["Qwen2MoeForCausalLM"], moe_intermediate_size=1408)
            | {"shared_expert_intermediate_size": 5632, "num_experts": 60, "num_experts_per_tok": 4},
            14_315_784_192,
        ),
        "Qwen3 30B A3B": (
            _llama(2048, 48, 32, 4, 6144, 151936, architectures=["Qwen3MoeForCausalLM"], moe_intermediate_size=768)
            | {"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True},
            30_532_122_624,
        ),
        "OLMoE 1B 7B": (
            _llama(2048, 16, 16, 16, 1024, 50304, architectures=["OlmoeForCausalLM"], num_experts=64, clip_qkv=None),
            6_919_161_856,
        ),
        "Granite 3.1 1B A400M": (
            _llama(1024, 24, 16, 8, 512, 49155, architectures=["GraniteMoeForCausalLM"], num_local_experts=32)
            | {"num_experts_per_tok": 8, "tie_word_embeddings": True},
            1_334_628_352,
        ),
        "Pythia 70M": (
            _llama(512, 6, 8, 8, 2048, 50304, architectures=["GPTNeoXForCausalLM"]),
            70_426_624,
        ),
        "GPT-J 6B": (
            {"architectures": ["GPTJForCausalLM"], "n_embd": 4096, "n_layer": 28, "n_head": 16, "vocab_size": 50400},
            6_050_882_784,
        ),
        "OPT 125M": (
            _llama(768, 12, 12, 12, 0, 50272, architectures=["OPTForCausalLM"], ffn_dim=3072)
            | {"max_position_embeddings": 2048},
            125_239_296,
        ),
        "OPT 350M": (
            _llama(1024, 24, 16, 16, 0, 50272, architectures=["OPTForCausalLM"], ffn_dim=4096)
            | {"max_position_embeddings": 2048, "word_embed_proj_dim": 512, "do_layer_norm_before": False},
            331_196_416,
        ),
        "BLOOM 560M": (
            {"architectures": ["BloomForCausalLM"], "n_embed": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250880},
            559_214_592,
        ),
        "Falcon 7B": (
            {"architectures": ["FalconForCausalLM"], "hidden_size": 4544, "num_hidden_layers": 32, "vocab_size": 65024}
            | {"num_attention_heads": 71},
            6_921_720_704,
        ),
        "LFM2 1.2B": (
            _llama(2048, 16, 32, 8, 12288, 65536, architectures=["Lfm2ForCausalLM"], block_ff_dim=12288)
            | {"full_attn_idxs": [2, 5, 8, 10, 12, 14], "tie_word_embeddings": True},
            1_170_340_608,
        ),
        "LFM2 350M": (
            _llama(1024, 16, 16, 8, 6656, 65536, architectures=["Lfm2ForCausalLM"], block_ff_dim=6656)
            | {"full_attn_idxs": [2, 5, 8, 10, 12, 14], "tie_word_embeddings": True},
            354_483_968,
        ),
        "GPT-2": (
            {"architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257},
            124_439_808,
        ),
    }
    | NEWER
    | RECURRENT
)


@pytest.mark.parametrize(("config", "count"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_models_have_their_published_number_of_parameters(config: dict[str, Any], count: int) -> None:
    assert counted(read_spec(config)) == count


def test_layers_that_share_keys_and_values_come_last() -> None:
    spec = read_spec(NEWER["Gemma 4 E2B"][0])
    assert spec.written_layers == len(spec.kv_layers) == 15
    assert {spec.kv_source(layer) for layer in range(15, 35)} == {13, 14}
    assert read_spec(VARIANTS["llama"]).written_layers == 3


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_of_a_family_has_a_name_in_its_checkpoints(family: str) -> None:
    configs = [*VARIANTS.values(), *UNMADE.values(), *map(config_of, ENCODER_DECODERS), *ENCODERS.values()]
    configs += [*WITH_IMAGES.values(), chat_config(WITH_IMAGES["internvl"])]
    specs = [spec for config in configs if (spec := read_spec(config)).architecture == family]
    assert specs
    untied = [msgspec.structs.replace(spec, tied=not spec.causal) for spec in specs]
    asked_for = {parameter.module for spec in untied for parameter in parameters(spec)}
    assert asked_for <= set(FAMILIES[family].names)


def test_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ModelError, match=r"RwkvForCausalLM is not supported; known: LlamaForCausalLM, .*GPT2LMHeadModel"
    ):
        read_spec({"architectures": ["RwkvForCausalLM"], "model_type": "rwkv"})


def test_model_type_stands_in_for_a_missing_architecture() -> None:
    config = {key: value for key, value in VARIANTS["qwen2"].items() if key != "architectures"}
    assert read_spec(config).architecture == "Qwen2ForCausalLM"


def test_rope_parameters_block_of_newer_configs_is_read() -> None:
    old = VARIANTS["llama"] | {"rope_theta": 777.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = VARIANTS["llama"] | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 777.0}}
    assert read_spec(old).ropes == read_spec(new).ropes


def test_scaling_extends_the_context() -> None:
    contexts = {name: read_spec(config).context for name, config in SCALED.items()}
    assert set(contexts.values()) == {256}


def test_whole_context_window_of_mistral_defaults_as_transformers_does() -> None:
    config = {key: value for key, value in VARIANTS["mistral"].items() if key != "sliding_window"}
    assert read_spec(config).windows == (4096,) * 3


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "partial rotation": ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "unknown activation": ("llama", {"hidden_act": "mish"}, "hidden_act 'mish' is not supported"),
    "unknown scaling": ("llama", {"rope_scaling": {"rope_type": "warp", "factor": 2.0}}, "'warp'"),
    "multimodal rope": ("qwen2", {"rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}}, "'mrope'"),
    "unknown key of a scaling": ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0, "warp": 1}}, "warp"),
    "incomplete scaling": ("llama", {"rope_scaling": {"type": "linear"}}, "factor"),
    "factor that is no number": ("llama", {"rope_scaling": {"type": "linear", "factor": "2"}}, "factor must be"),
    "factors that are no list": ("phi3-long", {"rope_scaling": {"type": "longrope", "short_factor": 1.0}}, "a list"),
    "factor that is too small": (
        "phi3-long",
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0, 0.0], "long_factor": [1.0] * 8}},
        "short_factor must be a positive number, got 0.0",
    ),
    "too few factors": (
        "phi3-long",
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 7}},
        "long_factor has 7 numbers for 8 pairs",
    ),
    "longrope without its factors": ("phi3", {"rope_scaling": {"type": "longrope", "factor": 2.0}}, "incomplete"),
    "rotation of more than a head": ("phi", {"partial_rotary_factor": 1.5}, "partial_rotary_factor 1.5 of heads of 16"),
    "rotation of an odd share": ("glm", {"partial_rotary_factor": 0.2}, "does not give pairs"),
    "bidirectional attention": ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    "cap on attention that nobody computes": ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    "caps of another family": ("gemma", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    "cap that is negative": ("gemma2", {"final_logit_softcapping": -1.0}, "final_logit_softcapping must be"),
    "unknown layer type of Gemma": ("gemma2", {"layer_types": ["chunked_attention"] * 3}, "layer_types must name 3"),
    "layers with half a position": (
        "smollm3",
        {"no_rope_layers": [1, 2, 0]},
        "no_rope_layers must hold",
    ),
    "too few layers without positions": ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers must hold"),
    "multiplier of nothing": ("granite", {"residual_multiplier": 0.0}, "residual_multiplier must be"),
    "norms of heads in Cohere 2": ("cohere2", {"use_qk_norm": True}, "use_qk_norm"),
    "text config that is a word": ("gemma3-images", {"text_config": "gemma"}, "text_config must be an object"),
    "rope for each layer type": ("qwen3", {"rope_parameters": {"full_attention": {}}}, "each layer type"),
    "alternating attention": ("mistral", {"layer_types": ["full_attention"] * 3}, "layer_types"),
    "unknown layer type": (
        "qwen2",
        {"use_sliding_window": True, "layer_types": ["chunked_attention"] * 3},
        "layer_types must name",
    ),
    "too few layer types": ("qwen2", {"use_sliding_window": True, "layer_types": ["full_attention"]}, "3 layers"),
    "cross-attention": ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    "encoder": ("gpt2", {"is_encoder_decoder": True}, "is_encoder_decoder"),
    "heads that do not divide": ("llama", {"num_attention_heads": 5}, "5 query heads cannot share 2"),
    "width that does not divide": ("gpt2", {"n_head": 5}, "n_embd 48 is not a multiple of n_head 5"),
    "odd head": ("llama", {"head_dim": 15}, "head_dim 15 is odd"),
    "missing size": ("llama", {"hidden_size": None}, "hidden_size is missing"),
    "negative size": ("llama", {"vocab_size": -1}, "vocab_size must be a positive integer, got -1"),
    "size that is a flag": ("llama", {"num_hidden_layers": True}, "num_hidden_layers must be"),
    "flag that is a word": ("llama", {"attention_bias": "yes"}, "attention_bias must be true or false"),
    "experts of a family that has none": ("llama", {"num_local_experts": 8}, "num_local_experts"),
    "more experts chosen than there are": ("mixtral", {"num_experts_per_tok": 5}, "5 is more than 4 experts"),
    "more experts than any has": ("qwen3-moe", {"num_experts": 2**30}, "1073741824 experts are more than 1024"),
    "dense layers that are no layers": ("qwen3-moe", {"mlp_only_layers": [3]}, "mlp_only_layers must list some of 3"),
    "dense layers that are no list": ("qwen2-moe", {"mlp_only_layers": 1}, "mlp_only_layers must list"),
    "windows by no rule": ("qwen2-moe", {"use_sliding_window": True}, "use_sliding_window also needs layer_types"),
    "Falcon's two norms where one is read": ("falcon", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn = 2"),
    "Falcon with three norms": ("falcon-40b", {"num_ln_in_parallel_attn": 3}, "must be 1 or 2, got 3"),
    "sequential Falcon with norms of parallel ones": ("falcon-40b", {"parallel_attn": False}, "parallel_attn = false"),
    "Falcon's heads that do not divide": ("falcon-40b", {"num_kv_heads": 3}, "4 query heads cannot share 3"),
    "BLOOM's normed residual": (
        "bloom",
        {"apply_residual_connection_post_layernorm": True},
        "apply_residual_connection_post_layernorm",
    ),
    "BLOOM's width that does not divide": ("bloom", {"n_head": 7}, "hidden_size 60 is not a multiple of n_head 7"),
    "GPT-J rotated beyond its heads": ("gptj", {"rotary_dim": 14}, "rotary_dim 14 must be even and at most"),
    "GPT-J rotated oddly": ("gptj", {"rotary_dim": 5}, "rotary_dim 5 must be even"),
    "GPT-NeoX rotated oddly": ("gpt-neox", {"rotary_pct": 0.2}, "does not give pairs"),
    "OPT's width that does not divide": ("opt", {"num_attention_heads": 5}, "not a multiple of num_attention_heads 5"),
    "EXAONE's pattern in letters": ("exaone4", {"sliding_window_pattern": "LLLG"}, "sliding_window_pattern must be"),
    "Hunyuan's alpha that is a word": (
        "hunyuan",
        {"rope_scaling": {"type": "dynamic", "alpha": "x"}},
        "alpha must be a positive number",
    ),
    "groups that are not of one size": ("dots1-groups", {"n_group": 3}, "8 experts cannot form 3 groups"),
    "more experts than the groups have": ("dots1-groups", {"num_experts_per_tok": 5}, "more than the chosen groups"),
    "Llama 4's layers that are none": ("llama4-text", {"moe_layers": [4]}, "moe_layers must list some of 4"),
    "MPT without ALiBi": ("mpt", {"attn_config": {"alibi": False}}, "attn_config: alibi = false"),
    "MPT's norms of heads": ("mpt", {"attn_config": {"qk_ln": True}}, "qk_ln = true"),
    "DBRX's other norm of weights": ("dbrx", {"ffn_config": {"moe_normalize_expert_weights": 2.0}}, "= 2.0"),
    "three experts of a sparse mixer": ("phi-moe", {"num_experts_per_tok": 3}, "num_experts_per_tok must be 2"),
    "MiniMax's lightning attention": ("minimax-m2", {"attn_type_list": [0, 1, 1]}, "attn_type_list"),
    "a latent that no block of rows fits": ("deepseek-v3", {"kv_lora_rank": 48}, "kv_lora_rank 48 is not supported"),
    "a latent value that no block fits": ("youtu", {"v_head_dim": 24}, "v_head_dim 24 is not supported"),
    "a latent larger than any key": ("youtu", {"kv_lora_rank": 1024}, "more than the supported 1024"),
    "an odd rotated part": ("minicpm3", {"qk_rope_head_dim": 7}, "qk_rope_head_dim 7 is odd"),
    "latent attention with fewer keys": ("deepseek-v3", {"num_key_value_heads": 2}, "num_key_value_heads 2 must be"),
    "a huge mscale": (
        "deepseek-v3",
        {"rope_parameters": {"rope_type": "yarn", "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 1e200}},
        "no usable scale",
    ),
    "weights of DeepSeek V2 that add up to 1": ("deepseek-v2", {"norm_topk_prob": True}, "norm_topk_prob = true"),
    "DeepSeek V2 scored by sigmoids": ("deepseek-v2", {"scoring_func": "sigmoid"}, 'scoring_func = "sigmoid"'),
    "DeepSeek V2 chosen otherwise": ("deepseek-v2", {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc'"),
    "DeepSeek V2 without a number of active experts": (
        "deepseek-v2",
        {"num_experts_per_tok": None},
        "num_experts_per_tok is missing",
    ),
    "DeepSeek V3 scored by softmax": ("deepseek-v3", {"scoring_func": "softmax"}, 'scoring_func = "softmax"'),
    "experts in every other layer": ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq = 2"),
    "an indexer without its input": ("deepseek-v3.2", {"q_lora_rank": None}, "the indexer needs it"),
    "other dense layers of GLM-4.7-Flash": (
        "glm4-moe-lite",
        {"first_k_dense_replace": 2},
        "first_k_dense_replace = 2",
    ),
    "another partial rotation of Mistral 4": (
        "mistral4",
        {"partial_rotary_factor": 0.25},
        "partial_rotary_factor 0.25 is not that of",
    ),
    "text of another Mistral": (
        "mistral3-images",
        {"text_config": {"model_type": "mistral5"}},
        "model_type 'mistral5' is not supported",
    ),
    "layers with different experts": ("hunyuan-moe", {"moe_topk": [2, 2, 3]}, "differs between layers"),
    "another limit of gpt-oss": ("gpt-oss", {"swiglu_limit": 5.0}, "swiglu_limit = 5.0 is not supported"),
    "LFM2 with a convolution of nothing": ("lfm2", {"conv_L_cache": 1}, "conv_L_cache must be 2 to 16, got 1"),
    "LFM2 with a huge convolution": ("lfm2", {"conv_L_cache": 2**30}, "conv_L_cache must be 2 to 16"),
    "LFM2 without attention": ("lfm2", {"layer_types": ["conv"] * 3}, "layer_types without full_attention"),
    "LFM2 with another kind of layer": ("lfm2", {"layer_types": ["conv", "full_attention", "mamba"]}, "must name 3"),
    "LFM2's attention in layers that are none": (
        "lfm2",
        {"layer_types": None, "full_attn_idxs": [3]},
        "full_attn_idxs must list some of 3",
    ),
    "value heads that do not divide": ("qwen3.5", {"linear_num_value_heads": 3}, "3 value heads cannot share 2 key"),
    "a huge convolution of Qwen": ("qwen3.5", {"linear_conv_kernel_dim": 2**30}, "linear_conv_kernel_dim must be 2"),
    "Qwen without attention": ("qwen3.5", {"layer_types": ["linear_attention"] * 3}, "without full_attention"),
    "gates of Qwen by another function": ("qwen3.5", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    "Mamba's heads that are not its width": (
        "granite4",
        {"mamba_n_heads": 15},
        "15 heads of 8 are not the inner width",
    ),
    "Mamba's groups that do not divide": ("granite4", {"mamba_n_groups": 3}, "16 heads cannot share 3 groups"),
    "Mamba's steps within no limits": ("granite4", {"time_step_limit": [1.0, 0.5]}, "time_step_limit must ascend"),
    "Mamba's steps within one limit": ("granite4", {"time_step_limit": 1.0}, "time_step_limit must be two numbers"),
    "Granite 4 without attention": ("granite4", {"layer_types": ["mamba"] * 3}, "without full_attention"),
    "LFM2's experts without layers": ("lfm2-moe", {"layer_types": None}, "layer_types is missing"),
    "Bamba's attention in layers that are none": ("bamba", {"attn_layer_indices": [3]}, "must list some of 3 layers"),
    "Bamba rotated otherwise": ("bamba", {"partial_rotary_factor": 1.0}, "partial_rotary_factor = 1.0"),
    "Falcon-H1 with four factors": ("falcon-h1", {"ssm_multipliers": [1.0] * 4}, "ssm_multipliers must be 5 numbers"),
    "Falcon-H1 with a factor of nothing": ("falcon-h1", {"mlp_multipliers": [1.0, 0.0]}, "must be a positive number"),
    "Falcon-H1 with biases and a factor before them": (
        "falcon-h1-biases",
        {"attention_in_multiplier": 0.5},
        "attention_in_multiplier = 0.5",
    ),
    "Falcon-H1 with biases of Mamba and a factor before them": (
        "falcon-h1-biases",
        {"ssm_in_multiplier": 0.5},
        "ssm_in_multiplier = 0.5",
    ),
    "RecurrentGemma without attention": ("recurrent-gemma", {"block_types": ["recurrent"]}, "without attention"),
    "RecurrentGemma's unknown layer": (
        "recurrent-gemma",
        {"block_types": ["mamba"]},
        "must list recurrent and attention",
    ),
    "RecurrentGemma's odd blocks": ("recurrent-gemma", {"lru_width": 80}, "lru_width 80 is not 2"),
    "RecurrentGemma's odd network": (
        "recurrent-gemma",
        {"intermediate_size": 141},
        "of gates and values together, is odd",
    ),
    "RecurrentGemma by another gate": (
        "recurrent-gemma",
        {"hidden_activation": "relu"},
        "hidden_activation 'relu' is not",
    ),
    "Kimi-Linear with positions": ("kimi-linear", {"mla_use_nope": False}, "mla_use_nope = false"),
    "Kimi-Linear by softmax": ("kimi-linear", {"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
    "Kimi-Linear without attention": (
        "kimi-linear",
        {"layer_types": ["linear_attention"] * 3},
        "without full attention",
    ),
    "Kimi-Linear's layers named twice": (
        "kimi-linear",
        {"layer_types": None, "linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1, 2, 3]}},
        "must have the layers 1 to 3",
    ),
    "Kimi-Linear with a huge convolution": (
        "kimi-linear",
        {"linear_attn_config": {"short_conv_kernel_size": 2**30}},
        "linear_conv_kernel_dim must be 2 to 16",
    ),
    "Jamba's attention beyond its period": ("jamba", {"attn_layer_offset": 4}, "attn_layer_offset 4 must be less"),
    "Jamba with another activation": ("jamba", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    "Nemotron's unknown layer": ("nemotron-h", {"layers_block_type": ["rwkv"]}, "each one of mamba, attention"),
    "Nemotron's unknown symbol": (
        "nemotron-h",
        {"layers_block_type": None, "hybrid_override_pattern": "M-X"},
        "hybrid_override_pattern must name",
    ),
    "Nemotron without layers": ("nemotron-h", {"layers_block_type": None}, "layers_block_type is missing"),
    "Nemotron's experts in a latent": ("nemotron-h-moe", {"moe_latent_size": 16}, "moe_latent_size = 16"),
    "Nemotron's experts with biases": ("nemotron-h-moe", {"mlp_bias": True}, "mlp_bias = true"),
    "Mamba-2's heads that are not its width": ("mamba2", {"head_dim": 7}, "16 heads of 7 are not the inner width 128"),
    "Mamba with a huge convolution": ("mamba", {"conv_kernel": 2**30}, "conv_kernel must be 2 to 16"),
    "Mamba wider than any": ("mamba", {"expand": 2**30}, "expand makes the layers wider than any"),
    "OLMo-Hybrid without attention": (
        "olmo-hybrid",
        {"layer_types": ["linear_attention"] * 3},
        "without full_attention",
    ),
    "OLMo-Hybrid's heads that do not divide": ("olmo-hybrid", {"linear_num_value_heads": 3}, "cannot share 2 key"),
    "clipped projections": ("olmoe", {"clip_qkv": 8.0}, "clip_qkv = 8.0 is not supported"),
}


@pytest.mark.parametrize(("base", "change", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_served_is_refused_by_name(base: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        read_spec(VARIANTS[base] | change)
