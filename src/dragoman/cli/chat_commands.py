"""The lines of ``dragoman chat``: commands, and messages with the mode of their answer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, get_args, get_origin, get_type_hints

import msgspec

from dragoman.cli import console
from dragoman.cli.attached_images import read_image, text_of
from dragoman.cli.conversation import MOST_SENT, Conversation
from dragoman.cli.plain_text import show
from dragoman.cli.saved_conversations import FOLDER, load, save, saved_files
from dragoman.cli.session import Mode
from dragoman.cli.settings import SamplingSettings
from dragoman.core.errors import BadRequest
from dragoman.core.user_folders import expand_user

QUOTES = '"""'
"""The quotes around a message of several lines."""

HELP = f"""\
/reset          forget the conversation
/system TEXT    forget it, and start anew with TEXT as the system message
/set            show what can be set: temperature, top_p, max_new_tokens, seed
/set NAME VALUE answer so from now on; default: as the model does by itself
/set verbose    tell the tokens per second of each answer; /set quiet: do not
/set plain      show answers as they are; /set markdown: as Markdown
/image FILE     have an image go with the next message, for a model that sees;
                several times for several; without FILE: with none
/history        show it
/stats          count its messages and characters
/save [FILE]    write it to a file, by default in {FOLDER}/
/load [FILE]    go on with a saved one, by default the newest in {FOLDER}/
/batch          enter several prompts, each to be answered by itself
/clear          clear the screen
/help           this list
/exit           leave (as Ctrl-D does; or /quit, /bye, /goodbye)
Tab             complete a command, a name, a value or a file
Ctrl-C          stop the answer; what there is of it stays in the conversation
{QUOTES}             begins a message of several lines, which ends with the next
                {QUOTES}
A message may end in --chat (answered with the conversation before it), in
--stream or --simple (by itself, as the answer comes or when it is whole) or in
--batch, for this once."""

COMMANDS = tuple(dict.fromkeys(re.findall(r"^(/\w+)", HELP, flags=re.MULTILINE)))
SWITCHES = ("verbose", "quiet", "markdown", "plain")

MODES: dict[str, Mode] = {mode: mode for mode in get_args(Mode)}
_SHOWN_FILES = 10
_KINDS = {"int": "an integer", "float": "a number"}
_KIND = re.compile(r"`(int|float)(?: \| null)?`")
_LAST_WORD = re.compile(r"(?:^|\s+)--(\w+)\s*$")


def message_and_mode(line: str) -> tuple[str, Mode | None]:
    """Return the message, and the mode that its last word names. Raises BadRequest for ``--word`` that is no mode."""
    found = _LAST_WORD.search(line)
    if found is None:
        return line.strip(), None
    mode = MODES.get(found[1].lower())
    if mode is None:
        known = ", ".join(f"--{name}" for name in MODES)
        raise BadRequest(f"--{found[1]} is no mode; of such words a message may end in {known}")
    if not (message := line[: found.start()].strip()):
        raise BadRequest(f"there is no message before --{mode}")
    return message, mode


def completions(before: str, word: str) -> list[str]:
    """Return what the last word of a line may become. ``before``: the line up to it."""
    command, *words = before.split() or [""]
    found: Iterable[str] = ()
    match command.lower(), words:
        case "", _ if word.startswith("/"):
            found = COMMANDS
        case "/set", []:
            found = (*SamplingSettings.__struct_fields__, *SWITCHES)
        case "/set", [name] if name in SamplingSettings.__struct_fields__:
            found = ("default", *_choices(name))
        case "/load" | "/save", []:
            return [str(file) for file in saved_files()] if not word and saved_files() else _files(word)
        case "/image", []:
            return _files(word)
        case _ if command and not command.startswith("/") and word.startswith("--"):
            found = (f"--{mode}" for mode in MODES)
    return [f"{each} " for each in found if each.startswith(word)]


def _choices(name: str) -> tuple[str, ...]:
    kind = get_type_hints(SamplingSettings)[name]
    return get_args(kind) if get_origin(kind) is Literal else ()


def _files(word: str) -> list[str]:
    """Return the paths that begin so, folders with a slash at the end."""
    folder, _, beginning = word.rpartition("/")
    try:
        entries = sorted(expand_user(folder or ("/" if word.startswith("/") else ".")).iterdir())
    except OSError:
        return []
    names = (
        f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries if entry.name.startswith(beginning)
    )
    return [word.removesuffix(beginning) + name for name in names if beginning or not name.startswith(".")]


def obey(line: str, conversation: Conversation) -> bool:
    """Carry out a line that begins with a slash. Return False when the user leaves. Raises DragomanError."""
    command, _, rest = line.partition(" ")
    rest = rest.strip()
    match command.lower():
        case "/exit" | "/quit" | "/bye" | "/goodbye":
            return False
        case "/reset":
            conversation.reset(conversation.system)
            console.notes().print("The conversation is forgotten.")
        case "/system":
            conversation.reset(rest or None)
            console.notes().print("A new conversation" + (", with this system message." if rest else "."))
        case "/set":
            _set(conversation, rest)
        case "/image":
            _attach(conversation, rest)
        case "/clear":
            console.output().clear()
        case "/history":
            if not conversation.messages:
                console.notes().print("Nothing has been said yet.")
            for message in conversation.messages:
                show(f"{message['role']}: {text_of(message['content'])}\n")
        case "/stats":
            _show(statistics(conversation))
        case "/save":
            if conversation.messages:
                console.notes().print(f"Saved in {save(conversation, rest)}", markup=False)
            else:
                console.notes().print("There is nothing to save yet.")
        case "/load":
            _load(conversation, rest)
        case "/help":
            console.notes().print(HELP, markup=False)
        case _:
            raise BadRequest(f"there is no {command}; /help lists the commands")
    return True


def _attach(conversation: Conversation, name: str) -> None:
    """Carry out ``/image``. Raises BadRequest for a file that cannot be read."""
    if name:
        conversation.attach(read_image(name))
    else:
        conversation.images.clear()
    count = len(conversation.images)
    told = f"{count} image{'s' * (count > 1)}" if count else "No image"
    console.notes().print(f"{told} {'go' if count > 1 else 'goes'} with the next message.")


def _set(conversation: Conversation, rest: str) -> None:
    """Carry out ``/set``. Raises BadRequest for an unknown name, or an invalid value."""
    name, _, value = rest.partition(" ")
    name, value = name.removeprefix("--").replace("-", "_"), value.strip()
    if not name:
        shown = {each: _shown(getattr(conversation.options, each)) for each in SamplingSettings.__struct_fields__}
        switches = {"verbose": conversation.verbose, "markdown": conversation.markdown}
        _show(shown | {name: "yes" if is_on else "no" for name, is_on in switches.items()})
    elif name in ("verbose", "quiet"):
        conversation.verbose = name == "verbose"
        console.notes().print("Answers are measured." if conversation.verbose else "Answers are not measured.")
    elif name in ("markdown", "plain"):
        conversation.markdown = name == "markdown"
        console.notes().print("Answers are Markdown." if conversation.markdown else "Answers are shown as they are.")
    else:
        conversation.options = changed(conversation.options, name, value)
        console.notes().print(f"{name} is {_shown(getattr(conversation.options, name))}", markup=False)


def changed(options: SamplingSettings, name: str, value: str) -> SamplingSettings:
    """Return the options with another value, as typed; ``default``: reset it to the one of the start.

    Raises BadRequest for an unknown name, or an invalid value.
    """
    if name not in SamplingSettings.__struct_fields__:
        raise BadRequest(f"there is no {name} to set; /set lists what there is")
    if not value:
        raise BadRequest(f"/set {name} needs a value, or default")
    values = msgspec.structs.asdict(options)
    if value == "default":
        values[name] = getattr(SamplingSettings(), name)
    else:
        values[name] = (value,) if name in ("stop", "bad_words") else value
    try:
        return msgspec.convert(values, SamplingSettings, strict=False)
    except msgspec.ValidationError as error:
        what = _KIND.sub(lambda found: _KINDS[found[1]], str(error).partition(" - at ")[0].partition(", got ")[0])
        raise BadRequest(f"{name} cannot be {value}: {what[:1].lower()}{what[1:]}") from None


def _shown(value: object) -> str:
    if value in (None, ()):
        return "default" if value is None else "none"
    return ", ".join(map(repr, value)) if isinstance(value, tuple) else str(value)


def statistics(conversation: Conversation) -> dict[str, str]:
    """Return the rows of ``/stats``, by name."""
    rows = {"messages": f"{len(conversation.messages)} (at most {MOST_SENT} are sent)"}
    for role in ("user", "assistant"):
        said = conversation.said_by(role)
        characters = sum(map(len, said))
        rows[role] = f"{len(said)} messages, {characters:,} characters, {characters // max(1, len(said)):,} on average"
    rows |= {"model": conversation.model, "mode": conversation.mode}
    return {**rows, "server": conversation.server} if conversation.server else rows


def _show(rows: dict[str, str]) -> None:
    width = max(map(len, rows))
    for name, text in rows.items():
        console.output().print(f"{name:>{width}}  {text}", markup=False)


def _load(conversation: Conversation, name: str) -> None:
    if not name:
        files = saved_files()
        for file in files[:_SHOWN_FILES]:
            console.notes().print(f"  {file}", markup=False)
        if len(files) > _SHOWN_FILES:
            console.notes().print(f"  and {len(files) - _SHOWN_FILES} older ones")
    file = load(conversation, name)
    console.notes().print(f"Going on with {file}: {len(conversation.messages)} messages", markup=False)
