"""Installs the observers after torch has been imported."""

from __future__ import annotations

import atexit
import json
import os
from typing import Any

from accumlint.runtime.child.current import RECORDERS
from accumlint.runtime.child.recorder import Recorder, WatchOptions


def observe(_: Any) -> None:
    """Observes torch as the environment variable requests."""
    start(WatchOptions(**json.loads(os.environ["ACCUMLINT_RUN"])))


def start(options: WatchOptions) -> Recorder:
    """Observes torch from now on."""
    made = Recorder(options)
    install(made)
    return made


def install(recorder: Recorder) -> None:
    """Installs the observers of a recorder, also after a rest."""
    from accumlint.runtime.child import (
        averages,
        backwards,
        criteria,
        importing,
        loaders,
        ranks,
        scalers,
        steps,
    )

    if RECORDERS:
        raise RuntimeError("torch is observed already")
    RECORDERS.append(recorder)
    for part in (criteria, backwards, steps, scalers, loaders, ranks, averages):
        part.observe(recorder)
    importing.watch(torch=False)
    recorder.patches.undo_by(importing.forget)
    atexit.register(recorder.finish, "ended")
    recorder.patches.undo_by(lambda: atexit.unregister(recorder.finish))
    recorder.patches.undo_by(RECORDERS.clear)
