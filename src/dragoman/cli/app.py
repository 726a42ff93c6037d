"""All commands in one place. Heavy modules are imported by the command that needs them, when it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

import dragoman
from dragoman.cli import adapters as adapter_commands
from dragoman.cli import cache as cache_commands
from dragoman.cli import cluster as cluster_commands
from dragoman.cli import (
    common_options,
    locallab_config,
    locallab_start,
    machine_info,
    model_search,
    models,
    resident_models,
    served,
    suggest,
)
from dragoman.cli.command_line import CommandLine, Given, configuration_notes
from dragoman.cli.completion import answer_shell, completion
from dragoman.cli.doctor import doctor
from dragoman.cli.env_compat import borrowed, chat_variables, useless
from dragoman.cli.keys import keys
from dragoman.cli.locallab_start import StartSettings
from dragoman.cli.other_servers import here_instead
from dragoman.cli.output_format import StructureSettings
from dragoman.cli.pack import pack
from dragoman.cli.plan import plan
from dragoman.cli.serve import serve as run_server
from dragoman.cli.serve_settings import GROUPS, settings_of
from dragoman.cli.settings import (
    OMITTED,
    BenchSettings,
    ChatSettings,
    CompareOptions,
    ExplainOptions,
    MachineSettings,
    ModelChoice,
    ModelOption,
    PromptSettings,
    RemoteSettings,
    ReplayOptions,
    RunSettings,
    SamplingSettings,
    TopOptions,
)
from dragoman.cli.tgi_launcher import LauncherSettings, prespawned
from dragoman.cli.usage import usage
from dragoman.core.errors import DragomanError
from dragoman.dialects import REGISTRY
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.engine.settings import SchedulerSettings
from dragoman.models.settings import ModelSettings
from dragoman.server.settings import ServerSettings

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from dragoman.cli.session import LocalSession, RemoteSession


__all__ = ["answer_shell", "cli"]


def _borrowed(settled: Mapping[str, Any]) -> Mapping[str, str]:
    return borrowed(settled.get("dialect"), os.environ)


cli = CommandLine(
    "Run language models without a GPU: a server that speaks OpenAI's API and eight others, and chats in the terminal.",
    omitted=OMITTED,
    borrowed=_borrowed,
)


@cli.typer.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(dragoman.__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def serve(context: typer.Context, **groups: Any) -> None:
    """Serve a model over HTTP."""
    launcher = groups.pop("launcher")
    settings, notes = prespawned(launcher, settings_of(groups))
    useless_variables = useless(settings.server.dialect, os.environ)
    run_server(settings, context.obj, (*configuration_notes(context), *notes, *useless_variables))


_DIALECTS: dict[str, type[msgspec.Struct]] = {each.name: each.settings_type for each in REGISTRY}
cli.command(
    serve,
    more={**GROUPS, "launcher": LauncherSettings, **_DIALECTS},
    common=common_options.SERVE,
    elsewhere=here_instead,
)


def start(context: typer.Context, given: Given, choice: ModelChoice, asked: StartSettings, **groups: Any) -> None:
    """Serve a model to LocalLab's clients: serve --dialect locallab, with the options of LocalLab's own start."""
    settings = settings_of({**groups, "choice": choice})
    model, notes = locallab_start.started(asked, settings.model)
    if settings.server.dialect not in (ServerSettings().dialect, locallab_start.DIALECT):
        other = settings.server.dialect
        raise DragomanError(f"--dialect {other}: start always means LocalLab's; `dragoman serve` takes others")
    own = settings.dialects[locallab_start.DIALECT]
    assert isinstance(own, LocalLabSettings)
    notes += locallab_start.without_effect(os.environ, own.locallab_folder)
    not_saved = locallab_start.save_given(given, (choice, asked, *groups.values()), own.locallab_folder)
    notes = notes if not_saved is None else (*notes, not_saved)
    server = msgspec.structs.replace(settings.server, dialect=locallab_start.DIALECT)
    run_server(
        msgspec.structs.replace(settings, model=model, server=server),
        context.obj,
        (*configuration_notes(context), *notes),
    )


def _started(settled: Mapping[str, Any]) -> Mapping[str, str]:
    folder = settled.get("locallab_folder") or LocalLabSettings().locallab_folder
    return locallab_start.texts_by_option(os.environ, str(folder))


# LocalLab's own contract says how it samples: there --temperature is --locallab-temperature.
_AFTER_CHOICE = {name: group for name, group in GROUPS.items() if name not in ("choice", "sampling")}
cli.command(
    start,
    more={**_AFTER_CHOICE, **_DIALECTS},
    spellings=locallab_start.SPELLINGS,
    borrowed=_started,
    common=common_options.START,
)
cli.command(locallab_config.config)


def chat(
    choice: ModelChoice,
    remote: RemoteSettings,
    conversation: ChatSettings,
    sampling: SamplingSettings,
    settings: ModelSettings,
    machine: MachineSettings,
) -> None:
    """Talk with a model in the terminal. Ctrl-C stops the answer, /exit leaves."""
    from dragoman.cli.chat import chat_with
    from dragoman.llm.loop_thread import loop_thread

    with loop_thread() as loop:
        own_session = partial(_session, choice.model, remote, settings, machine)
        code = chat_with(choice.model, remote, own_session, sampling, conversation, loop)
    raise typer.Exit(code)


# LocalLab's spellings too.
_CHAT = {
    "url": ("-u",),
    "generate": ("-g",),
    "max_new_tokens": ("-m", "--max-tokens"),
    "temperature": ("-t",),
    "top_p": ("-p",),
    "verbose": ("-v", "--stats"),
}


def _as_locallabs_chat(settled: Mapping[str, Any]) -> Mapping[str, str]:
    return chat_variables(os.environ) if "generate" in settled else {}


cli.command(chat, spellings=_CHAT, borrowed=_as_locallabs_chat, common=common_options.TALK)


def run(
    choice: ModelChoice,
    question: RunSettings,
    remote: RemoteSettings,
    conversation: ChatSettings,
    sampling: SamplingSettings,
    settings: ModelSettings,
    machine: MachineSettings,
) -> None:
    """Download a model where it is not here, load it and talk with it; with a prompt, or in a pipe, answer once."""
    from dragoman.cli.chat import chat_with
    from dragoman.cli.run import answer, images_of, question_of
    from dragoman.llm.loop_thread import loop_thread

    asked = question_of(question.prompt)
    if asked == "":
        raise DragomanError("there is nothing to answer: standard input is empty, and no prompt was given")
    images = [] if asked is None else images_of(conversation.image)
    own_session = partial(_session, choice.model, remote, settings, machine)
    with loop_thread() as loop:
        if asked is not None:
            with loop.hold(own_session()) as session:
                answer(session, asked, images, conversation.system, sampling, loop)
            return
        code = chat_with(choice.model, remote, own_session, sampling, conversation, loop)
    raise typer.Exit(code)


cli.command(run, spellings={"verbose": ("--stats",)}, common=common_options.TALK)


def generate(
    prompt: PromptSettings,
    choice: ModelOption,
    remote: RemoteSettings,
    structure: StructureSettings,
    sampling: SamplingSettings,
    settings: ModelSettings,
    machine: MachineSettings,
) -> None:
    """Continue a text, written to standard output as it comes."""
    from dragoman.cli.generate import continue_text, read_prompt
    from dragoman.llm.loop_thread import loop_thread

    text, constraint = read_prompt(prompt.prompt), structure.constraint()
    with loop_thread() as loop, loop.hold(_session(choice.model, remote, settings, machine)) as session:
        continue_text(session, text, sampling, loop, constraint)


cli.command(generate, common=common_options.TALK)


def bench(
    choice: ModelChoice,
    remote: RemoteSettings,
    load: BenchSettings,
    settings: ModelSettings,
    machine: MachineSettings,
    scheduling: SchedulerSettings,
) -> None:
    """Measure a model, or a running server: time to first token, time between tokens, tokens per second."""
    import asyncio

    from dragoman.cli.bench_images import bench_session

    async def run() -> None:
        async with _session(choice.model, remote, settings, machine, scheduling) as session:
            await bench_session(session, choice.model, load, settings, machine)

    asyncio.run(run())


cli.command(bench, common=common_options.MEASURE)


def explain(
    asked: ExplainOptions,
    choice: ModelOption,
    remote: RemoteSettings,
    settings: ModelSettings,
    machine: MachineSettings,
) -> None:
    """Say what a request of any dialect would become: its fields, prompt, sampling steps, and the same elsewhere."""
    import asyncio

    from dragoman.cli.explain import explained, parsed_file, print_explanation

    body = parsed_file(asked)
    print_explanation(asyncio.run(explained(_session(choice.model, remote, settings, machine), body)), asked)


cli.command(explain, common=common_options.TALK)


def replay(asked: ReplayOptions, choice: ModelOption, settings: ModelSettings, machine: MachineSettings) -> None:
    """Run recorded generations again, and say whether they are equal, or where and why they differ."""
    import asyncio

    from dragoman.cli.replay import replay as run

    raise typer.Exit(asyncio.run(run(asked, choice.model, settings, machine)))


def compare(
    asked: CompareOptions, sampling: SamplingSettings, settings: ModelSettings, machine: MachineSettings
) -> None:
    """Compare two models, precisions or versions, token by token, on the same prompts."""
    import asyncio

    from dragoman.cli.replay import compare as run

    raise typer.Exit(asyncio.run(run(asked, sampling, settings, machine)))


cli.command(replay, common=common_options.MEASURE)
cli.command(compare, common=common_options.TALK)
cli.command(plan, common=common_options.MEASURE)
cli.command(pack, common=common_options.MEASURE | {"calibrate"})
cli.command(doctor, common=common_options.MEASURE)
cli.command(keys)
cli.command(usage)


def top(asked: TopOptions, server: machine_info.StatusSettings) -> None:
    """Watch a running server: tokens per second, latencies, queue, cache, memory, models, and the use of each key."""
    from dragoman.cli.top import top as watch

    raise typer.Exit(watch(asked, server.address))


cli.command(top)
cli.command(machine_info.status)
cli.command(machine_info.info)
cli.command(machine_info.version)
cli.command(completion)

_adapters = cli.group("adapters", "List, load and unload the adapters of a running server.")
_adapters.command(adapter_commands.list_adapters, name="list")
_adapters.command(adapter_commands.load)
_adapters.command(adapter_commands.unload)

_cache = cli.group("cache", "List, check and remove the prompts that are cached on disk.")
_cache.command(cache_commands.list_cache, name="list")
_cache.command(cache_commands.clear)
_cache.command(cache_commands.verify)

_cluster = cli.group("cluster", "Serve with several servers behind one port, on Ray Serve.")
_cluster.command(cluster_commands.serve)

_models = cli.group("models", "List, find, download and delete models.")
_models.command(models.list_models, name="list")
_models.command(models.pull)
_models.command(models.download)
_models.command(models.info)
_models.command(models.remove, spellings={"yes": ("--force",)})
_models.command(models.clean)
_models.command(resident_models.ps)
_models.command(resident_models.load)
_models.command(resident_models.unload)
_models.command(resident_models.pin)
_models.command(model_search.discover)
_models.command(suggest.suggest)

# Shorter names that newcomers type.
cli.command(models.pull, help="Download a model from the hub: the same as `models pull`.")
cli.command(models.list_models, name="list", help="List the models on this machine: the same as `models list`.")
cli.command(models.info, name="show", help="Show what is known of a model: the same as `models info`.")
cli.command(
    models.remove, name="rm", spellings={"yes": ("--force",)}, help="Delete a model: the same as `models remove`."
)
cli.command(served.ps)
cli.command(served.stop)


def _session(
    model: str | None,
    asked: RemoteSettings,
    settings: ModelSettings,
    machine: MachineSettings,
    scheduling: SchedulerSettings = SchedulerSettings(),  # noqa: B008 (frozen)
) -> AbstractAsyncContextManager[LocalSession | RemoteSession]:
    """Return the session with the server of the options; without one, with the command's own engine."""
    if asked.url is not None:
        from dragoman.cli.session import remote_session

        return remote_session(asked.url, model, next(iter(asked.api_key), ""))
    from dragoman.cli.engine import own_engine

    return own_engine(model, settings, scheduling, machine)
