"""What a name alone tells: roles, accumulation steps, counters. Used only where nothing better is known."""

from __future__ import annotations

import re
from functools import lru_cache

_STEPS = re.compile(
    r"accum|acc_?steps?|grad_?acc|update_?(freq|interval|every)|(num|n)_?micro|micro_?(steps?|batches)$"
    r"|(^|_)batch_chunks?$|(num|n)_chunks|backward_passes_per|(^|_)gas$|num_mini_?batch"
    r"|(grad(ient)?s?|optim\w*|backward)_?(interval|freq(uency)?|every)$"
)
# A flag is not the number of steps, nor is a count so far, whatever else its name says.
_NO_STEPS = re.compile(r"is_|count|total|loss|tokens|(?<!grads_)accumulated")
_COUNTER_START = re.compile(
    r"^(start|begin|beginning|init|initial|resume|restore|first|prev|previous|last|completed|done|trained|skip"
    r"|starting|current|cur|global|num_done)_?\w*(step|epoch|iter|batch|update|idx|it)s?$"
    r"|^(start|begin|offset|initial|step0|epoch0)$"
)

_NO_TRAINING_OBJECT = re.compile(
    r"state|meter|cfg|config|args?$|kwargs|name|step|_idx|type|params|groups|class|cls|_fn$|path|dict"
    r"|_ids?$|num_|_lr$|eps|_len|size|dim|file|dir|loss|output|use_|is_"
    r"|memory|device|time|input|checkpoint|has_|version|builder"
    r"|learning_rate|momentum|interval|_every|_in_|offload|^fused_|enable|_on_"
)

_ROLES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("accelerator", re.compile(r"accelerator")),
    ("fabric", re.compile(r"^_?fabric$")),
    ("scaler", re.compile(r"scaler|grad_?scalar")),
    ("scheduler", re.compile(r"^(?!.*noise).*sched")),
    ("optimizer", re.compile(r"optim|^opts?$|^opts?_|_opts?$|solver")),
    ("criterion", re.compile(r"crit(erion|$)|loss_?fn|loss_?func")),
    ("engine", re.compile(r"model_engine|^engine$")),
    (
        "model",
        re.compile(
            r"(^|_)(model|net|network|unet|transformer|encoder|decoder|generator|discriminator|critic"
            r"|actor|policy|backbone|(re)?ranker|student|vae|gpt|llm|lm|dit|denoiser|diffusion|agent|learner|ddp|module"
            r"|controlnet|classifier|discr)s?(_?(1|2|a|b|g|d|ddp|engine|x|module|net|model|main|s|q|k))?$"
            r"|^(G|D|net[GD]|model\w*|net_?\w{1,3}|unet_?\w*)$"
        ),
    ),
    ("loader", re.compile(r"loader|batches$|^train_(data|set|ds)$|dataset|datapipe|iterator$|prefetcher")),
)  # fmt: skip


@lru_cache(maxsize=4096)
def is_steps(name: str) -> bool:
    """True when a name reads like the number of accumulation steps."""
    low = name.lower()
    return bool(_STEPS.search(low)) and not _NO_STEPS.search(low)


@lru_cache(maxsize=4096)
def is_start(name: str) -> bool:
    """True when a name reads like a counter's start, which is 0 in a run that resumes nothing."""
    return bool(_COUNTER_START.search(name.lower()))


_ANOTHER = re.compile(r"ema|ref(erence)?(_|$)")


@lru_cache(maxsize=4096)
def is_another(name: str) -> bool:
    """True when a model's name reads like a second one made from the first."""
    return bool(_ANOTHER.search(name.lower()))


_EPOCH = re.compile(r"^(_?(cur|current|this|train|i|n)_)?epoch(_?(idx|id|index|i|no))?$")


@lru_cache(maxsize=4096)
def is_epoch(name: str) -> bool:
    """True when a name reads like the number of the epoch that runs."""
    return bool(_EPOCH.search(name.lower()))


@lru_cache(maxsize=4096)
def role_of(name: str) -> str:
    """The role that a name suggests, "" for none."""
    low = name.lower()
    for role, pattern in _ROLES:
        if pattern.search(low) or (role == "model" and pattern.search(name)):
            if role != "loader" and _NO_TRAINING_OBJECT.search(low):
                return ""
            return role
    return ""


_OF_PLUGIN = re.compile(
    r"deepspeed_plugin\.deepspeed_config\[['\"]gradient_accumulation_steps['\"]\]$"
)


def is_of_plugin(text: str) -> bool:
    """True for `accelerator.state.deepspeed_plugin.deepspeed_config["gradient_accumulation_steps"]`."""
    return _OF_PLUGIN.search(text) is not None


def is_data(name: str) -> bool:
    """True when a name reads like a dataset, a loader or a collator."""
    return role_of(name) == "loader" or "collat" in name.lower()


_NEGATIVE = re.compile(
    r"debug|profil|infer|skip|resum|disable|not_|load_|checkpoint_path|error|freeze|offload|export|only|evolv"
    # Hardware that few have.
    r"|(^|[_.])(tpu|xla|hpu|npu|mlu|xpu|smp|sagemaker)([_.(]|$)"
)


@lru_cache(maxsize=4096)
def is_off_by_default(text: str) -> bool:
    """True when a flag's text reads like something that an ordinary training run leaves off."""
    return bool(_NEGATIVE.search(text.lower()))


_OCCASIONAL = re.compile(r"eval")


def is_occasional(text: str) -> bool:
    """True when a test asks for something else than training that is due once in a long while."""
    return " % " in text and bool(_OCCASIONAL.search(text.lower()))


_EVALUATION = re.compile(r"^(do|run)?_*(eval|valid|val_|test(_|$))")


def is_evaluation(name: str) -> bool:
    """True for a function that measures a model."""
    return bool(_EVALUATION.search(name.lower()))


_CONFIGURATION = re.compile(
    r"(^|[._])(args?|cfg|config|conf|hparams?|hps|params|flags|settings|options|configs)(\(\))?[.\[]|pars\w*\(|config\w*[.\[(]"
)
_MADE = re.compile(r"^((?:\w+\.)*[A-Z]\w*)\(.*\)")


@lru_cache(maxsize=4096)
def is_configuration(text: str) -> bool:
    """True for a member of something that reads like a configuration: its names are settings, not things."""
    # What an object is made from tells nothing about what it is.
    return bool(_CONFIGURATION.search(_MADE.sub(r"\1()", text).lower()))


_COUNT = re.compile(r"count|(^|_)num(_|$)|^n_|_size$|_len$|^len|samples$")


_MASK_OF_LENGTHS = re.compile(r"(^|_)(pad|padding|attention|attn|x|y|z)_mask$")


@lru_cache(maxsize=4096)
def is_mask_of_lengths(name: str) -> bool:
    """True for a mask that says which positions hold data: a model makes it of lengths, without gradient."""
    return bool(_MASK_OF_LENGTHS.search(name.lower()))


@lru_cache(maxsize=4096)
def is_count(name: str) -> bool:
    """True when a name reads like a number of things."""
    return bool(_COUNT.search(name.lower()))


_RANKS = re.compile(r"^(get_)?(ddp_|dist_)?world_?size$|^num_processes$|^(num_|n_)?ranks$")


@lru_cache(maxsize=4096)
def is_ranks(name: str) -> bool:
    """True when a name reads like the number of ranks that hold a replica of the model."""
    return bool(_RANKS.search(name.lower()))


_WEIGHT = re.compile(r"weight|coeff?(icient)?s?$")
# What a mean over classes, or over a side of a tensor, is multiplied by, to make it a sum over them.
_CLASSES = re.compile(r"^((num|n)_(labels|classes|class)|size\(-?[1-9]\)|shape\[-?[1-9]\])$")


@lru_cache(maxsize=4096)
def is_weight(text: str) -> bool:
    """True when a factor reads like the weight of a loss among others, which has nothing to do with a window."""
    last = text.lower().rpartition(".")[2]
    if last == "loss_scaling":
        # A fixed factor against underflow, the same for every window.
        return True
    if _CLASSES.search(last):
        return True
    last = (re.findall(r"\w+", last) or [""])[-1] if last.endswith("]") else last
    return bool(_WEIGHT.search(last)) and not _SHARE.search(last)


_ELEMENTWISE = re.compile(r"[(\[]|(^|[._])(adv|advantages?|weights?|rewards?|returns?)$")
_SHARE = re.compile(r"/|size|share|^(args|cfg|conf|config|hparams|opt|opts|settings)\b")


@lru_cache(maxsize=4096)
def is_elementwise(text: str) -> bool:
    """True when a factor reads like weights of a loss's elements, not like a share of the window or a setting."""
    shown = text.lower()
    return bool(_ELEMENTWISE.search(shown)) and not _SHARE.search(shown)


_BEHIND = re.compile(r"start|warm_?up")


def is_behind(text: str) -> bool:
    """True when a limit's text reads like one that a run soon passes."""
    return bool(_BEHIND.search(text.lower()))


_END = re.compile(r"new_epoch|end_of|is_last")


def is_end(text: str) -> bool:
    """True when a flag's text reads like the end of an epoch."""
    return bool(_END.search(text.lower()))


_LENGTH = re.compile(r"^(n|num|nb|number_of|total)_?(train(ing)?_)?batches(_per_epoch)?$")


@lru_cache(maxsize=4096)
def is_length(name: str) -> bool:
    """True for a name that tells how many batches a loader gives."""
    return bool(_LENGTH.search(name.lower()))


_SCORE = re.compile(
    r"accurac|(^|_)(f1|auc|iou|bleu|wer|cer|cnt|count|mae|mape|rmse|psnr|ssim)(_|$)"
    r"|(^|_)flos(_|$)|(^|_)grad(ient)?_?norms?(_|$)"
)


def is_score(name: str) -> bool:
    """True when a name reads like something counted or measured, which has no gradient: an accuracy, a norm."""
    return bool(_SCORE.search(name.lower()))


def is_accuracy(name: str) -> bool:
    """True for a function that by its name compares predictions, through which no gradient goes."""
    return "accurac" in name.lower()


CLEARS = frozenset({"zero_grad", "zero_grads", "clear_grad", "clear_grads", "clear_gradients"})


def is_clearing(name: str) -> bool:
    """True for a method that clears gradients, in torch and in those that read like it."""
    return name in CLEARS


_UPDATES = re.compile(r"(training|update|optimi[sz]\w*)_?steps_per_epoch|updates_per_epoch")


def is_updates_per_epoch(name: str) -> bool:
    """True when a name reads like the number of whole windows in an epoch."""
    return bool(_UPDATES.search(name.lower()))


_AVERAGE = re.compile(r"(^|_)e[mw]a(_|$)|(^|_)(weights?|model|param\w*)_averager$")
AVERAGING_METHODS = frozenset({"update", "step", "update_parameters", "update_ema", "ema_update"})
_AVERAGING = re.compile(r"^(_?update_?ema|_?ema_?update|update_ema\w*|ema_step|step_ema)$")


@lru_cache(maxsize=4096)
def is_averaging(receiver: str, called: str) -> bool:
    """True when a call reads like the update of a running average of weights; `receiver` is "" for a function."""
    if receiver and called in AVERAGING_METHODS and _AVERAGE.search(receiver.lower()):
        return True
    return bool(_AVERAGING.search(called.lower()))


_NORM = re.compile(
    r"^_?(get|compute|calc\w*|total|global|model|check|measure|log)?_?(total_|global_)?grad(ient)?s?_?(l2_?)?norms?_?$"
)


@lru_cache(maxsize=4096)
def is_norm(called: str) -> bool:
    """True when a function's name reads like the size of a model's gradient."""
    return bool(_NORM.search(called.lower())) or called in ("get_total_norm",)


_RESCALING = re.compile(r"(?<!un)scale_grad|grad_scaler$|div(ide)?_grad|multiply_grad")


@lru_cache(maxsize=4096)
def is_rescaling(called: str) -> bool:
    """True when a function's name reads like a factor on a model's gradient."""
    return bool(_RESCALING.search(called.lower()))


_NO_CLIP = re.compile(
    r"^_?(get|is|has|set|should|use|log|init|build|make|create|register|needs?|(maybe_)?add)_"
)


def is_clip(called: str) -> bool:
    """True when a function's name reads like one that clips gradients."""
    return "clip" in called and "grad" in called and not _NO_CLIP.search(called)


_SKIPPED = "step_was_skipped({})"


def skipped_step(scaler: str) -> str:
    """The text of the question whether a scaler left out its last step."""
    return _SKIPPED.format(scaler)


def is_skipped_step(text: str) -> bool:
    """True for the question whether a scaler left out its last step."""
    return text.startswith(_SKIPPED.partition("(")[0] + "(")


_UNSCALED = re.compile(r"\b_per_optimizer_states\[.*\]\['stage'\] (is|==) (\w+\.)*UNSCALED$")


def is_unscaled(text: str) -> bool:
    """True for the question whether a scaler has unscaled an optimizer's gradients, put to what it remembers."""
    return bool(_UNSCALED.search(text))
