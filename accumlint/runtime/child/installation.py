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
    made = Recorder(options)
    RECORDERS.append(made)
    for part in (criteria, backwards, steps, scalers, loaders, ranks, averages):
        part.observe(made)
    importing.watch(torch=False)
    atexit.register(made.finish, "ended")
    made.patches.undo_by(lambda: atexit.unregister(made.finish))
    made.patches.undo_by(RECORDERS.clear)
    return made
