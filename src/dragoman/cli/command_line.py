"""Commands of settings structs: a command is a function whose parameters are such structs.

``CommandLine`` spreads the fields of the structs (``options``) into one flat signature for typer and gathers the parsed
values back.

A value is taken from the command line, else from ``DRAGOMAN_<NAME>``, else from the configuration file, else it is the
default.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import re
import select
import typing
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
import typer
import typer.core
import typer.main

from dragoman.cli import configuration, console
from dragoman.cli.options import BY_FLAG, Option, Settings, options_of
from dragoman.core.errors import DragomanError
from dragoman.core.sampling import MAX_INTEGER

EPILOG = (
    "Each option may also be given as a variable (--max-context: DRAGOMAN_MAX_CONTEXT) or in a TOML file "
    "(max_context = 4096). The command line wins over the variable, the variable over the file."
)

NO_MEMORY = "the system gives this process no more memory: free some, or raise its limit (ulimit -v, MemoryMax=)"
NO_PROCESSES = (
    "the system lets this process start no more threads and processes: raise its limit of processes or of memory "
    "(ulimit -u, ulimit -v, TasksMax= of a systemd unit)"
)
NO_FILES = "too many files are open: raise the limit (ulimit -n, LimitNOFILE= of a systemd unit)"
NO_UTF_8_TEXT = "this is not UTF-8: choose another text, or a locale with UTF-8 (LC_ALL=C.UTF-8)"
NO_NAME = "this is empty: name something, or leave the option out"
NO_UTF_8 = "a path or another text is not UTF-8: choose another one, or a locale with UTF-8 (LC_ALL=C.UTF-8)"
NO_SPACE = "there is no space left on the disk that this is written to"
REMEDIES = {
    errno.EAGAIN: NO_PROCESSES,
    errno.ENOMEM: NO_MEMORY,
    errno.EMFILE: NO_FILES,
    errno.ENFILE: NO_FILES,
    errno.ENOSPC: NO_SPACE,
}
"""What is said of errors that say nothing of their remedy, by their number."""

_HELP = {"help_option_names": ["-h", "--help"]}
_GIVEN = "dragoman.given"
_FILE = "dragoman.configuration_file"
_UNKNOWN = "dragoman.unknown_variables"
_SOURCES = "dragoman.sources"


_UsageError = typing.cast("type[typer.BadParameter]", typer.BadParameter.__base__)


class _Command(typer.core.TyperCommand):
    """Notes the command line's options before any is processed: which other sources are read may depend on them.

    ``elsewhere``: returns, of the arguments and an unknown option, what to say in place of similar names.
    """

    elsewhere: Callable[[Sequence[str], str], str | None] | None = None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = tuple(args)  # parsing takes them from the list
        if not ctx.resilient_parsing:
            with contextlib.suppress(Exception):  # errors are reported below
                ctx.meta[_GIVEN] = self.make_parser(ctx).parse_args(args=list(given))[0]
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            # Typer checks values with pydantic, which puts the exception's kind before the text.
            error.message = error.message.removeprefix("Value error, ")
            raise
        except _UsageError as error:
            unknown = getattr(error, "option_name", None) if hasattr(error, "possibilities") else None
            said = self.elsewhere(given, unknown) if self.elsewhere is not None and unknown else None
            if said is not None:
                error.message = f"No such option. {said}"
                vars(error)["possibilities"] = None
            raise


class _Later(typer.core.TyperCommand):
    """Stands for a command in the list of all: its parameters are made when it is run, or its help is shown. Those
    of all commands take 50 ms."""

    made: Callable[[], Any]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.made().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        return ctx.command.invoke(ctx)


class Given(frozenset[str]):
    """Names of the options that the command line itself gives: the value of a command's parameter of this type."""


def configuration_notes(context: typer.Context) -> tuple[str, ...]:
    """Return the notes on a command's configuration: a sentence that names its file, where there is one, and one for
    each variable that looks like one of ours and is not."""
    file: configuration.ConfigurationFile | None = context.meta.get(_FILE)
    note = (file.note,) if file is not None and file.note else ()
    return (*note, *context.meta.get(_UNKNOWN, ()))


class CommandLine:
    """A typer application whose commands are functions of settings structs.

    ``commands`` lists every command with its options, those of sub-groups included: they are the keys of a
    configuration file and the source of the documentation. ``omitted``: by struct, the fields that are no options.
    ``borrowed``: returns, for the values set otherwise, the texts of other servers' variables, by option.
    """

    def __init__(
        self,
        help: str,
        *,
        omitted: Mapping[Settings, Container[str]] = MappingProxyType({}),
        borrowed: Callable[[Mapping[str, Any]], Mapping[str, str]] = lambda settled: {},
    ) -> None:
        self.typer = typer.Typer(
            help=help,
            no_args_is_help=True,
            add_completion=False,
            pretty_exceptions_enable=False,
            context_settings=_HELP,
        )
        self.commands: dict[str, tuple[Option, ...]] = {}
        self._omitted, self._borrowed = omitted, borrowed
        self._above = ""

    def group(self, name: str, help: str) -> CommandLine:
        """Add a command that has subcommands."""
        inner = CommandLine(help, omitted=self._omitted, borrowed=self._borrowed)
        inner.commands, inner._above = self.commands, f"{self._above}{name} "
        self.typer.add_typer(inner.typer, name=name, context_settings=_HELP)
        return inner

    def command(
        self,
        body: Callable[..., None],
        *,
        name: str | None = None,
        more: Mapping[str, Settings] = MappingProxyType({}),
        spellings: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        borrowed: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None,
        common: Container[str] | None = None,
        help: str | None = None,
        elsewhere: Callable[[Sequence[str], str], str | None] | None = None,
    ) -> Callable[..., None]:
        """Register the function under its own (or another) name.

        Each of its parameters is a settings struct, also those of ``more``, which it takes by keyword, or ``Given``, or
        the ``typer.Context``; its docstring is the help. An exception ends the command with one line and exit code 1,
        or with its traceback under ``--debug``.
        ``spellings``: by option, more flags by which this command knows it. ``borrowed``: as for the whole, for this.
        ``common``: the options that ``--help`` shows, each with the first clause of its help, where it does not show
        all; ``--help-all`` does then. ``help``: in place of the docstring. ``elsewhere``: returns, of the arguments and
        an option that there is not, the sentence about where it is known.

        Raises ValueError when two of the structs have a field of the same name.
        """
        name = name or body.__name__
        signature = inspect.signature(body, eval_str=True).parameters.values()
        own = {p.name: p.annotation for p in signature if p.kind is not inspect.Parameter.VAR_KEYWORD}
        passed = {name: kind for name, kind in own.items() if kind in (Given, typer.Context)}
        wanted: dict[str, Settings] = {n: struct for n, struct in {**own, **more}.items() if n not in passed}
        groups = {
            parameter: (
                struct,
                tuple(
                    msgspec.structs.replace(option, also=spellings.get(option.name, ()))
                    for option in options_of(struct, self._omitted.get(struct, ()))
                ),
            )
            for parameter, struct in wanted.items()
        }

        def run(
            context: typer.Context, config: Path | None, debug: bool, help_all: bool = False, **values: Any
        ) -> None:
            for option in options:
                if option.twin is not None:
                    values[option.name] = _one_of_twins(context, option, values)
            given = Given(
                name.removesuffix(BY_FLAG) for name in context.meta.get(_GIVEN, ()) if _is_given(context, name)
            )
            if typer.Context not in passed.values():  # a command that takes the context shows the notes itself later
                console.remarks(configuration_notes(context))
            others = {name: given if kind is Given else context for name, kind in passed.items()}
            sources = {
                name: source
                for name, source in context.meta.get(_SOURCES, {}).items()
                if name in values and not _is_given(context, name)
            }
            try:
                settings = {p: _gather(struct, own, values, sources) for p, (struct, own) in groups.items()}
                body(**others, **settings)
            except (typer.Exit, typer.Abort, typer.BadParameter):
                raise
            except Exception as error:
                if isinstance(error, BrokenPipeError) and _nobody_reads():
                    raise typer.Exit(1) from None
                if debug:
                    raise
                console.error(told(error))
                raise typer.Exit(1) from None

        options = [option for _, group in groups.values() for option in group]
        twice = sorted(name for name, count in Counter(option.name for option in options).items() if count > 1)
        if twice:
            raise ValueError(f"{name}: two options are called {', '.join(twice)}")
        options.sort(key=lambda option: not option.positional)
        run.__doc__ = help or body.__doc__
        self.commands[self._above + name] = tuple(options)

        shown = common or ()

        def made(*, shows_all: bool = common is None) -> Any:
            parameters = [
                _parameter(
                    option, hidden=not (shows_all or option.positional or option.name in shown), brief=not shows_all
                )
                for option in options
            ]
            parameters += [_twin(option, hidden=not shows_all) for option in options if option.twin is not None]
            parameters += self._universal(borrowed or self._borrowed)
            if common is not None:
                parameters.append(_help_all(lambda: made(shows_all=True)))
            run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            epilog = _epilog(options)
            if common is not None and not shows_all:
                epilog = f"--help-all lists all options. {epilog or ''}"
            kind = type("_Command", (_Command,), {"elsewhere": staticmethod(elsewhere) if elsewhere else None})
            alone.command(name, cls=kind, epilog=epilog, context_settings=_HELP)(run)
            return typer.main.get_command(alone)

        later = type("_Later", (_Later,), {"made": staticmethod(made)})
        self.typer.command(name, cls=later)(_described_by(help or body.__doc__))
        return body

    def configurable(self) -> dict[str, Option]:
        """Return, by name, every option that a variable or a configuration file may set."""
        return {o.name: o for options in self.commands.values() for o in options if o.configurable}

    def _universal(self, borrowed: Callable[[Mapping[str, Any]], Mapping[str, str]]) -> tuple[inspect.Parameter, ...]:
        """Return the context, ``--config`` and ``--debug``. ``--config`` runs before all others, for click reads
        from ``default_map`` the options they do not set."""

        def read(context: typer.Context, path: Path | None) -> Path | None:
            if not context.resilient_parsing:
                try:
                    known = self.configurable()
                    own = {parameter.name for parameter in context.command.params}
                    if path is None and not own & known.keys():
                        return path  # nothing can be set: a file that cannot be read is no hindrance
                    file, set_by_us = configuration.load(path, known), configuration.from_environment(known)
                    written = file.values
                    context.meta[_FILE] = file
                    context.meta[_UNKNOWN] = configuration.unknown_variables(known, os.environ)
                    settled = {**written, **set_by_us, **context.meta.get(_GIVEN, {})}
                    texts = borrowed({name: value for name, value in settled.items() if name in own})
                    others = getattr(texts, "variables", {})
                    found = configuration.from_texts(
                        {n: t for n, t in texts.items() if n in own}, known, variables=others
                    )
                    context.default_map = {**written, **found, **set_by_us}
                    context.meta[_SOURCES] = {
                        **dict.fromkeys(written, str(file.path)),
                        **{name: others.get(name, name.upper()) for name in found},
                        **{name: known[name].variable for name in set_by_us},
                    }
                except DragomanError as error:
                    raise typer.BadParameter(error.message, param_hint="the configuration") from None
            return path

        config = typer.Option(
            help="TOML file of options. Without it: ./dragoman.toml, then ~/.config/dragoman/config.toml.",
            envvar="DRAGOMAN_CONFIG",
            metavar="FILE",
            is_eager=True,
            callback=read,
        )
        debug = typer.Option("--debug", help="Show the traceback of an error.", envvar="DRAGOMAN_DEBUG")
        kind = inspect.Parameter.KEYWORD_ONLY
        return (
            inspect.Parameter("context", kind, annotation=typer.Context),
            inspect.Parameter("config", kind, default=None, annotation=Annotated[Path | None, config]),
            inspect.Parameter("debug", kind, default=False, annotation=Annotated[bool, debug]),
        )


def _epilog(options: Iterable[Option]) -> str | None:
    """Return how else the options may be given, as far as they may."""
    named = [option.configurable for option in options if not option.positional]
    if not any(named):
        return None
    return EPILOG if all(named) else EPILOG.replace("Each option", "Most options", 1)


def _nobody_reads() -> bool:
    """Return whether the reader of standard output has left (`| head`), which needs no words. What is still to be
    written then goes nowhere, or the interpreter would complain at its end."""
    output = select.poll()
    output.register(1, 0)
    if not any(event & select.POLLERR for _, event in output.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return True


def told(error: Exception) -> str:
    """Return the message of an error for the user: that of one of ours, with the file of one of the system's."""
    if isinstance(error, DragomanError):
        return error.message
    if isinstance(error, MemoryError):
        return NO_MEMORY
    if isinstance(error, OSError) and error.strerror:
        named = "" if error.filename is None else f"{error.filename}: "
        return named + REMEDIES.get(error.errno or 0, f"{error.strerror} (--debug tells more)")
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return NO_PROCESSES
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return NO_UTF_8  # without the text, which may be a secret
    return f"{type(error).__name__}: {error} (--debug tells more)"


def _described_by(help: str | None) -> Callable[[], None]:
    def described() -> None:
        pass

    described.__doc__ = help
    return described


def _help_all(made: Callable[[], Any]) -> inspect.Parameter:
    """Return ``--help-all``, which shows the help of the command that is ``made`` with every option."""

    def show(context: typer.Context, value: bool) -> bool:
        if value and not context.resilient_parsing:
            command = made()
            with command.context_class(command, info_name=context.info_name, parent=context.parent) as inner:
                typer.echo(command.get_help(inner))
            raise typer.Exit
        return value

    option = typer.Option("--help-all", help="Show every option, and exit.", is_eager=True, callback=show)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter("help_all", kind, default=False, annotation=Annotated[bool, option])


def _is_given(context: typer.Context, name: str) -> bool:
    """Return whether the command line itself gives the argument: a parser lists arguments that are left out, too."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _twin(option: Option, *, hidden: bool) -> inspect.Parameter:
    """Return the flag by which an argument may be given too."""
    info = typer.Option(
        option.twin, help=f"The same as {option.flag}.", rich_help_panel=option.panel, metavar="TEXT", hidden=hidden
    )
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(option.twin_name, kind, default=None, annotation=Annotated[str | None, info])


def _one_of_twins(context: typer.Context, option: Option, values: dict[str, Any]) -> Any:
    """Return the value of an argument that may be given by its flag too. Raises BadParameter where the two differ."""
    by_flag, value = values.pop(option.twin_name), values[option.name]
    if by_flag is None:
        if value is None and option.required:
            raise typer.BadParameter(f"give {option.flag}, or {option.twin}", param_hint=option.flag)
        return value
    source = context.get_parameter_source(option.name)
    if source is not None and source.name == "COMMANDLINE" and value not in (None, by_flag):
        raise typer.BadParameter(f"{by_flag}, but {option.flag} is {value}", param_hint=option.twin)
    return by_flag


def _gather(struct: Settings, options: tuple[Option, ...], values: dict[str, Any], sources: Mapping[str, str]) -> Any:
    """Return the settings. ``sources``: the variables or files that have set what the command line has not. Raises
    BadParameter, which names them."""

    def refused(what: str, name: str, hint: str) -> typer.BadParameter:
        return typer.BadParameter(f"{what} (from {sources[name]})" if name in sources else what, param_hint=hint)

    given = {o.name: tuple(v) if isinstance(v := values[o.name], list) else v for o in options}
    for option in options:
        value = given[option.name]
        texts = value if isinstance(value, tuple) else (value,)
        if not option.is_file:
            if not all(map(_is_utf_8, texts)):
                raise refused(NO_UTF_8_TEXT, option.name, option.flag)
        elif "" in texts and value != option.default:  # of a shell's variable that is not set; "" is the working folder
            raise refused(NO_NAME, option.name, option.flag)
        if isinstance(value, int) and value > MAX_INTEGER:
            raise refused(f"Expected `int` <= {MAX_INTEGER}", option.name, option.flag)
    try:
        return msgspec.convert(given, struct)
    except msgspec.ValidationError as error:
        # "Expected `int` >= 1 - at `$.threads`": the name first, in the user's spelling.
        what, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`")
        also = next((option.also for option in options if option.name == name), ())
        hint = " / ".join(("--" + name.replace("_", "-"), *also))
        raise refused(what, name.partition("[")[0], hint) from None


def _is_utf_8(value: object) -> bool:
    """Return False for a text with bytes that are no UTF-8, which Python has as surrogates."""
    return not isinstance(value, str) or not any("\ud800" <= char <= "\udfff" for char in value)


def _parameter(option: Option, *, hidden: bool = False, brief: bool = False) -> inspect.Parameter:
    annotation = option.annotation
    required = option.required and option.twin is None
    if option.required and not required:
        annotation = annotation | None
    if typing.get_origin(annotation) is tuple:
        annotation = list[typing.get_args(annotation)[0]]  # type: ignore[misc]
    help = _sentence(option.help)
    common: dict[str, Any] = {"help": _first_clause(help) if brief else help, "rich_help_panel": option.panel}
    if option.positional:
        info: Any = typer.Argument(**common, metavar=option.flag)
    else:
        names = (option.flag, *option.also)
        flags = [f"{name}/--no-{name[2:]}" if annotation is bool and name[1] == "-" else name for name in names]
        if option.short is not None:
            flags.insert(0, f"{option.short}/" if annotation is bool else option.short)
        info = typer.Option(
            *flags,
            **common,
            metavar=_metavar(annotation),
            show_default=option.default not in (None, ()),
            hidden=hidden,
        )
    default = list(option.default) if isinstance(option.default, tuple) else option.default
    if option.required and not required:
        default = None
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else default,
        annotation=Annotated[annotation, info],
    )


def _metavar(annotation: Any) -> str | None:
    """Return the placeholder of the value in the help; None leaves it to typer, which lists choices."""
    kinds = {annotation, *typing.get_args(annotation)}
    if any(typing.get_origin(kind) is typing.Literal for kind in kinds):
        return None
    return "N" if int in kinds else "X" if float in kinds else "" if bool in kinds else "TEXT"


def _sentence(help: str) -> str:
    """Return the text with a capital, unless it begins with a value's name, as in ``copy: ...``."""
    return help if help.split(" ")[0].endswith(":") else help[:1].upper() + help[1:]


def _first_clause(help: str) -> str:
    """Return the help up to its first semicolon, or the end of its first sentence."""
    return re.split(r"; |(?<=[a-z)])\. ", help, maxsplit=1)[0].rstrip(".") + "."
