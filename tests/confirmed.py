"""Made-up confirmations, one for each kind of claim, with figures as such loops give them."""

from __future__ import annotations

import math
from dataclasses import replace

from passes import PASS, RAISED, SECOND, TOTAL, UPDATE, finding, moments

from accumlint.confirming.result import (
    Control,
    Regime,
    Total,
    Verdict,
)

_LOOP = {"clear": 42, "backward": 44, "step": 46, "schedule": 47}

CLEARED = finding(
    "ACC402",
    "zero-grad-inside-window",
    42,
    "Micro-batches 1 to 3 of every window are cleared before the step: "
    "the applied gradient is off by 0.766 of the large batch's, with cosine 0.883",
    message="the gradients of `optimizer` are cleared inside the window: "
    "`optimizer.step()` applies 1 of 4 micro-batches",
    measured={"error": 0.7662, "cosine": 0.8831, "scale": 0.2346},
    control=Control("The clear was moved in front of the window's first micro-batch", False, 3e-16),
    also=("The scheduler moves once per update, as it should",),
    passes=(
        replace(
            PASS,
            updates=(
                replace(
                    UPDATE,
                    applied=0.0312,
                    error=0.7662,
                    direction=0.1249,
                    cosine=0.8831,
                    scale=0.2346,
                ),
                replace(
                    SECOND,
                    applied=0.0341,
                    error=0.7489,
                    direction=0.1507,
                    cosine=0.8612,
                    scale=0.2687,
                ),
            ),
            moments=moments(
                "1 clear backward 2 clear backward 3 clear backward 4 clear backward step schedule "
                "5 clear backward 6 clear backward 7 clear backward 8 clear backward step schedule",
                _LOOP,
            ),
        ),
        replace(
            PASS,
            regime=Regime.RAGGED,
            updates=(replace(UPDATE, applied=0.044, error=0.81, cosine=0.71, scale=0.31),),
        ),
    ),
)
CLEARED_FIXED = replace(
    CLEARED,
    arm="fixed",
    verdict=Verdict.REFUTED,
    reason="Every micro-batch is applied once: the applied gradient is the large batch's to 3.1e-16",
    measured={"error": 3.1e-16},
    control=Control("A clear was put in front of every backward", True, 0.7662),
    passes=(
        replace(
            PASS,
            moments=moments(
                "1 clear backward 2 backward 3 backward 4 backward step schedule "
                "5 clear backward 6 backward 7 backward 8 backward step schedule",
                _LOOP,
            ),
        ),
        replace(PASS, regime=Regime.RAGGED, updates=(UPDATE,)),
    ),
)
RAGGED = finding(
    "ACC101",
    "mean-loss-not-normalised-by-tokens",
    31,
    "Where the counts differ, a target weighs from 0.47 to 2.35 of what it weighs in the large "
    "batch, and the applied gradient is off by 0.289; with equal counts it is exact",
    measured={"error": 0.289, "least weight": 0.47, "greatest weight": 2.35},
    control=Control("Losses were summed and divided by the window's count", False, 2.5e-16),
    passes=(
        replace(
            PASS,
            regime=Regime.RAGGED,
            ranks=2,
            updates=(
                replace(
                    UPDATE,
                    targets=(6, 30, 12, 8),
                    weights=(2.3333, 0.4667, 1.1667, 1.75),
                    applied=0.1211,
                    error=0.2894,
                    direction=0.2877,
                    cosine=0.9611,
                    scale=0.9932,
                    reductions=1,
                ),
                replace(
                    SECOND,
                    targets=(20, 12, 10, 14),
                    weights=(0.7, 1.1667, 1.4, 1.0),
                    applied=0.1102,
                    error=0.1312,
                    direction=0.131,
                    cosine=0.9915,
                    scale=1.0031,
                    reductions=1,
                ),
            ),
            moments=moments(
                "1 clear backward 2 backward 3 backward 4 backward reduce step schedule "
                "5 clear backward 6 backward 7 backward 8 backward reduce step schedule",
                {"clear": 26, "backward": 31, "step": 34, "schedule": 35},
            ),
        ),
        replace(PASS, ranks=2, updates=(replace(UPDATE, reductions=1),)),
    ),
)
DIVERGING = finding(
    "ACC302",
    "no-sync-wrong-step",
    58,
    "The ranks apply gradients that differ by 0.574 of the large batch's",
    claim="ranks",
    measured={"spread": 0.574, "error": 0.281},
    passes=(
        replace(
            PASS,
            ranks=2,
            updates=(
                replace(
                    UPDATE,
                    applied=0.121,
                    error=0.281,
                    direction=0.264,
                    cosine=0.962,
                    spread=0.574,
                    reductions=3,
                ),
                replace(
                    SECOND,
                    applied=0.1301,
                    error=0.302,
                    direction=0.299,
                    cosine=0.951,
                    spread=0.6117,
                    reductions=3,
                ),
            ),
            moments=moments(
                "1 backward reduce 2 backward reduce 3 backward reduce 4 backward step clear "
                "5 backward reduce 6 backward reduce 7 backward reduce 8 backward step clear",
                {"backward": 58, "step": 60, "clear": 61},
            ),
        ),
    ),
)
TRAILING = finding(
    "ACC501",
    "trailing-window-dropped",
    46,
    "2 micro-batches at the end of each epoch of 6 are never applied",
    claim="coverage",
    measured={"left": 4},
    passes=(
        replace(
            PASS,
            regime=Regime.TRAILING,
            updates=(
                UPDATE,
                replace(SECOND, epoch=2, microbatches=(7, 8, 9, 10)),
            ),
            left=(5, 6, 11, 12),
            moments=moments(
                "1 clear backward 2 backward 3 backward 4 backward step clear 5 backward "
                "6 backward epoch 7 clear backward 8 backward 9 backward 10 backward step clear "
                "11 backward 12 backward epoch",
                _LOOP,
            ),
        ),
    ),
)
COSTLY = finding(
    "ACC301",
    "no-sync-missing",
    44,
    "The ranks reduce gradients 4 times per update where once is enough; the gradient is right",
    claim="communication",
    measured={"all-reduces per update": 4},
    passes=(
        replace(
            PASS,
            ranks=2,
            updates=(replace(UPDATE, reductions=4), replace(SECOND, reductions=4)),
            moments=moments(
                "1 backward reduce 2 backward reduce 3 backward reduce 4 backward reduce step clear "
                "5 backward reduce 6 backward reduce 7 backward reduce 8 backward reduce step clear",
                _LOOP,
            ),
        ),
    ),
)
RAISING = finding(
    "ACC203",
    "unscale-every-microbatch",
    51,
    "The second micro-batch raises: gradients of this optimizer are already unscaled",
    claim="exception",
    passes=(
        replace(
            PASS,
            updates=(),
            raised=RAISED,
            moments=moments(
                "1 backward unscale clip 2 backward unscale", {"backward": 49, "unscale": 51}
            ),
        ),
    ),
)
TOTALLED = finding(
    "ACC405",
    "running-total-attached",
    63,
    "`total` keeps 12 more nodes of the graph with every update",
    claim="memory",
    measured={"nodes per update": 12},
    passes=(
        replace(
            PASS,
            totals=(TOTAL, Total("total", 2, 1, 4.6134, 24)),
            scales=(1024.0, 1024.0),
            pressure=0.0586,
        ),
    ),
)
LEAKING = finding(
    "ACC401",
    "zero-grad-missing",
    46,
    "From the second update on, the gradients of earlier windows are applied again: error 1.07",
    measured={"error": 1.0713},
    passes=(
        replace(
            PASS,
            updates=(
                UPDATE,
                replace(
                    SECOND, applied=0.2204, error=1.0713, direction=0.231, cosine=0.979, scale=1.975
                ),
            ),
            moments=moments(
                "1 backward 2 backward 3 backward 4 backward step "
                "5 backward 6 backward 7 backward 8 backward step",
                _LOOP,
            ),
        ),
    ),
)
UNDIVIDED = finding(
    "ACC102",
    "loss-not-divided",
    44,
    "The applied gradient is the large batch's times K = 4",
    measured={"scale": 4.0, "direction": 2.2e-16},
    passes=(
        replace(
            PASS,
            updates=(
                replace(
                    UPDATE,
                    weights=(4.0,) * 4,
                    applied=0.4688,
                    error=3.0,
                    scale=4.0,
                    factor="K",
                    direction=2e-16,
                ),
                replace(
                    SECOND,
                    weights=(4.0,) * 4,
                    applied=0.4372,
                    error=3.0,
                    scale=4.0,
                    factor="K",
                    direction=2e-16,
                ),
            ),
        ),
    ),
)
HALVED = replace(
    UNDIVIDED,
    reason="The applied gradient is 0.51 times the large batch's",
    passes=(
        replace(
            PASS,
            updates=(replace(UPDATE, applied=0.0586, error=0.5, scale=0.51, direction=1.1e-9),),
        ),
    ),
)
OVERFLOWING = finding(
    "ACC204",
    "scaler-update-missing",
    70,
    "After a gradient that is not finite the scale stays at 1024",
    measured={"scale": 1024.0},
    passes=(
        replace(
            PASS,
            regime=Regime.OVERFLOW,
            updates=(
                UPDATE,
                replace(SECOND, microbatches=(9, 10, 11, 12), applied=math.nan, error=math.inf),
            ),
            scales=(1024.0, 512.0, 512.0),
            moments=moments(
                "1 backward 2 backward 3 backward 4 backward unscale step update clear "
                "5 backward 6 backward 7 backward 8 backward unscale update clear "
                "9 backward 10 backward 11 backward 12 backward unscale step update clear",
                _LOOP,
            ),
        ),
    ),
)
ADVERSARIAL = finding(
    "ACC402",
    "zero-grad-inside-window",
    20,
    "The applied gradients of both optimizers are the large batch's",
    verdict=Verdict.REFUTED,
    passes=(
        replace(
            PASS,
            updates=(
                replace(UPDATE, optimizer="opt_d"),
                replace(UPDATE, number=2, optimizer="opt_g", applied=0.0891, reference=0.0891),
            ),
            moments=moments(
                "1 backward clear backward 2 backward clear backward 3 backward clear backward "
                "4 backward step clear backward step",
                {"clear": 20},
            ),
        ),
    ),
)
HARMLESS = finding(
    "ACC102",
    "loss-not-divided",
    71,
    "The applied gradient is the large batch's to 3.1e-16 in both updates",
    verdict=Verdict.REFUTED,
    measured={"error": 3.1e-16},
    control=Control("The division by the accumulation steps was taken out", True, 4.0),
    passes=(PASS,),
)
UNBOUND = finding(
    "ACC201",
    "clip-before-unscale",
    88,
    "The loop did not run: `rollout` is called and nothing is known to stand in for it",
    verdict=Verdict.UNDECIDED,
    setup='''\
"""What accumlint cannot make up for train.py."""


def setup(rank, world, device):
    return dict(
        rollout=...,  # called at line 81
    )
''',
)
ALL = (
    CLEARED,
    CLEARED_FIXED,
    RAGGED,
    DIVERGING,
    TRAILING,
    COSTLY,
    RAISING,
    TOTALLED,
    LEAKING,
    UNDIVIDED,
    OVERFLOWING,
    ADVERSARIAL,
    HARMLESS,
    UNBOUND,
)
