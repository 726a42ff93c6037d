"""``dragoman pack``: pack a model's weights for the next start, at any precision."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dragoman.cli import console
from dragoman.cli.download_bar import DownloadBar
from dragoman.cli.loading_bar import LoadingBar
from dragoman.cli.settings import ModelChoice
from dragoman.models.settings import ModelSettings

if TYPE_CHECKING:
    from dragoman.models.loading import PackedModel


def pack(choice: ModelChoice, settings: ModelSettings) -> None:
    """Pack a model into the cache, at the precision asked for, so that the next start only has to read it.

    Starting a model packs it too, once for each precision; this does it ahead, and on a machine of its own: the cache
    is a folder of plain files. With --calibrate the weights in int4 are rounded for a text that the model writes.
    """
    from dragoman.models import loading

    started, bar = time.monotonic(), LoadingBar()
    try:
        with DownloadBar() as download:
            packed = loading.pack(choice.model, settings, bar, watcher=download)
    finally:
        bar.close()
    _tell(packed, time.monotonic() - started, settings.calibrate)


def _tell(packed: PackedModel, seconds: float, calibrate: int) -> None:
    from dragoman.models.layout import format_shares, plan_layout

    described, planned = packed.described, packed.planned
    formats = format_shares(plan_layout(described.spec, planned.precision, planned.formats))
    shares = ", ".join(f"{name} {share:.0%}" for name, share in formats.items())
    out = console.output()
    out.print(
        f"{described.source.name}: {described.spec.architecture} at {planned.precision} ({shares} of the numbers), "
        f"{console.size(planned.weight_bytes)}",
        markup=False,
    )
    if calibrate:
        out.print(f"Calibrated on {calibrate} tokens: served with --precision int4 --calibrate {calibrate}")
    if packed.path is None:
        out.print("Too small to be kept: it is packed at each start")
    elif packed.was_there:
        out.print(f"Packed before: {packed.path}", markup=False)
    else:
        out.print(f"Packed in {seconds:.1f} s: {packed.path}", markup=False)
