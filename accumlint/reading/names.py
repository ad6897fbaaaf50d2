"""What a name alone tells: roles, accumulation steps, counters. Used only where nothing better is known."""

from __future__ import annotations

import re
from functools import lru_cache

_STEPS = re.compile(
    r"accum|acc_?steps?|acc_?iters?|grad_?acc|update_?freq|update_?interval|iter_?size|iters_to_acc"
    r"|virtual_?batch|(num|n)_?micro|micro_?steps?$|micro_?batches$|delay_?update|batch_?split"
    r"|(^|_)batch_chunks?$|(num|n)_chunks|backward_passes_per|batches_per_(update|step)|subdivisions|(^|_)gas$|update_?every|num_mini_?batch"
    r"|(grad(ient)?s?|optim\w*|backward)_?(interval|freq(uency)?|every)$"
)
# A count so far, a sum of losses or a flag is not the number of steps, whatever else its name says.
_NO_STEPS = re.compile(
    r"count|cur|idx|index|epoch|loss|total|_i$|_norm|metric|acc$|accuracy|tokens|samples|grads|gradients"
    r"|is_|should|use_|enable|do_|_fn$|plugin|kwargs|config|current|done|accumulator|accelerat|dtype|stats"
    r"|_ctx$|context|buffer|time|bias|score|last_|(^|_)n_steps$|_so_far|accumulated|accumulating|accumulation$"
)
_STEPS_ANYWAY = re.compile(
    r"^(grad(ient)?_?)?accumulation$|^grad(ient)?s?_?acc$|accum_grad_n_steps|^accumulate_gradients?$|(^|_)grads?_accumulated$|accumulat\w*_n_steps|batch_accumulat\w*$"
)
_COUNTER_START = re.compile(
    r"^(start|begin|beginning|init|initial|resume|restore|first|prev|previous|last|completed|done|trained|skip"
    r"|starting|current|cur|global|num_done)_?\w*(step|epoch|iter|batch|update|idx|it)s?$"
    r"|^(start|begin|offset|initial|step0|epoch0)$|(resume|restore)d?_\w*(step|epoch|batch|iter)"
)

_NOT_A_THING = re.compile(
    r"state|meter|cfg|config|args?$|kwargs|name|step|_idx|type|params|groups|class|cls|_fn$|path|dict"
    r"|conf$|hparams|_id$|num_|_lr$|betas|eps|keys|_len|size|dim|file|dir|loss|_log|output|flag|use_|is_"
    r"|memory|device|dtype|str$|time|info|input|_ckpt|checkpoint|kind|has_|options?$|settings|version|builder|registry"
    r"|learning_rate|weight_decay|momentum|_beta\d?$|factory|_freq|interval|_every|_in_|offload|^fused_|enable|^with_|^no_|_on_"
)

_ROLES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("accelerator", re.compile(r"accelerator")),
    ("fabric", re.compile(r"^_?fabric$")),
    ("scaler", re.compile(r"scaler|grad_?scalar")),
    ("scheduler", re.compile(r"^(?!.*noise).*sched|lr_decay(er)?$|^warmup$")),
    ("optimizer", re.compile(r"optim|^opts?$|^opts?_|_opts?$|^opt[DGdg]$|^opt\d$|solver")),
    ("criterion", re.compile(r"crit(erion|$)|loss_?fn|loss_?func|lossfn|^objective$|^loss_function|_loss_module$")),
    ("engine", re.compile(r"model_engine|ds_engine|deepspeed_engine|^engine$")),
    (
        "model",
        re.compile(
            r"(^|_)(model|net|network|unet|transformer|encoder|decoder|generator|discriminator|critic"
            r"|actor|policy|backbone|(re)?ranker|student|vae|gpt|llm|lm|dit|denoiser|diffusion|agent|learner|ddp|module"
            r"|controlnet|classifier|discr)s?(_?(1|2|a|b|g|d|ddp|engine|x|module|net|model|main|s|q|k))?$"
            r"|^(G|D|net[GD]|model\w*|net_?\w{1,3}|unet_?\w*)$"
        ),
    ),
    (
        "loader",
        re.compile(
            r"loader|data_?iter|train_?iter|_dl$|^dl$|batches$"
            r"|^train_(data|set|ds)$|dataset|datapipe|iterator$|prefetcher|^data_?source"
        ),
    ),
)  # fmt: skip


@lru_cache(maxsize=4096)
def is_steps(name: str) -> bool:
    """True when a name reads like the number of accumulation steps."""
    low = name.lower()
    if _STEPS_ANYWAY.search(low):
        return True
    return bool(_STEPS.search(low)) and not _NO_STEPS.search(low)


@lru_cache(maxsize=4096)
def is_start(name: str) -> bool:
    """True when a name reads like a counter's start, which is 0 in a run that resumes nothing."""
    return bool(_COUNTER_START.search(name.lower()))


_ANOTHER = re.compile(
    r"ema|teacher|target|copy|ref(erence)?(_|$)|old|avg|average|swa|disc|critic|reward"
)


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
            if role != "loader" and _NOT_A_THING.search(low):
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
    r"debug|dry_?run|eval_only|only_eval|overfit|profil|sanity|infer|skip|resum|disable|(^|_)no_(?!sync)|not_"
    r"|smoke|load_|from_ckpt|checkpoint_path|fail|error|empty|freeze|offload|legacy|deprecated|export|only|evolv|sweep"
    # Hardware that few have.
    r"|(^|[_.])(tpu|xla|hpu|npu|mlu|xpu|smp|sagemaker)([_.(]|$)"
)


@lru_cache(maxsize=4096)
def is_off_by_default(text: str) -> bool:
    """True when a flag's text reads like something that an ordinary training run leaves off."""
    return bool(_NEGATIVE.search(text.lower()))


_OCCASIONAL = re.compile(r"eval|valid|(^|[._])val_|save|checkpoint|ckpt|sampl|(^|[._])test_|visual")


def is_occasional(text: str) -> bool:
    """True when a test asks for something else than training that is due once in a long while."""
    return " % " in text and bool(_OCCASIONAL.search(text.lower()))


def is_due(name: str) -> bool:
    """True for a flag by whose name something else than training is due (`is_checkpoint_step`)."""
    return bool(_OCCASIONAL.search(name.lower()))


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


_COUNT = re.compile(r"count|(^|_)num(_|$)|^n_|_size$|_len$|^len|n_tokens|num_items|samples$")

_ROUNDS = re.compile(r"(^|_)(num|n)_?(iter(ation)?|round|step)s?$")


@lru_cache(maxsize=4096)
def is_count(name: str) -> bool:
    """True when a name reads like a number of things."""
    return bool(_COUNT.search(name.lower()))


@lru_cache(maxsize=4096)
def is_rounds(name: str) -> bool:
    """True when a name reads like a number of rounds, which in the guard of a step is the window's size."""
    return bool(_ROUNDS.search(name.lower()))


_RANKS = re.compile(r"^(get_)?(ddp_|dist_)?world_?size$|^num_processes$|^(num_|n_)?ranks$")


@lru_cache(maxsize=4096)
def is_ranks(name: str) -> bool:
    """True when a name reads like the number of ranks that hold a replica of the model."""
    return bool(_RANKS.search(name.lower()))


_LABELS = re.compile(r"label|target|(^|[._])(ys?|tgts?)($|_)")


def are_labels(name: str) -> bool:
    """True when a name reads like what a loss compares predictions with."""
    return bool(_LABELS.search(name.lower()))


_WEIGHT = re.compile(
    r"weight|coeff?(icient)?s?$|lambda|lambd|lmbda|alpha|beta|gamma|penalty|reg$|_wt?$|(^|_)lam($|_)"
)
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
_SHARE = re.compile(
    r"/|accum|scal|norm|frac|step|num|count|total|size|world|share|len|grad|micro"
    r"|^(args|cfg|conf|config|hparams|opt|opts|settings)\b"
)


@lru_cache(maxsize=4096)
def is_elementwise(text: str) -> bool:
    """True when a factor reads like weights of a loss's elements, not like a share of the window or a setting."""
    shown = text.lower()
    return bool(_ELEMENTWISE.search(shown)) and not _SHARE.search(shown)


_CRITERION = re.compile(r"criterion$|^loss_?fn$|^loss_?func(tion)?$|^lossfn$")


@lru_cache(maxsize=4096)
def is_criterion(name: str) -> bool:
    """True when a name reads like something that is called to work out a loss."""
    return bool(_CRITERION.search(name.lower()))


_ABOUT_A_LOSS = re.compile(
    r"kwargs|args$|cfg|config|_type$|_name$|weight|scal(e|ing)|coef|lambda|lambd"
)


@lru_cache(maxsize=4096)
def is_about_a_loss(name: str) -> bool:
    """True when a name that speaks of a loss reads like what makes it or what it is multiplied by."""
    return bool(role_of(name)) or bool(_ABOUT_A_LOSS.search(name.lower()))


_BEHIND = re.compile(r"start|begin|resume|warm_?up|initial|first|min_|_after|delay|skip")


def is_behind(text: str) -> bool:
    """True when a limit's text reads like one that a run soon passes."""
    return bool(_BEHIND.search(text.lower()))


_LIMIT = re.compile(r"max|limit|stop|cap$|until|debug|total_(train_)?steps|train_steps|epochs")


@lru_cache(maxsize=4096)
def is_limit(text: str) -> bool:
    """True when a number's text reads like the end of a whole training, not of one pass over the data."""
    return bool(_LIMIT.search(text.lower()))


_END = re.compile(
    r"new_epoch|end_of|epoch_end|is_last|last_(batch|step|iter)|is_end|is_final|is_boundary"
)


def is_end(text: str) -> bool:
    """True when a flag's text reads like the end of an epoch."""
    return bool(_END.search(text.lower()))


_LENGTH = re.compile(
    r"^(n|num|nb|number_of|total)_?(train(ing)?_)?batches(_per_epoch)?$|^epoch_length$"
    r"|^((n|num)_)?(batch(es)?|steps|iters|iterations)_(per|in)_epoch$"
)


@lru_cache(maxsize=4096)
def is_length(name: str) -> bool:
    """True for a name that tells how many batches a loader gives."""
    return bool(_LENGTH.search(name.lower()))


_SCORE = re.compile(
    r"accurac|(^|_)acc$|correct|(^|_)(f1|auc|iou|bleu|wer|cer|cnt|count|mae|mape|rmse|psnr|ssim)(_|$)"
    r"|(^|_)flops?(_|$)|(^|_)flos(_|$)|(^|_)grad(ient)?_?norms?(_|$)"
)
_ACCURACY = re.compile(r"accurac|(^|_)(acc|f1|auc)$")


def is_score(name: str) -> bool:
    """True when a name reads like something counted or measured, which has no gradient: an accuracy, a norm."""
    return bool(_SCORE.search(name.lower()))


def is_accuracy(name: str) -> bool:
    """True for a function that by its name compares predictions, through which no gradient goes."""
    return bool(_ACCURACY.search(name.lower()))


CLEARS = frozenset({"zero_grad", "zero_grads", "clear_grad", "clear_grads", "clear_gradients"})


def is_clearing(name: str) -> bool:
    """True for a method that clears gradients, in torch and in those that read like it."""
    return name in CLEARS


_UPDATES = re.compile(r"(training|update|optimi[sz]\w*)_?steps_per_epoch|updates_per_epoch")


def is_updates_per_epoch(name: str) -> bool:
    """True when a name reads like the number of whole windows in an epoch."""
    return bool(_UPDATES.search(name.lower()))


_AVERAGE = re.compile(
    r"(^|_)e[mw]a(_|$)|(^|_)averager$|^ema(model|net|unet|updater|helper)|(model|net|unet|params|weights)ema$|averaged_?model"
    r"|weights?_average|model_average|swa_model"
)
AVERAGING_METHODS = frozenset({"update", "step", "update_parameters", "update_ema", "ema_update"})
_AVERAGING = re.compile(r"^(_?update_?ema|_?ema_?update|update_ema\w*|ema_step|step_ema)$")


@lru_cache(maxsize=4096)
def is_averaging(receiver: str, called: str) -> bool:
    """True when a call reads like the update of a running average of weights; `receiver` is "" for a function."""
    if receiver and called in AVERAGING_METHODS and _AVERAGE.search(receiver.lower()):
        return True
    return bool(_AVERAGING.search(called.lower()))


def is_average_class(name: str) -> bool:
    """True for a class whose name reads like a running average of weights."""
    return name[:1].isupper() and bool(_AVERAGE.search(name.lower()))


_NORM = re.compile(
    r"^_?(get|compute|calc\w*|total|global|model|check|measure)?_?(total_|global_)?grad(ient)?s?_?(l2_?)?norms?$"
)


@lru_cache(maxsize=4096)
def is_norm(called: str) -> bool:
    """True when a function's name reads like the size of a model's gradient."""
    return bool(_NORM.search(called.lower())) or called in ("get_total_norm",)


_RESCALING = re.compile(
    r"scale_grad|rescale_?grad|grad_scaler$|div(ide)?_grad|normali[sz]e_grad|multiply_grad"
)


@lru_cache(maxsize=4096)
def is_rescaling(called: str) -> bool:
    """True when a function's name reads like a factor on a model's gradient."""
    return bool(_RESCALING.search(called.lower()))


_CLIPPER = re.compile(r"grad(ient)?s?_?(norm_?)?clip|clip\w*_?grad")


@lru_cache(maxsize=4096)
def is_clipper(name: str, method: str) -> bool:
    """True when a method of a class reads like one that clips gradients."""
    clips = "clip" in method or method in ("step", "apply")
    return clips and bool(_CLIPPER.search(name.lower()))


_NO_CLIP = re.compile(
    r"^_?(get|is|has|set|should|use|log|init|build|make|create|register|needs?|(maybe_)?add)_"
    r"|_(metrics?|stats)$"
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


_PROFILER = re.compile(r"(^|_)prof(iler)?(_|$)")


def is_profiler(name: str) -> bool:
    """True for what measures time, and steps as well."""
    return bool(_PROFILER.search(name.lower()))
