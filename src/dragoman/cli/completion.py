"""``dragoman completion``: the Tab key in bash, zsh and fish.

The shell asks the command itself: with ``_DRAGOMAN_COMPLETE`` set, it gets the words up to the cursor, and prints what
the last one may become, one on a line, with its help after a tab. Where that is nothing, shells complete file names.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dragoman.cli import console
from dragoman.cli.command_line import CommandLine
from dragoman.cli.console import COMPLETE
from dragoman.cli.options import Option
from dragoman.core.errors import DragomanError
from dragoman.core.user_folders import expand_user

Shell = Literal["bash", "zsh", "fish"]

_BASH = f"""\
# Completions of dragoman for bash.
_dragoman() {{
    local IFS=$'\\n'
    COMPREPLY=($({COMPLETE}=1 "$1" "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2>/dev/null | cut -f 1))
}}
complete -o default -o bashdefault -F _dragoman dragoman
"""

_ZSH = f"""\
#compdef dragoman
# Completions of dragoman for zsh.
_dragoman() {{
    local line tab=$'\\t'
    local -a lines found
    lines=("${{(@f)$({COMPLETE}=1 "${{words[1]}}" "${{(@)words[2,CURRENT]}}" 2>/dev/null)}}")
    for line in $lines; do
        [[ -n $line ]] && found+=("${{${{line%%$tab*}}//:/\\\\:}}:${{line#*$tab}}")
    done
    if (( $#found )); then
        _describe -t values dragoman found
    else
        _files
    fi
}}
if [[ $funcstack[1] == _dragoman ]]; then
    _dragoman "$@"
else
    compdef _dragoman dragoman
fi
"""

_FISH = f"""\
# Completions of dragoman for fish.
function __dragoman_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found ({COMPLETE}=1 $words[1] $words[2..-1] 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command dragoman --no-files --arguments '(__dragoman_complete)'
"""

SCRIPTS: dict[Shell, str] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

_ZSHRC = """\
# dragoman: completions
fpath=(~/.zfunc $fpath)
autoload -Uz compinit && compinit
"""

_EVERYWHERE = {
    "--config": "TOML file of options.",
    "--debug": "Show the traceback of an error.",
    "--help": "Show what there is, and exit.",
}
_AT_THE_TOP = {"--version": "Show the version and exit.", "--help": "Show what there is, and exit."}
_MOST_HELP = 100


def answer_shell(cli: CommandLine, words: Sequence[str]) -> None:
    """Print what the last of the words may become."""
    for value, help in completions(cli, words):
        print(f"{value}\t{help}")


def completions(cli: CommandLine, words: Sequence[str]) -> list[tuple[str, str]]:
    """Return what the last of the words may become, each with its help; nothing where that may be any text."""
    *before, word = [each for each in words if each != "="] or [""]  # bash parts `--name=value` at its sign
    if words and words[-1] == "=":
        before, word = [*before, word], ""
    flag, equals, beginning = word.partition("=")
    if equals and flag.startswith("--"):
        return [(f"{flag}={value}", help) for value, help in completions(cli, [*before, flag, beginning])]
    helps = _helps(cli)
    path = ""
    while before and f"{path} {before[0]}".strip() in helps:
        path = f"{path} {before.pop(0)}".strip()
    if path in cli.commands:
        found = dict(_of_command(cli.commands[path], before, word))
    elif before:  # no such command
        found = {}
    else:
        below = f"{path} " if path else ""
        names = {name.removeprefix(below): help for name, help in helps.items() if name.startswith(below)}
        found = {name: help for name, help in names.items() if name and " " not in name}
        found |= _AT_THE_TOP if word.startswith("-") and not path else {}
    return [(value, _brief(help)) for value, help in found.items() if value.startswith(word)]


def _of_command(options: Sequence[Option], before: Sequence[str], word: str) -> Iterator[tuple[str, str]]:
    by_flag = {flag: option for option in options for flag in _flags(option)}
    last = by_flag.get(before[-1]) if before else None
    if last is not None and last.annotation is not bool:
        yield from ((choice, "") for choice in _choices(last.annotation))
    elif word.startswith("-"):
        yield from ((flag, option.help) for flag, option in by_flag.items())
        yield from _EVERYWHERE.items()
    else:
        for option in options:
            if option.positional:
                yield from ((choice, "") for choice in _choices(option.annotation))


def _flags(option: Option) -> Iterator[str]:
    if option.positional:
        yield from (option.twin,) if option.twin is not None else ()
        return
    yield from (option.flag, *option.also)
    if option.annotation is bool:
        yield from (f"--no-{name[2:]}" for name in (option.flag, *option.also) if name.startswith("--"))
    if option.short is not None:
        yield option.short


def _choices(annotation: Any) -> Iterator[str]:
    if typing.get_origin(annotation) is Literal:
        yield from map(str, typing.get_args(annotation))
    else:
        for side in typing.get_args(annotation):
            yield from _choices(side)


def _helps(cli: CommandLine) -> Mapping[str, str]:
    """Return the help of each command and group, by the words that call it."""
    helps = {str(each.name): each.callback.__doc__ or "" for each in cli.typer.registered_commands if each.callback}
    for group in cli.typer.registered_groups:
        assert group.typer_instance is not None
        helps[str(group.name)] = str(group.typer_instance.info.help or "")
        for each in group.typer_instance.registered_commands:
            helps[f"{group.name} {each.name}"] = (each.callback.__doc__ if each.callback else "") or ""
    return helps


def _brief(help: str) -> str:
    """Return the first sentence of a help, in one line."""
    words = " ".join(help.split()).partition(". ")[0].rstrip(".")
    return words if len(words) <= _MOST_HELP else f"{words[:_MOST_HELP]}…"


class CompletionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The shell.

    Attributes:
        shell: bash, zsh or fish; by default the one of $SHELL.
        install: write the script to where this shell looks for it.
    """

    PANEL = "Shell"

    shell: Annotated[Shell | None, Meta(extra={"positional": True, "configurable": False})] = None
    install: Annotated[bool, Meta(extra={"configurable": False})] = False


def completion(asked: CompletionSettings) -> None:
    """Print the completions of commands and options for bash, zsh or fish, or install them for this user."""
    shell = asked.shell or _shell_of(os.environ.get("SHELL", ""))
    if not asked.install:
        print(SCRIPTS[shell], end="")
        return
    for line in install(shell):
        console.notes().print(line, markup=False)


def install(shell: Shell) -> list[str]:
    """Write the shell's script for this user; return sentences about it. Raises DragomanError for a folder that cannot
    be written."""
    match shell:
        case "bash":
            # Where the package bash-completion looks for it when the command is first completed.
            data = os.environ.get("BASH_COMPLETION_USER_DIR") or f"{_data_folder()}/bash-completion"
            file = Path(data) / "completions" / "dragoman"
            said = [f"Written: {file}", "It works in new shells that have the package bash-completion."]
            if not any(map(os.path.isfile, _BASH_COMPLETION)):
                said[1] = f"bash-completion is not installed here: add `source {file}` to ~/.bashrc."
        case "zsh":
            file = expand_user("~/.zfunc") / "_dragoman"
            said = [f"Written: {file}"]
        case "fish":
            config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
            file = expand_user(config) / "fish" / "completions" / "dragoman.fish"
            said = [f"Written: {file}", "It works in new shells."]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(SCRIPTS[shell], encoding="utf-8")
        if shell == "zsh":
            said.append(_changed_zshrc())
    except OSError as error:
        raise DragomanError(f"{error.filename or file} cannot be written: {error.strerror or error}") from None
    return said


_BASH_COMPLETION = (
    "/usr/share/bash-completion/bash_completion",
    "/usr/local/share/bash-completion/bash_completion",
    "/opt/homebrew/share/bash-completion/bash_completion",
    "/opt/homebrew/etc/profile.d/bash_completion.sh",
    "/usr/local/etc/profile.d/bash_completion.sh",
)


def _changed_zshrc() -> str:
    """Have zsh look into ~/.zfunc, which it does not by itself. Return what was done."""
    file = expand_user(os.environ.get("ZDOTDIR") or "~") / ".zshrc"
    before = file.read_text(encoding="utf-8", errors="surrogateescape") if file.is_file() else ""
    if "zfunc" in before:
        return f"{file} names ~/.zfunc already. It works in new shells."
    # Added, not written anew: a full disk would take what is there.
    with file.open("a", encoding="utf-8") as opened:
        opened.write(_ZSHRC if not before or before.endswith("\n") else f"\n{_ZSHRC}")
    return f"Three lines were added to {file}. It works in new shells."


def _data_folder() -> Path:
    return expand_user(os.environ.get("XDG_DATA_HOME") or "~/.local/share")


def _shell_of(path: str) -> Shell:
    name = os.path.basename(path)
    for shell in SCRIPTS:
        if name == shell:
            return shell
    raise DragomanError(f"which shell is it? Name one of {', '.join(SCRIPTS)} ($SHELL is {path or 'not set'})")
