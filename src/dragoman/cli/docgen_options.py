"""``docs/configuration.md``, generated from the commands' own options: ``python -m dragoman.cli.docgen_options``."""

from __future__ import annotations

import typing
from typing import Any

from dragoman.cli.app import cli
from dragoman.cli.options import Option

HEAD = """\
# Configuration

<!-- Written by `make docs`. Change the settings structs instead: ServerSettings, ModelSettings, SchedulerSettings, and
those of dragoman.cli.settings. -->

Each option has one name and three spellings:

```sh
dragoman serve --max-context 1024             # on the command line
DRAGOMAN_MAX_CONTEXT=1024 dragoman serve      # as a variable; several values are separated by spaces
echo 'max_context = 1024' > dragoman.toml     # in a TOML file; several values are a list
```

The command line wins over the variable, the variable over the file, the file over the default. The file is the one that
`--config` or `DRAGOMAN_CONFIG` names, else `./dragoman.toml`, else `~/.config/dragoman/config.toml`. It is one flat
table; a key that is no option, or a value of another type, is refused by name. In variables `yes` and `on` are true,
`no` and `off` false, as `1` and `0` are. An empty variable counts as none (`DRAGOMAN_URL= dragoman ps` asks this
machine), an empty address on the command line is refused. Each command names the file that it read, unless the user
did. Somebody else may have written the file of a folder: `./dragoman.toml` sets no address, port, key or certificate,
does not say who may come in, and sends nothing elsewhere (`host`, `url`, `engine`, `dialect` …),
unless `--config` names it.

`--help` (`-h`) shows the options that most users want, `--help-all` every one; a model may be given as an argument
and as `--model`. With `--debug` or `DRAGOMAN_DEBUG=1` an error shows its traceback; without, it is one line, and the
exit code is 1 (2 where the command itself was wrong).

`dragoman completion bash --install` (or `zsh`, `fish`; without a name the shell of `$SHELL`) has the Tab key complete
commands, options, their values and names of files, in new shells of this user; without `--install` it prints the
script, for packages and administrators.

| command | is for |
|---|---|
"""


TAIL = """\

## Variables that are no options

| variable | meaning |
|---|---|
| `DRAGOMAN_KERNELS` | the kernels, not the best ones: [their names](operating.md#which-machines-get-which-kernels) |
| `DRAGOMAN_CACHE` | folder of the packed weights' cache, instead of `~/.cache/dragoman` |
| `HF_TOKEN`, `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE` | the hub library's own: token, folders, no network |
"""


def page() -> str:
    """Return the whole page: the commands, then one table for each group of options."""
    commands = {command.name: command for command in cli.typer.registered_commands}
    lines = [HEAD.rstrip("\n")]
    for name in cli.commands:
        if name in commands:
            help = (commands[name].callback.__doc__ or "").split("\n\n")[0]
            lines.append(f"| `dragoman {name}` | {' '.join(help.split())} |")
    lines.append(
        "| `dragoman models` | List, find (`discover`), describe (`info`), download (`pull`, `download`) and delete "
        "(`remove`, `clean`) models of the hub cache. |"
    )
    options: dict[str, Option] = {}
    users: dict[str, list[str]] = {}
    for command, its_options in cli.commands.items():
        for option in its_options:
            if option.configurable:
                options.setdefault(option.name, option)
                users.setdefault(option.name, []).append(command)
    for panel in dict.fromkeys(option.panel for option in options.values()):
        lines += ["", f"## {panel}", "", "| option | value | default | meaning | commands |", "|---|---|---|---|---|"]
        lines += [row(option, users[option.name]) for option in options.values() if option.panel == panel]
    return "\n".join(lines) + "\n" + TAIL


def row(option: Option, commands: list[str]) -> str:
    cells = [f"`{option.flag}`", kind(option.annotation), shown(option.default), option.help, ", ".join(commands)]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def kind(annotation: Any) -> str:
    """Return the option's type in a user's words."""
    sides = [side for side in typing.get_args(annotation) if side is not type(None)]
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(f"`{side}`" for side in sides)
    if typing.get_origin(annotation) is tuple:
        return f"{kind(sides[0])}, several"
    if sides:
        return kind(sides[0])
    return {int: "integer", float: "number", str: "text", bool: "true or false"}[annotation]


def shown(default: Any) -> str:
    if default is None or default == ():
        return ""
    if isinstance(default, tuple):
        return " ".join(f"`{each}`" for each in default)
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


if __name__ == "__main__":
    print(page(), end="")
