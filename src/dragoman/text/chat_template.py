"""Chat templates: from messages to the prompt of a chat model, by the model's own template.

The text equals that of ``transformers``' ``apply_chat_template`` for the same template and messages; choices below
that look arbitrary are those of transformers.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.core.errors import BadRequest, EngineUnavailable, ModelError, TemplateFailed, TemplateMissing
from dragoman.core.regular_file import require_regular
from dragoman.core.request import ChatPrompt
from dragoman.core.serving import TemplateRoles
from dragoman.text.sandbox import ProcessFailure, ProcessLost, SandboxedProcesses
from dragoman.text.template_names import TemplateNames
from dragoman.text.template_parts import CallForm, ContentForms, call_form, content_forms, with_call_form, with_forms
from dragoman.text.template_roles import template_roles

MAX_MESSAGE_CHARS = 2000
"""Maximum length of a template's error message, which may quote the messages."""

_CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
_RESERVED_NAMES = frozenset({"messages", "tools", "add_generation_prompt"})


_WORKER = Path(__file__).with_name("template_worker.py")


class TemplateLimits(NamedTuple):
    """Limits of one compilation or one rendering: processor seconds, characters, and bytes of the process's whole
    address space."""

    time_s: float = 1.0
    output_chars: int = 1 << 22
    memory_bytes: int = 1 << 29


DEFAULT_LIMITS = TemplateLimits()


class ChatTemplate:
    """The chat templates of one model, compiled once.

    ``templates`` maps names to jinja2 sources: ``default``, and ``tool_use`` where the model has a separate one for
    requests with tools. ``special_tokens`` are variables of the template (``Tokenizer.special_tokens``).

    A template runs in a separate process, under ``limits`` that hold against any template; in one of ``processes``
    where several threads render. ``render`` usually blocks for well under a millisecond and at worst a few times
    ``limits.time_s`` (and the start of a process): call it in a thread.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str] | None = None,
        limits: TemplateLimits = DEFAULT_LIMITS,
        processes: int = 1,
    ) -> None:
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens or {})
        self._where = ""
        """The folder, for errors."""
        self.image_placeholder = ""
        """What stands for an image in a prompt; empty: the model sees none."""
        self._process = TemplateProcess(self._templates, limits, processes)

    @classmethod
    def load(
        cls,
        folder: Path | str,
        special_tokens: Mapping[str, str] | None = None,
        limits: TemplateLimits = DEFAULT_LIMITS,
        file: Path | None = None,
    ) -> ChatTemplate:
        """Read and compile the templates of a model folder; ``available`` is False where it has none.

        ``file``: a template, or a ``tokenizer_config.json`` that holds some, in place of the folder's.
        Raises ModelError for files that cannot be read and templates that do not compile within the limits.
        """
        template = cls.begin(folder, limits, file)
        template.compile(special_tokens or {})
        return template

    @classmethod
    def begin(
        cls,
        folder: Path | str,
        limits: TemplateLimits = DEFAULT_LIMITS,
        file: Path | None = None,
        processes: int = 1,
    ) -> ChatTemplate:
        """Start ``load``: the special tokens can be read while a process gets ready to compile."""
        templates = read_templates(Path(folder)) if file is None else _templates_of(file)
        template = cls(templates, limits=limits, processes=processes)
        template._where = str(folder)
        if template.available:
            template._process.begin()
        return template

    def compile(self, special_tokens: Mapping[str, str]) -> None:
        """Finish ``load``."""
        self._special_tokens = dict(special_tokens)
        if self.available:
            try:
                self._process.start()
            except ProcessFailure as failure:
                raise ModelError(f"{self._where}: the chat template does not compile: {failure.message}") from None
            except ProcessLost as loss:
                raise ModelError(f"{self._where}: the chat template cannot be compiled now: {loss.reason}") from None

    @property
    def available(self) -> bool:
        """Whether the model has a template."""
        return bool(self._templates)

    @property
    def source(self) -> str:
        """The template that renders tools; empty where there is none."""
        return self._templates.get("tool_use") or self._templates.get("default", "")

    @functools.cached_property
    def names(self) -> TemplateNames:
        """Names that the template reads; empty where it does not compile. Blocks until its process runs."""
        if not self.source:
            return TemplateNames()
        try:
            names = self._process.start()["names"]
        except (ProcessFailure, ProcessLost):
            return TemplateNames()
        return TemplateNames(*map(frozenset, names["tool_use" if self._templates.get("tool_use") else "default"]))

    @functools.cached_property
    def roles(self) -> TemplateRoles:
        """The messages that the template renders. Blocks until its process runs."""
        return template_roles(self.render) if self.available else TemplateRoles()

    @functools.cached_property
    def forms(self) -> ContentForms:
        """The forms of contents that the template renders. Blocks until its process runs."""

        def render(messages: Sequence[dict[str, Any]]) -> str:
            return self._render(self._choose(False), self._variables(ChatPrompt(messages=()), list(messages)))

        return content_forms(render, self.image_placeholder)

    @functools.cached_property
    def call_form(self) -> CallForm:
        """The form of calls that the template renders. Blocks until its process runs."""
        name = self._choose(True)

        def render(messages: Sequence[dict[str, Any]]) -> str:
            return self._render(name, self._variables(ChatPrompt(messages=()), list(messages)))

        return call_form(render)

    @property
    def confined(self) -> tuple[str, ...]:
        """Names of the confinements of its process (``confinement``). Blocks until its process runs."""
        try:
            return tuple(self._process.start().get("confined", ()))
        except (ProcessFailure, ProcessLost):
            return ()

    def render(self, prompt: ChatPrompt) -> str:
        """Return the prompt's text; encode it with ``add_special_tokens=False``, as the template writes BOS itself.

        Raises TemplateMissing when the model has no template, and TemplateFailed when the template refuses the
        messages (with its own message), fails on them, or exceeds a limit. EngineUnavailable when its process was
        lost twice.
        """
        name = self._choose(bool(prompt.tools))
        if reserved := _RESERVED_NAMES & prompt.template_kwargs.keys():
            raise BadRequest(f"the template variable {min(reserved)!r} cannot be set", param="chat_template_kwargs")
        if prompt.continue_final_message and prompt.add_generation_prompt:
            raise BadRequest("add_generation_prompt and continue_final_message exclude each other")
        messages = [_prepare(message) for message in prompt.messages]
        if not messages:
            raise BadRequest("there must be at least one message", param="messages")
        if self.image_placeholder or "image" in self.source:
            messages = with_forms(messages, self.forms, self.image_placeholder)
        if any(message.get("tool_calls") for message in messages):
            messages = with_call_form(messages, self.call_form)
        if prompt.continue_final_message:
            messages = _mark_final(messages)
        text = self._render(name, self._variables(prompt, messages))
        return _cut_at_mark(text) if prompt.continue_final_message else text

    def _variables(self, prompt: ChatPrompt, messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "documents": None,
            **self._special_tokens,
            **prompt.template_kwargs,
            "messages": messages,
            "tools": list(prompt.tools) or None,
            "add_generation_prompt": prompt.add_generation_prompt,
        }

    def close(self) -> None:
        """End the process; a later ``render`` starts another."""
        self._process.close()

    def _choose(self, with_tools: bool) -> str:
        for name in ("tool_use", "default") if with_tools else ("default",):
            if name in self._templates:
                return name
        raise TemplateMissing(
            f"the model's chat templates are named {', '.join(self._templates)}: there is no default"
            if self._templates
            else "this model has no chat template: it only completes text; send a prompt instead of messages"
        )

    def _render(self, name: str, variables: Mapping[str, Any]) -> str:
        try:
            return self._process.render(name, variables)
        except ProcessLost as loss:
            raise EngineUnavailable(f"The messages could not be rendered: {loss.reason}. Try again.") from None
        except ProcessFailure as failure:
            raised, words = failure.kind == "raised", failure.message
            if len(words) > MAX_MESSAGE_CHARS:
                words = words[:MAX_MESSAGE_CHARS] + "..."
            message = words if raised else f"the model's chat template cannot render these messages: {words}"
            raise TemplateFailed(message, param="messages", reason=words, raised=raised) from None


def _prepare(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without its null fields, and with its reasoning under each name that templates use."""
    prepared = {key: value for key, value in message.items() if value is not None}
    for name in _REASONING_NAMES:
        if name in prepared:
            return {"thinking": prepared[name], **prepared, "reasoning_content": prepared[name]}
    return prepared


def _mark_final(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with a mark after the last text of the last one: the rendered prompt is cut at the mark."""
    *before, final = messages
    content = final.get("content")
    if isinstance(content, str):
        return [*before, {**final, "content": content + _CONTINUE_MARK}]
    if isinstance(content, list):
        for place in reversed(range(len(content))):
            part = content[place]
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                marked = {**part, "text": part["text"] + _CONTINUE_MARK}
                return [*before, {**final, "content": [*content[:place], marked, *content[place + 1 :]]}]
    raise BadRequest("the final message has no text to continue", param="messages")


def _cut_at_mark(text: str) -> str:
    place = text.rfind(_CONTINUE_MARK.strip())
    if place < 0:
        raise BadRequest("the chat template does not render the final message, so it cannot be continued")
    # A template that trims its messages also trimmed the mark's space, and would have trimmed the text's.
    return text[:place] if text.startswith(_CONTINUE_MARK, place) else text[:place].rstrip()


def read_templates(folder: Path) -> dict[str, str]:
    """Return the templates of a model folder by name; empty where there are none. Raises ModelError.

    ``chat_template.jinja`` and ``additional_chat_templates/*.jinja`` take precedence over ``tokenizer_config.json``,
    and that over ``chat_template.json``, which older multimodal models have.
    """
    paths = {path.stem: path for path in sorted(folder.glob("additional_chat_templates/*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        paths["default"] = folder / "chat_template.jinja"
    # An empty file is none: it would render every conversation as nothing.
    if templates := {name: text for name, path in paths.items() if (text := _read_text(path)).strip()}:
        return templates
    for path in (folder / "tokenizer_config.json", folder / "chat_template.json"):
        if path.is_file() and (templates := _templates_in(path)):
            return templates
    return {}


def _templates_of(file: Path) -> dict[str, str]:
    """Return the templates of a named file. Raises ModelError if it has none."""
    templates = _templates_in(file) if file.suffix == ".json" else {"default": _read_text(file)}
    if not any(text.strip() for text in templates.values()):
        raise ModelError(f"{file}: there is no chat template in it")
    return templates


def _templates_in(path: Path) -> dict[str, str]:
    try:
        value = json.loads(_read_text(path)).get("chat_template")
        if isinstance(value, list):
            return {str(entry["name"]): str(entry["template"]) for entry in value}
        if value is None or isinstance(value, str):
            return {"default": value} if value else {}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{path}: {error!r}") from error
    raise ModelError(f"{path}: chat_template is neither a template nor a list of templates")


def _read_text(path: Path) -> str:
    require_regular(path, ModelError)
    try:
        return path.read_text("utf-8-sig")  # editors on Windows begin files with a mark, which is no part of a prompt
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


class TemplateProcess(SandboxedProcesses):
    """Processes that hold named templates, compiled once, rendered one at a time in each of ``count`` processes.

    The kinds of its failures: syntax, raised (by the template itself), failed, size, time, memory.
    """

    def __init__(self, templates: Mapping[str, str], limits: TemplateLimits, count: int = 1) -> None:
        setup = {"limits": limits._asdict(), "templates": dict(templates)}
        # No character takes more than 12 bytes of JSON.
        answer_bytes = 12 * limits.output_chars + (1 << 16)
        super().__init__(_WORKER, lambda: setup, time_s=limits.time_s, answer_bytes=answer_bytes, count=count)

    def render(self, name: str, variables: Mapping[str, Any]) -> str:
        """Return the text of one template. ``variables`` are plain JSON values. Raises ProcessFailure, ProcessLost."""
        return str(self.ask({"name": name, "variables": variables})["text"])
