"""What can be seen of a training script's defects while it runs."""

from __future__ import annotations

from enum import Enum


class Observed(str, Enum):
    """An observation of a run. A rule says which of them are its defect, so that what judges a run names no rule."""

    # The size of the update.
    WEIGHTS = "targets of one update weigh differently"
    UNDIVIDED = "the update is as many times too large as the window has micro-batches"
    DIVIDED_TWICE = "the update is as many times too small as the window has micro-batches"
    OTHER_DIVISOR = "the update is divided by another number than the window's micro-batches"
    SUMMED = "the update is a sum over targets"
    COUNT_NOT_GLOBAL = "targets weigh differently, as they are counted per micro-batch or per rank"
    WORLD_FACTOR = "the update is as many times too large or too small as there are ranks"
    PADDING_COUNTED = "the update is divided by a number that counts ignored targets, too"
    COUNT_RUNS_ON = "the update is divided by a number that grows from window to window"
    # Scaling and clipping.
    CLIPPED_SCALED = "gradients are clipped while they are scaled"
    CLIPPED_EARLY = "gradients are clipped before the window is complete"
    CLIPPED_LATE = "gradients are clipped after they were applied"
    UNSCALED_EARLY = "gradients are unscaled before the window is complete, or twice"
    UPDATE_MISSING = "the scale is not updated between two steps"
    UPDATE_MISPLACED = "the scale is updated while a window is open"
    STEPPED_SCALED = "the optimizer steps past the scaler"
    OVERFLOW_UNHEARD = "gradients that are no numbers are cleared before the scaler hears of them"
    KEPT_AFTER_SKIP = "gradients that are no numbers stay after a step that was left out"
    # Ranks.
    REDUCED_EACH_TIME = "gradients are reduced on every micro-batch"
    UNSYNCED = "ranks apply different gradients: the last micro-batch was not reduced"
    ARMED_FORWARD = "only the backward is inside no_sync"
    FLAG_LATE = "ranks apply different gradients: the flag was set after the forward"
    BYPASSED = "ranks apply different gradients: the forward went past DDP"
    UNWRAPPED = "ranks apply different gradients: nothing reduces them"
    LOSS_REDUCED = "a loss is reduced that goes backward"
    GRADIENT_SUMMED = "gradients are summed over ranks and not divided"
    SHARDS_UNSYNCED = "FSDP does not reduce the gradients that are applied"
    # What is not reset.
    NEVER_CLEARED = "gradients are never cleared"
    CLEARED_INSIDE = "gradients are cleared before the window is complete"
    CLEARED_BEFORE_STEP = "gradients are cleared before they are applied"
    TOTAL_ATTACHED = "a variable holds the graphs of micro-batches"
    # Windows and schedules.
    LEFT_OVER = "a partial window is lost, or applied in the next epoch"
    PARTIAL_DIVIDED = "a partial window is divided as if it were whole"
    SKIPPED = "a window lacks a micro-batch that was drawn for it, and is divided as if it had it"
    OFF_BY_ONE = "the first window has another size than the others"
    STEPPED_EACH_TIME = "the optimizer steps on every micro-batch of what it divides for"
    NEVER_STEPPED = "gradients are accumulated and never applied"
    SCHEDULED_EACH_TIME = "the schedule moves on every micro-batch"
    AVERAGED_EACH_TIME = "the average of the weights moves on every micro-batch"
    # Frameworks.
    TRAINER_UNDIVIDED = "the Trainer leaves the division to a loss that does not divide"
    PAST_ACCELERATE = "a backward goes past Accelerate"
    ACCUMULATE_UNUSED = "Accelerate is told of a window that it does not make"
    UNPREPARED = "an optimizer steps past Accelerate"
    ENGINE_BOUNDARY = "an engine that counts micro-batches itself is stepped at the boundary only"
    LIGHTNING_DIVIDED = "Lightning's own division meets another one, or none"
