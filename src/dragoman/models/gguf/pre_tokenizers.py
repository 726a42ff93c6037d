"""Pre-tokenizers of byte-level vocabularies: the values of ``tokenizer.ggml.pre``.

Each kind is a list of patterns, applied in order to the pieces of the previous one: each match is a piece, and so is
the text between matches. The patterns are those of the models' own ``tokenizer.json``, as llama.cpp has them.
"""

from __future__ import annotations

import msgspec

from dragoman.core.split_patterns import (
    BEFORE_WORD,
    ENDINGS,
    GPT2,
    KIMI,
    LLAMA3,
    QWEN2,
    SPACES,
    cased_words,
    words,
)


class PreTokenizer(msgspec.Struct, frozen=True):
    """One kind of pre-tokenizer.

    Attributes:
        whole_words: a word that is a token stays one token, whatever the merges would give.
        adds_bos: default where the file does not say.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False


_PLAIN = PreTokenizer((GPT2,))
_SINGLE_DIGITS = PreTokenizer((r"\p{N}", GPT2))
_QWEN2 = PreTokenizer((QWEN2,))
_LLAMA3 = PreTokenizer((LLAMA3,))
_LLAMA3_WHOLE = PreTokenizer(_LLAMA3.patterns, whole_words=True, adds_bos=True)
_CHATGLM = PreTokenizer(_LLAMA3.patterns, whole_words=True)
_BLOOM_WORDS = r" ?[^(\s|.,!?…。，、।۔،)]+"
_GPT4O = PreTokenizer((cased_words(r"\p{N}{1,3}", f"{ENDINGS}?"),))
_QWEN35 = PreTokenizer((words(r"\p{N}", r"\p{L}\p{M}"),))
_KIMI = PreTokenizer((KIMI,))
# DeepSeek's. Its first models name the letters that have cases one by one.
_IDEOGRAPHS = "[一-龥ࠀ-一가-퟿]+"
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ\u1f5f-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbe"
    "ῂ-ῄῆ-ῌ\u1fd0-\u1fd3\u1fd6-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝ\u2124\u2126\u2128\u212a-\u212dℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK = PreTokenizer(
    (r"[\r\n]", rf"\s?[{_CASED_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _IDEOGRAPHS, r"\p{N}+")
)
_DEEPSEEK_CODER = PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _IDEOGRAPHS, r"\p{N}"))
_DEEPSEEK_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
)
_DEEPSEEK_V3 = PreTokenizer((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_WORDS))
# Trinity's: digits in groups of three from the right, and scripts of Asia without spaces between words.
_AFMOE = PreTokenizer(
    (
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
        "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0eff\u1780-\u17ff"
        "\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
        _DEEPSEEK_WORDS,
    )
)
_YOUTU = PreTokenizer(
    (
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
        cased_words(r"\p{N}", f"{ENDINGS}?"),
    ),
    whole_words=True,
)
# Jais 2's: spaces fall into pieces of powers of two.
_POWERS_OF_SPACES = "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
_JAIS2 = PreTokenizer((words(r"\p{N}{1,3}", spaces=rf"\s*[\r\n]+|{_POWERS_OF_SPACES}|\s"),))
_EXAONE_MOE = PreTokenizer(
    (
        rf"{ENDINGS}|{BEFORE_WORD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
_BAILING = PreTokenizer(
    (
        rf"'(?i:[sdmt]|ll|ve|re)|{BEFORE_WORD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")),
    **dict.fromkeys(
        (
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "exaone4",
            "trillion",
            "granite-docling",
            "modern-bert",
            "roberta-bpe",
            "gigachat",
            "a.x-4.0",
            "mellum",
        ),
        _PLAIN,
    ),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"), _SINGLE_DIGITS
    ),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "solar-open", "megrez", "grok-2", "kormo"), _QWEN2
    ),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", QWEN2)),
    "qwen35": _QWEN35,
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _LLAMA3),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2", "falcon-h1", "midm-2.0"), _LLAMA3_WHOLE
    ),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", words(r"\p{N}+")), whole_words=True),
    "seed-coder": PreTokenizer((words(r"\p{N}", line_ends=""),)),
    "glm4": _CHATGLM,
    "tekken": PreTokenizer((cased_words(r"\p{N}", ""),), whole_words=True, adds_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2", "kanana2"), _GPT4O),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", *_GPT4O.patterns))),
    "kimi-k2": _KIMI,
    "deepseek-llm": _DEEPSEEK,
    "deepseek-coder": _DEEPSEEK_CODER,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK_V3),
    "exaone-moe": _EXAONE_MOE,
    "afmoe": _AFMOE,
    "youtu": _YOUTU,
    "jais-2": _JAIS2,
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), PreTokenizer((_BLOOM_WORDS,))),
    "viking": PreTokenizer((_BLOOM_WORDS, r"\p{N}")),
}
