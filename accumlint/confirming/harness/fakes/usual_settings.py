"""Values of common training settings by name, chosen for runs of a few updates."""

from __future__ import annotations

import re

from accumlint.confirming.harness.fakes.stub import UNKNOWN

# Sizes of the fakes. As many classes as features, so that one model's output fits another's input.
VOCABULARY, LENGTH, WIDTH, CLASSES = 11, 6, 5, 5
# The rows of a token batch, and of a piece of it.
ROWS = 2
# The padding token.
PADDING = 0
# Names of values on the way to a backward, which are never faked.
_LOOKED_AT = (
    r"^(?!(.*_)?(eval|val|valid|validation|test|dev|best|history|log|logged|report)(_|\d|$))"
)
LOSS_LIKE = re.compile(
    _LOOKED_AT + r".*(loss(?!_?masks?$)|logit(?!s?_?scale)|pred(?!ictor)"
    r"|output(?!_?(dir|path|file|name|mode|format|type|size|dim|key|folder|root)))"
)

_INTERVALS = (
    r"(log|eval|save|print|ckpt|checkpoint|sample|valid|test|display|summary|report|vis)\w*_?"
    r"(every|interval|freq(uency)?|steps?|(?<!wr)iters?|epochs?|period)(?![a-z])|every_n|_every$|_interval$"
)
_LONG = (
    r"(max|num|total|train|n)_?\w*(steps|iters|iterations|updates|batches)$"
    r"|^(steps|iterations|iters|updates)$|^(steps?|iter(ation)?s?|updates?)_?max$"
)
_SETTINGS: tuple[tuple[re.Pattern[str], float | tuple[float, ...]], ...] = tuple(
    (re.compile(pattern), value)
    for pattern, value in (
        (
            r"learning_rate|(^|_)lr($|_(?!sched|type|policy|mode|name|config|max_|warm|decay_[si]))|base_lr",
            0.05,
        ),
        # Nesterov momentum requires a positive one.
        (r"momentum", 0.9),
        (r"weight_decay|dropout|label_smoothing|(^|_)wd$", 0.0),
        (r"betas$", (0.9, 0.9)),
        (r"beta\d?$", 0.9),
        (r"(^|_)eps(ilon)?$", 1e-8),
        (r"clip(?!s)|max_norm|grad_norm", 1.0),
        (r"(^|_)(eval|val|valid|test)_(iters|batches)$", 1),
        # The sampling steps of a diffusion, not the interval between samples.
        (r"(sampling|inference|denois\w*|ddim)_(num_)?steps$", 2),
        (_INTERVALS, 10**9),
        (r"(epochs?|steps?|iters?)_(run|done|completed|finished|trained|seen)$", 0),
        (r"^(finished|completed|trained|last|done)_(epochs?|steps?|iters?)$", 0),
        (r"(^|_)(num|n|max|total|train)(_\w*)?epochs?$|^epochs?(_(num|number|count))?$", 2),
        (r"(^|_)(max|most|num|n)_?(re)?cycles?$", 2),
        (r"warm_?up|start_|resume_|begin|initial_(step|epoch|iter)", 0),
        (_LONG, 1000),
        (r"(^|_)(n|num)_(clips|views|crops|frames)$", 1),
        (r"vocab", VOCABULARY),
        (r"num_class|n_class|num_labels", CLASSES),
        (r"block_size|seq_?len|context_len|max_len|(^|_)(width|length|bptt)$", LENGTH),
        (r"batch_?size|(^|_)bsz?$|^(rows|samples|items)_per_", 2),
        # Weights of loss terms, and the temperature of their logits.
        (r"(^|_)(temperature|tau|alpha|coef|coeff|coefficient|lambda)(_|$)", 1.0),
        # Of the latents of an autoencoder.
        (r"(scale|scaling)_factor$", 1.0),
        (r"(?<!class)(?<!pos)(?<!label)_weight$", 1.0),
        # Special tokens; padding is handled by its own name.
        (r"(^|_)blank(_?(token|label))?(_?(id|idx|index))?$", 0),
        (r"(^|_)([besc]os|[bes]ot|cls|sep|unk|mask)(_?token)?_?(id|idx|index)$", 1),
        (r"seed|num_workers|local_rank$|(^|_)rank$", 0),
    )
)


def setting(name: str) -> float | object:
    """The value of a setting by its last name in lower case, `UNKNOWN` for other names."""
    return next((value for pattern, value in _SETTINGS if pattern.search(name)), UNKNOWN)
