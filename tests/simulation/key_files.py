"""The file of keys while a server runs: edits of it, and whether the server lets in whom it has to."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.core.caller import Caller, CallerLimits
from dragoman.core.errors import Forbidden, Unauthorized
from dragoman.server.key_file import Key, LimitValue, Scope, hashed
from dragoman.server.keys import LOOK_S, Keyring
from tests.simulation.virtual_time import THREAD_S

if TYPE_CHECKING:
    from tests.simulation.world import World

EDITS = ("remove", "restore", "limits", "limits", "rotate", "expire", "scope", "damage", "lose")
SLACK_S = 2 * THREAD_S + 0.001


@dataclass(frozen=True)
class Line:
    """One key as the simulation knows it."""

    key: str
    name: str
    scopes: tuple[Scope, ...] = ("infer", "admin")
    limits: tuple[tuple[str, LimitValue], ...] = ()
    expires: datetime | None = None

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.key.encode()).hexdigest()

    @property
    def tenant(self) -> str:
        return hashlib.sha256(b"tenant:" + self.digest.encode()).hexdigest()[:32]

    @property
    def text(self) -> str:
        return hashed(self.key, self.name, self.scopes, dict(self.limits), self.expires).line

    @property
    def caller_limits(self) -> CallerLimits:
        return CallerLimits(**dict(self.limits))


class KeyFile:
    """A file of keys with its edits, and what is in force of it when.

    ``in_force``: the lines that the server has, by key, since when; the newest last.
    """

    def __init__(self, world: World, file: Path, lines: Sequence[Line]) -> None:
        self._world = world
        self.file = file
        self._first = tuple(lines)
        self._lines: dict[str, tuple[Line, ...]] = {}
        self._restore()
        self._newest_text = ""
        self._written_s: float | None = None
        """Since when what the server has to have is there; None: it has it."""
        self.in_force: list[tuple[float, dict[str, Line]]] = []
        self.limits_seen: dict[str, list[CallerLimits]] = {}
        self._contents: dict[str, dict[str, Line]] = {}
        self.write()

    def wrong(self, what: str) -> AssertionError:
        return self._world.wrong(what)

    def key(self, holder: str) -> str:
        """The newest key of a holder."""
        return self._lines[holder][-1].key

    def _restore(self) -> None:
        names = dict.fromkeys(line.name for line in self._first)
        self._lines = {name: tuple(line for line in self._first if line.name == name) for name in names}
        self._is_removed: set[str] = set()

    # Edits -----------------------------------------------------------------------------------------------------------

    def edit(self, kind: str, holder: str, limits: Mapping[str, Any], rng: random.Random) -> None:
        lines = self._lines[holder]
        match kind:
            case "remove":
                self._is_removed.add(holder)
            case "restore":
                self._restore()
            case "limits":
                self._lines[holder] = tuple(replace(line, limits=tuple(limits.items())) for line in lines)
            case "rotate":
                new = replace(lines[-1], key=f"{lines[-1].key}+", expires=None)
                self._lines[holder] = (*lines, new) if rng.random() < 0.5 else (new,)
            case "expire":
                end = datetime.fromtimestamp(self._world.wall() + rng.randint(1, 4), UTC).replace(microsecond=0)
                self._lines[holder] = tuple(replace(line, expires=end) for line in lines)
            case "scope":
                self._lines[holder] = tuple(replace(line, scopes=("admin",)) for line in lines)
            case "damage":
                self._put(f"{self._newest_text}\nann infer sha256:{'0' * 63}\n")
                return
            case "lose":
                self.file.unlink(missing_ok=True)
                return
        self.write()

    def write(self) -> None:
        """The file as it has to be, in place of whatever is there."""
        lines = [line for name, those in self._lines.items() if name not in self._is_removed for line in those]
        text = "".join(f"{line.text}\n" for line in lines)
        self._contents[text] = {line.key: line for line in lines}
        self._newest_text = text
        self._put(text)
        if self.in_force:
            is_in_force = self.in_force[-1][1] == self._contents[text]
            self._written_s = None if is_in_force else self._world.loop.time()

    def _put(self, text: str) -> None:
        """By a rename, with a time of the simulated clock: the real one hardly moves."""
        new = self.file.with_suffix(".new")
        new.write_text(text)
        at_ns = int((1e9 + self._world.loop.time()) * 1e9)
        os.utime(new, ns=(at_ns, at_ns))
        new.replace(self.file)

    # What has to be --------------------------------------------------------------------------------------------------

    def taken(self, text: str) -> None:
        """The server has this in force from now on."""
        lines = self._contents.get(text)
        if lines is None:
            raise self._world.wrong("a file that cannot be used was taken")
        self.in_force.append((self._world.loop.time(), lines))
        for line in lines.values():
            self.limits_seen.setdefault(line.name, []).append(line.caller_limits)
        if text == self._newest_text:
            self._written_s = None

    def check_read(self) -> None:
        """What was written is in force after some seconds."""
        if self._written_s is not None and self._world.loop.time() > self._written_s + LOOK_S + SLACK_S:
            is_there = self.file.exists() and self.file.read_text() == self._newest_text
            if is_there:
                raise self._world.wrong(f"the keys written at {self._written_s:.3f} s are not in force")
            self._written_s = None  # another edit has damaged it since

    def line(self, key: str) -> Line | None:
        """That of the key where it is good now."""
        line = self.in_force[-1][1].get(key)
        return None if line is None or self._has_expired(line) else line

    def _has_expired(self, line: Line) -> bool:
        return line.expires is not None and self._world.wall() >= line.expires.timestamp()

    def states(self, key: str, since_s: float, until_s: float) -> set[str]:
        """What the key may have been good for from then until then: "", or its scopes with commas."""
        found: set[str] = set()
        ends = [at for at, _ in self.in_force[1:]] + [until_s]
        for (begin, lines), end in zip(self.in_force, ends, strict=True):
            if begin <= until_s and end >= since_s:
                line = lines.get(key)
                found.add("" if line is None else ",".join(line.scopes))
                if line is not None and line.expires is not None:
                    found.add("")  # the wall clock may be set in between
        return found


class CheckedKeyring(Keyring):
    """The server's keys, every answer of which is compared with the file."""

    def __init__(self, keys: KeyFile) -> None:
        self._checked = keys
        super().__init__(file=keys.file)

    def _take(self, text: str, seen: object) -> None:
        super()._take(text, seen)
        self._checked.taken(text)

    def holder(
        self,
        headers: Mapping[str, str],
        key_headers: Sequence[str],
        scope: Scope,
        subprotocols: Sequence[str] = (),
        queried: str = "",
    ) -> Key:
        line = self._checked.line(_presented(headers))
        try:
            found = super().holder(headers, key_headers, scope, subprotocols, queried)
        except Forbidden:
            if line is None or scope in line.scopes:
                raise self._checked.wrong(f"{line} is good for {scope}") from None
            raise
        if line is None or scope not in line.scopes:
            raise self._checked.wrong(f"{line} is not good for {scope}")
        return found

    def known(
        self,
        headers: Mapping[str, str],
        key_headers: Sequence[str],
        subprotocols: Sequence[str] = (),
        queried: str = "",
    ) -> Key:
        line = self._checked.line(_presented(headers))
        try:
            found = super().known(headers, key_headers, subprotocols, queried)
        except Unauthorized:
            if line is not None:
                raise self._checked.wrong(f"{line} is in force") from None
            raise
        if line is None or (found.name, found.digest, found.scopes) != (line.name, line.digest, line.scopes):
            raise self._checked.wrong(f"{found} was let in by {line}")
        self._check_limits(found.caller("", self.defaults), line)
        return found

    def renewed(self, caller: Caller, scope: Scope) -> Caller:
        lines = [line for line in self._checked.in_force[-1][1].values() if line.tenant == caller.tenant]
        good = [line for line in lines if self._checked.line(line.key) is not None]
        try:
            found = super().renewed(caller, scope)
        except (Unauthorized, Forbidden):
            if good and scope in good[0].scopes:
                raise self._checked.wrong(f"{good} is in force") from None
            raise
        if not good or scope not in good[0].scopes:
            raise self._checked.wrong(f"{caller} goes on without a key that is good for {scope}")
        if not set(found.scopes) <= set(good[0].scopes):
            raise self._checked.wrong(f"{caller} has {found.scopes}, its key {good[0].scopes}")
        self._check_limits(found, good[0])
        return found

    def _check_limits(self, caller: Caller, line: Line) -> None:
        if caller.limits != line.caller_limits:
            raise self._checked.wrong(f"{caller.limits} are the limits of {line}")


def _presented(headers: Mapping[str, str]) -> str:
    return headers.get("authorization", "").removeprefix("Bearer ")


def limits_as_given(limits: CallerLimits) -> dict[str, Any]:
    """Those that differ from the defaults."""
    return {
        name: value for name, value in msgspec.structs.asdict(limits).items() if value != getattr(CallerLimits(), name)
    }
