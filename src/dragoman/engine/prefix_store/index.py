"""The index of the prefix cache on disk: which records of one model there are, and where."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from dragoman.engine.prefix_store.folder import CacheFolder, FolderError
from dragoman.engine.prefix_store.segment import HEAD_BYTES, Record, SegmentError, scan

MOST_RECORDS = 1 << 17
"""Records that the index has at most, of the newest segments: some 40 MB of memory."""


class Location(NamedTuple):
    """Where a record is."""

    segment: str
    at: int
    record: Record


class RecordIndex:
    """The records of one model in the segments of a folder. One thread changes it; any thread may look keys up.

    Args:
        model: the model's digest, as its folder is called.
        row_bytes: by the first byte of a key, the bytes of a row that its record is read into; others are left out.
        report: called with the name of a damaged segment and the reason.
    """

    def __init__(self, model: str, row_bytes: Mapping[int, int], report: Callable[[str, str], None]) -> None:
        self._model, self._row_bytes, self._report = model, row_bytes, report
        self._locations: dict[bytes, Location] = {}
        self._scanned: dict[str, int] = {}
        """Up to where each segment is in the index."""

    def __len__(self) -> int:
        return len(self._locations)

    def __contains__(self, key: bytes) -> bool:
        return key in self._locations

    def find(self, keys: Iterable[bytes]) -> list[Location | None]:
        """Return where the record of each key is; None where there is none."""
        return [self._locations.get(key) for key in keys]

    def records(self, keys: Iterable[bytes]) -> list[Record]:
        """Return the records that there are of these keys."""
        return [location.record for location in self.find(keys) if location is not None]

    def refresh(self, folder: CacheFolder, own: str) -> None:
        """Take over what segments have got since the last time, and forget those that are gone. ``own``: the segment
        that this process writes, whose records are added by ``add``. Raises OSError."""
        segments = {segment.name: segment for segment in folder.segments(self._model)}
        gone = self._scanned.keys() - segments.keys() - {own}
        if gone:
            self.forget(gone)
        for name in sorted(segments, reverse=True):
            if name == own or segments[name].nbytes <= self._scanned.get(name, 0):
                continue
            try:
                file = folder.open_segment(self._model, name)
            except (OSError, FolderError, SegmentError) as error:
                self._report(name, getattr(error, "message", None) or str(error))
                self._scanned[name] = segments[name].nbytes
                continue
            try:
                self._scan(file, name)
            finally:
                os.close(file)

    def _scan(self, file: int, name: str) -> None:
        end = self._scanned.get(name, HEAD_BYTES)
        for at, record in scan(file, end):
            if self._row_bytes.get(record.key[0]) == record.nbytes and len(self._locations) < MOST_RECORDS:
                self._locations.setdefault(record.key, Location(name, at, record))
            end = at + record.stride
        self._scanned[name] = end

    def add(self, location: Location, end: int) -> None:
        """Add a record that this process has written; ``end``: that of its segment."""
        if len(self._locations) < MOST_RECORDS:
            self._locations[location.record.key] = location
        self._scanned[location.segment] = end

    def remove(self, key: bytes) -> None:
        """Forget one record."""
        self._locations.pop(key, None)

    def forget(self, names: Iterable[str]) -> None:
        """Forget the records of these segments."""
        for name in names:
            self._scanned.pop(name, None)
        # Another dictionary, at once: another thread may look keys up now.
        self._locations = {
            key: location for key, location in self._locations.items() if location.segment in self._scanned
        }

    def clear(self) -> None:
        """Forget all records, and from where on segments are new."""
        self._scanned, self._locations = {}, {}
