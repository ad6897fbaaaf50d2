"""Regular expressions over names: what a name without a known role stands for."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Parts of a micro-batch.
DATA = re.compile(
    r"^(?!.*(context|time|meter|izer|processor|norm|metric|stat|log|count|num|size|idx|index|sampler|fn$|func|hook)).*(batch|data$|input|image|sample|target|label|text$|audio|token|mask|img|^[xy]s?(_train|_batch|_tr|_?b)?$|feature|video|^inp|^valid$|^valid_(pixel|position|place|row)s?$)"
)
TARGET = re.compile(
    r"label|target|tgt|transcript|^tags?$|^gts?$|ground|^ys?$|^y_|^yb|_y$|class(es)?$|answer|truth|^next_|^l$|lbl"
)
INPUT = re.compile(
    r"input|image|img|pixel|feature|token|source|src|^xs?$|^x_|^xb|_x$|text|audio|wave|data|ids$|anchor|positive|query"
)
MASK = re.compile(r"mask")
# Noisy or masked copies of the data, and the probability of each replacement.
NOISY = re.compile(r"^(nois(y|ed)|corrupt(ed)?|perturb(ed)?|masked)(_|$)")
CHANCE = re.compile(r"^p_mask$|(^|_)(chances?|prob(abilit(y|ies))?s?)$")
# One number for each target, as in a rollout.
NUMBERS = re.compile(
    r"^(old|behaviou?r)(_|$)|log_?p(rob)?s?(_|$)|(^|_)(advantages?|returns?|rewards?)$"
)
# Weights of targets in a loss.
WEIGHTS = re.compile(
    r"^weights?$|(^|_)(sample|example|instance|row|loss|snr)_?weights?$|(^|_)snrs?$"
)
# Masks that select elements.
PICKING = re.compile(r"^valid($|_(pixel|position|place|row)s?$)")
WHOLE = {"batch", "batch_data", "data_batch", "minibatch"}
# One item of a pair that a loss compares.
OPPOSITE = re.compile(r"rejected_?|negative_?|loser_?")
LENGTHS = re.compile(r"(^|_)(len|length)s?$")
LENGTH = re.compile(r"len|num_|n_tok|count|ntokens")
# Functions that build or configure an object are not that object.
MAKERS = re.compile(
    r"^(get|build|create|make|init|setup|set|load|save|configure|prepare|register"
    r"|parallelize|shard|wrap|compile|convert|apply|freeze|unfreeze|log|print|count)_"
)
# The trained parameters of a model, as another object stores them.
TRAINED = re.compile(
    r"^(trainable|learnable|train|model|net|network|lora|adapter|all)_(params|parameters)$"
)
NO_MODEL = re.compile(
    r"^model_(dump|validate|copy|fields|config|name|path|type|id|args|kwargs|dir)|count$|_dict$|^(batch|data|sample)_generator$"
)
NO_LOADER = re.compile(
    r"_dict$|config|cfg|conf$|kwargs|args$|class|cls$|_name$|^(n|num|max|total)_"
)
# A name of this form is a flag.
QUESTION = re.compile(r"(enable|disable|needs?|uses?|should|wants?)_")
NO_SCHEDULER = re.compile(r"sampler$")
EPOCH = re.compile(r"(iter(ation)?s?|steps?|batch(es)?)_per_epoch$|^epoch_(len(gth)?|size)$")
# Names of classes.
CLASS = re.compile(r"^_*[A-Z][A-Za-z\d]*[a-z][A-Za-z\d]*$")
# A running average of the weights is not a trained network; often only the first rank has one.
AVERAGE = re.compile(
    r"(^|[._ ])(ema|swa|shadow|average[sd]?)(_|\b)|\b(EMA|SWA)|Averaged?(Model|Weights)"
)
# Networks for a run only: in general such names are parts of one.
NETWORK = re.compile(r"classifier$|^(?!(n|num)_)(.*_)?(clf|head|predictor|projector)$")
CRITERION = re.compile(r"^(loss|criterion)_?(fn|func|function)$")
# Objects that compute a loss when called.
COMPUTING = re.compile(r"^(compute|calc|calculate)_loss(_\w+)?$")
IGNORED = re.compile(r"ignore_?ind|ignore_?id")
NAMES_PADDING = re.compile(r"pad_?(token_?)?id|padding_idx|^pad_?index$")
# Settings under a name that optimizers have too; not data.
OPTIONS = re.compile(r"opts?\.")
# Functions that evaluate.
_EVALUATING = re.compile(r"(^|_)(test|eval(uate|uation)?|valid(ate|ation)?)(_|$)")
# One of several numbers.
ONE_OF = re.compile(r"(\w+)s\[\d\]")
# Settings that give the window size as a number of samples or tokens.
WINDOW = re.compile(
    r"^(optim(izer)?|update|effective|global|total|virtual|target|desired|logical)_batch_?size$"
    r"|(accum|acc|update)\w*_(?P<tokens>n_?tokens|num_tokens|tokens)$"
)
# Flags that are off in ordinary training, and conditions that rarely hold.
SELDOM = re.compile(
    r"fsdp|deepspeed|compile|throughput|benchmark|(^|[._])(do_)?(eval|test)|\(\)$"
    r"|new_epoch|epoch_end|is_last|is_end|exhausted|finished|early_stop|overflow"
)
# Calls that read an optimizer, change its learning rate, or set things up.
HARMLESS = re.compile(
    r"^set_|save|load|checkpoint|ckpt|resum|restor|log|print|report|state|eval|valid|test|lr|rate|sched|warm|momentum|early|meter|write"
    r"|setup|set_up|prepar|init|wrap|build|make|creat|context|hook|^(skip_)?synchronize\b"
)
# Functions that change a setting are not settings.
VERB = re.compile(r"(adjust|compute|calculate|calc|get|set|build|create|make|apply|reset|clear)_")
# The only stage of a pipeline is both its first and its last.
ONLY = re.compile(r"is_\w*(first|last)\w*_stage")
RANKS = re.compile(r"world_size$|^n(um)?_?(processes|procs?|gpus?)$")
# Flags and settings that request a GradScaler.
SCALED = re.compile(r"fp16|float16|(^|_)half$|(^|_)amp($|_)|mixed_prec|(^|_)(grad_?)?scaler$")


def evaluates(functions: Iterable[str]) -> bool:
    """Whether one of the active functions evaluates, by its name."""
    return any(map(_EVALUATING.search, functions))


def is_auxiliary(name: str) -> bool:
    """True for names of data derived from a micro-batch: other tokens, probabilities, numbers for each target."""
    low = name.lower()
    return any(pattern.search(low) for pattern in (NOISY, CHANCE, NUMBERS))
