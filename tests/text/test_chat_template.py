"""Chat templates render what ``transformers`` renders, for the styles of many model families."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer as Pipeline
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from dragoman.core.errors import BadRequest, ModelError, TemplateFailed, UnsupportedFeature
from dragoman.core.request import ChatPrompt
from dragoman.text import ChatTemplate
from dragoman.text.chat_template import TemplateLimits
from dragoman.text.template_parts import CallForm

SOURCES = {path.stem: path.read_text("utf-8") for path in (Path(__file__).parent / "chat_templates").glob("*.jinja")}
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

Message = dict[str, Any]

ASK: Message = {"role": "user", "content": '  What\'s 2 < 3 & "4"? Ünïcode: 通訳 😀 \n'}
ANSWER: Message = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is.  "}
SYSTEM: Message = {"role": "system", "content": "Be brief.\nBe kind."}
CALL: Message = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "abcdefghi",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "Köln", "days": 2, "exact": True, "at": None}},
        }
    ],
}
RESULT: Message = {"role": "tool", "tool_call_id": "abcdefghi", "name": "weather", "content": '{"celsius": 21.5}'}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks up what the weather will be in a city <anywhere> on earth, in degrees & words.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Où?"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
    for name in ("weather", "forecast")
]

CONVERSATIONS: dict[str, list[Message]] = {
    "one question": [ASK],
    "system": [SYSTEM, ASK],
    "turns": [SYSTEM, ASK, ANSWER, ASK, {**ANSWER, "content": " plain "}, ASK],
    "an answer last": [ASK, ANSWER],
    "tool call": [ASK, CALL, RESULT],
    "tools and back": [SYSTEM, ASK, CALL, RESULT, RESULT, {**ANSWER, "content": "21.5 °C"}, ASK],
    "reasoning apart": [ASK, {"role": "assistant", "content": "Yes.", "reasoning": "because\n"}],
    "out of turn": [ASK, ASK],
    "unknown role": [ASK, {"role": "narrator", "content": "Meanwhile,"}],
    "no content": [{"role": "user"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
}


@pytest.fixture(scope="module")
def templates() -> Iterator[dict[str, ChatTemplate]]:
    patient = TemplateLimits(time_s=60.0)  # time is not what is tested here
    made = {name: ChatTemplate({"default": source}, SPECIAL_TOKENS, patient) for name, source in SOURCES.items()}
    yield made
    for template in made.values():
        template.close()


@pytest.fixture(scope="module")
def reference() -> PreTrainedTokenizerFast:
    pipeline = Pipeline(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=pipeline, **SPECIAL_TOKENS)


def expected(reference: PreTrainedTokenizerFast, source: str | dict[str, str], prompt: ChatPrompt) -> str | Exception:
    """What ``transformers`` makes of the prompt: its text, or the error."""
    reference.chat_template = source
    try:
        return str(
            reference.apply_chat_template(
                list(prompt.messages),
                tools=list(prompt.tools) or None,
                add_generation_prompt=prompt.add_generation_prompt,
                continue_final_message=prompt.continue_final_message,
                tokenize=False,
                **prompt.template_kwargs,
            )
        )
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        return error


def check(template: ChatTemplate, prompt: ChatPrompt, wanted: str | Exception) -> None:
    if isinstance(wanted, str):
        assert template.render(prompt) == wanted
        return
    with pytest.raises(BadRequest) as refused:
        template.render(prompt)
    if type(wanted) is jinja2.TemplateError:  # the template's own refusal, in its own words
        assert refused.value.message == str(wanted)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_text_equals_that_of_transformers(
    templates: dict[str, ChatTemplate], reference: PreTrainedTokenizerFast, name: str, conversation: str
) -> None:
    for tools in ((), tuple(TOOLS)):
        for add_generation_prompt in (True, False):
            prompt = ChatPrompt(
                messages=tuple(CONVERSATIONS[conversation]), tools=tools, add_generation_prompt=add_generation_prompt
            )
            check(templates[name], prompt, expected(reference, SOURCES[name], prompt))


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("llama3_1", {"date_string": "1 April 1400", "tools_in_user_message": False}),
        ("qwen3", {"enable_thinking": False}),
        ("command_r", {"documents": [{"title_of_it": "A <b>", "text": "B & C"}, {"text": "ß"}]}),
        ("zephyr", {"eos_token": "<|stop|>"}),
    ],
)
def test_variables_of_a_request_reach_the_template(
    templates: dict[str, ChatTemplate], reference: PreTrainedTokenizerFast, name: str, variables: dict[str, Any]
) -> None:
    prompt = ChatPrompt(messages=(SYSTEM, ASK, ANSWER), tools=tuple(TOOLS), template_kwargs=variables)
    wanted = expected(reference, SOURCES[name], prompt)
    assert isinstance(wanted, str)
    assert wanted != expected(reference, SOURCES[name], ChatPrompt(messages=prompt.messages, tools=prompt.tools))
    assert templates[name].render(prompt) == wanted


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(
    "content", ["The answer", "spaces behind  ", " around \n", [{"type": "text", "text": "part "}]]
)
def test_a_final_message_can_be_continued(
    templates: dict[str, ChatTemplate], reference: PreTrainedTokenizerFast, name: str, content: Any
) -> None:
    prompt = ChatPrompt(
        messages=(ASK, {"role": "assistant", "content": content}),
        add_generation_prompt=False,
        continue_final_message=True,
    )
    check(templates[name], prompt, expected(reference, SOURCES[name], prompt))


@pytest.mark.parametrize("name", SOURCES)
def test_most_conversations_have_a_text_to_compare(reference: PreTrainedTokenizerFast, name: str) -> None:
    texts = [expected(reference, SOURCES[name], ChatPrompt(messages=tuple(c))) for c in CONVERSATIONS.values()]
    assert sum(isinstance(text, str) for text in texts) >= 4


def test_a_refusal_is_the_templates_own_message(templates: dict[str, ChatTemplate]) -> None:
    with pytest.raises(BadRequest) as refused:
        templates["gemma2"].render(ChatPrompt(messages=(SYSTEM, ASK)))
    assert refused.value.message == "There is no system role."
    assert refused.value.param == "messages"


def test_a_refusal_that_quotes_is_bounded() -> None:
    template = ChatTemplate({"default": "{{ raise_exception('No: ' ~ messages[0].content) }}"})
    with pytest.raises(TemplateFailed) as refused:
        template.render(ChatPrompt(messages=({"role": "user", "content": "x" * 100_000},)))
    template.close()
    assert refused.value.raised
    assert refused.value.reason.startswith("No: xxx")
    assert len(refused.value.message) < 2100


@pytest.mark.parametrize(
    "prompt",
    [
        ChatPrompt(messages=()),
        ChatPrompt(messages=(ASK,), template_kwargs={"messages": []}),
        ChatPrompt(messages=(ASK, ANSWER), continue_final_message=True),
        ChatPrompt(messages=(ASK, CALL), continue_final_message=True, add_generation_prompt=False),
    ],
)
def test_an_impossible_prompt_is_refused(templates: dict[str, ChatTemplate], prompt: ChatPrompt) -> None:
    with pytest.raises(BadRequest):
        templates["chatml"].render(prompt)


def test_messages_are_not_changed_by_rendering(templates: dict[str, ChatTemplate]) -> None:
    messages = (ASK, {"role": "assistant", "content": [{"type": "text", "text": "a"}]})
    before = json.dumps(messages)
    templates["qwen3"].render(ChatPrompt(messages=messages))
    templates["gemma2"].render(ChatPrompt(messages=messages, continue_final_message=True, add_generation_prompt=False))
    assert json.dumps(messages) == before


def test_lone_surrogates_and_nesting_pass_through_or_are_refused(templates: dict[str, ChatTemplate]) -> None:
    assert "\ud800" in templates["chatml"].render(ChatPrompt(messages=({"role": "user", "content": "\ud800"},)))
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BadRequest, match="nested"):
        templates["chatml"].render(ChatPrompt(messages=({"role": "user", "content": deep},)))


# Where templates are found


def test_tool_use_is_chosen_when_there_are_tools(reference: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    sources = {"default": "plain {{ messages[0].role }}", "tool_use": "{{ tools | length }} tools", "rag": "{{ x }}"}
    entries = [{"name": name, "template": source} for name, source in sources.items()]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": entries}))
    template = ChatTemplate.load(tmp_path)
    for tools in ((), tuple(TOOLS)):
        prompt = ChatPrompt(messages=(ASK,), tools=tools)
        assert template.render(prompt) == expected(reference, sources, prompt)
    template.close()


def test_a_template_file_comes_before_the_config(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "from chat_template.json"}))
    assert render_in(tmp_path) == "from chat_template.json"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "from the config"}))
    assert render_in(tmp_path) == "from the config"
    (tmp_path / "chat_template.jinja").write_text("from the file {{ eos_token }}")
    assert render_in(tmp_path) == "from the file </s>"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    assert render_in(tmp_path, *TOOLS) == "with tools"
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_bytes(b"\xef\xbb\xbfwith a byte order mark")
    assert render_in(tmp_path, *TOOLS) == "with a byte order mark"
    for file in ("chat_template.jinja", "additional_chat_templates/tool_use.jinja"):
        (tmp_path / file).write_text("\n")  # one without a template is none
    assert render_in(tmp_path) == "from the config"


def render_in(folder: Path, *tools: dict[str, Any]) -> str:
    template = ChatTemplate.load(folder, SPECIAL_TOKENS)
    try:
        return template.render(ChatPrompt(messages=(ASK,), tools=tools))
    finally:
        template.close()


def test_a_file_that_is_named_comes_before_everything(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("the folder's")
    jinja, config = tmp_path / "other.jinja", tmp_path / "other.json"
    jinja.write_text("{{ messages[0].content }}, said the file")
    config.write_text(json.dumps({"chat_template": "the config's"}))
    for file, wanted in ((jinja, "hi, said the file"), (config, "the config's")):
        template = ChatTemplate.load(tmp_path, file=file)
        assert template.render(ChatPrompt(messages=({"role": "user", "content": "hi"},))) == wanted
        template.close()
    config.write_text("{}")
    for file in (config, tmp_path / "nowhere.jinja"):
        with pytest.raises(ModelError, match=file.name):
            ChatTemplate.load(tmp_path, file=file)


def test_a_model_without_a_template_cannot_chat(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    template = ChatTemplate.load(tmp_path)
    assert not template.available
    with pytest.raises(UnsupportedFeature, match="no chat template"):
        template.render(ChatPrompt(messages=(ASK,)))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", '{"chat_template": 3}'),
        ("tokenizer_config.json", '{"chat_template": [{"name": "default"}]}'),
        ("tokenizer_config.json", "nonsense"),
        ("chat_template.jinja", "{% if %}"),
        ("chat_template.jinja", "\n\n{{ 'unfinished"),
    ],
)
def test_a_broken_template_is_refused_at_load(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ModelError, match=r"chat_template|tokenizer_config|does not compile"):
        ChatTemplate.load(tmp_path)


# The form of calls

JOINS_TEXTS = """
{%- for message in messages %}
{%- if message['role'] == 'assistant' and message['tool_calls'] is defined %}
{%- for call in message['tool_calls'] %}
{%- if message['content'] is none %}{{ '<call>' + call['function']['name'] + ARGUMENTS + '</call>' }}
{%- else %}{{ message['content'] + '<call>' + call['function']['name'] + ARGUMENTS + '</call>' }}{% endif %}
{%- endfor %}
{%- else %}{{ '<' + message['role'] + '>' + message['content'] }}{% endif %}
{%- endfor %}"""


@pytest.mark.parametrize("arguments", ["call['function']['arguments'] | tojson", "call['function']['arguments']"])
@pytest.mark.parametrize("content", [None, "Wait."])
def test_calls_have_the_form_that_the_template_joins(arguments: str, content: str | None) -> None:
    """Those of DeepSeek V3 and R1 join arguments as texts, and read a content that is null."""
    template = ChatTemplate({"default": JOINS_TEXTS.replace("ARGUMENTS", f"({arguments})")}, SPECIAL_TOKENS)
    call = {"type": "function", "id": "a", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
    messages = (ASK, {"role": "assistant", "content": content, "tool_calls": [call]}, RESULT)
    try:
        text = template.render(ChatPrompt(messages=messages))
        assert template.roles.tool
    finally:
        template.close()
    written = '<call>weather{"city": "Köln"}</call>'
    assert text == f"<user>{ASK['content']}{content or ''}{written}<tool>{RESULT['content']}"


def test_calls_of_other_templates_are_as_they_come(templates: dict[str, ChatTemplate]) -> None:
    assert {name: template.call_form for name, template in templates.items()} == dict.fromkeys(templates, CallForm())


# What a template renders ----------------------------------------------------------------------------------------------

ROLES = {
    "chatml": (True, True, True),
    "command_r": (True, False, False),
    "gemma2": (False, False, False),
    "llama2": (True, False, False),
    "llama3_1": (True, True, True),
    "mistral": (True, False, True),
    "phi3": (True, True, False),
    "qwen3": (True, True, True),
    "zephyr": (True, True, False),
}
"""By template: a system message at the beginning, one later, the calls and results of tools."""


@pytest.mark.parametrize("name", ROLES)
def test_what_a_template_renders_is_found_by_trying(name: str) -> None:
    template = ChatTemplate({"default": SOURCES[name]}, SPECIAL_TOKENS)
    try:
        found = template.roles
    finally:
        template.close()
    assert (found.system, found.later_system, found.tool) == ROLES[name]
