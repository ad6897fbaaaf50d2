"""Who divides, who synchronises, who clears: the contracts of PyTorch and its frameworks, as data.

A row says what a framework does on its own, in which version this was read, and where. Frameworks are never followed
as source: what stands here, and in `hooks` for their trainers, is all that a trace knows of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from accumlint.common.frozen import frozen
from accumlint.reading import names


@frozen
class Contract:
    """What a framework does with the gradient.

    `divides`: its backward divides by the accumulation steps it was given. `gates`: its optimizer steps and clears at
    the window's end only. `clears`: its step clears too. `syncs`: it leaves out the reduction inside a window itself.
    `source` is the file in which this was read, and `written` is what stands there (`benchmarks/hooks.py` looks).
    """

    framework: str
    title: str
    divides: bool = False
    gates: bool = False
    clears: bool = False
    syncs: bool = False
    version: str = ""
    source: str = ""
    written: tuple[str, ...] = ()


# The contract of an object that is asked to go backward, by its role. What is not here does none of it: PyTorch itself,
# Lightning's manual optimization, timm's scalers, ColossalAI's booster, apex.
PLAIN = Contract("torch", "PyTorch")
CONTRACTS: dict[str, Contract] = {
    "accelerator": Contract(
        "accelerate", "Accelerate", divides=True, gates=True, syncs=True, version="1.15",
        source="accelerate/accelerator.py",
        written=("loss = loss / self.gradient_accumulation_steps", "def accumulate(self, *models)", "def _do_sync"),
    ),
    "engine": Contract(
        "deepspeed", "DeepSpeed", divides=True, gates=True, clears=True, syncs=True, version="0.19",
        source="deepspeed/runtime/engine.py", written=("scale_wrt_gas", "def is_gradient_accumulation_boundary"),
    ),
    "fabric": Contract(
        "fabric", "Fabric", version="2.6", source="lightning/fabric/fabric.py",
        written=("def no_backward_sync", "self._strategy.backward(tensor, module, *args, **kwargs)"),
    ),
    # Whether a trainer divides, and where this was read, stands in its `Hook`.
    "trainer": Contract("trainer", "Trainer", gates=True, clears=True, syncs=True),
}  # fmt: skip

# Callables by their last name: the wrapper that a model gets.
WRAPPERS: dict[str, str] = {
    "DistributedDataParallel": "ddp",
    "DDP": "ddp",
    "ThDDP": "ddp",
    "NativeDDP": "ddp",
    "FullyShardedDataParallel": "fsdp",
    "FSDP": "fsdp",
    "fully_shard": "fsdp2",
    "DataParallel": "dp",
}

# What changes the number that a wrapper's reduction divides by.
AVERAGE_SETTINGS = frozenset(
    {"register_comm_hook", "set_gradient_divide_factor", "set_reduce_scatter_divide_factor",
     "set_force_sum_reduction_for_comms", "gradient_predivide_factor", "gradient_postdivide_factor",
     "disable_allreduce"}
)  # fmt: skip

# Calls that show a number to somebody, by their last name.
REPORTS = frozenset(
    {"print", "log", "info", "add_scalar", "add_scalars", "set_postfix", "set_postfix_str", "set_description", "write",
     "log_metric", "log_metrics", "log_dict", "report_scalar", "pbar"}
)  # fmt: skip
# Methods and helpers of a project that do, by their whole name: `log_train`, `record_curve`, `print_rank_0`.
_REPORT = re.compile(
    r"(print|record|report)(_\w+)?|(wandb|tb|writer|logger|master|rank0)_(log|print|info)"
    r"|log_(train\w*|step|scalars?|values?|loss|losses|stats|iter\w*|epoch|batch|data|info|message|results?|wandb)"
)
# Running averages of weights by their class.
AVERAGES = frozenset(
    {"AveragedModel", "EMAModel", "ModelEma", "ModelEmaV2", "ModelEmaV3", "ExponentialMovingAverage", "EMA", "ModelEMA"}
)  # fmt: skip
AUTOCASTS = frozenset({"autocast", "maybe_autocast"})
SCALERS = frozenset({"GradScaler", "ShardedGradScaler"})
NATIVE_SCALERS = frozenset({"NativeScaler", "NativeScalerWithGradNormCount", "ApexScaler"})
LOADERS = frozenset(
    {"DataLoader", "StatefulDataLoader", "MultiEpochsDataLoader", "InfiniteDataLoader"}
)
OPTIMIZERS = frozenset(
    {
        "SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop",
        "ASGD", "LBFGS", "SparseAdam", "Adafactor", "Lion", "LAMB", "Lamb", "LARS", "Muon", "SOAP", "Sophia",
        "SophiaG", "AdamW8bit", "Adam8bit", "PagedAdamW8bit", "PagedAdamW", "FusedAdam", "FusedLAMB",
        "DeepSpeedCPUAdam", "Ranger", "AdaBelief", "Prodigy", "BertAdam", "AdamWScheduleFree",
        "ZeroRedundancyOptimizer", "Shampoo", "NovoGrad", "DAdaptAdam",
    }
)  # fmt: skip
# Variants that projects write themselves: ScaledAdam, ClippedAdamW, CPULion …
_OPTIMIZER_VARIANT = re.compile(r"^[A-Z]\w*(Adam|AdamW|Lion|LAMB|LARS|Adafactor|Adagrad|RMSprop)$")
OPTIMIZER_FACTORIES = frozenset(
    {"create_optimizer", "build_optimizer", "get_optimizer", "configure_optimizers", "make_optimizer",
     "create_optimizer_v2", "init_optimizer", "setup_optimizer", "build_optimizers", "get_optimizers"}
)  # fmt: skip
SCHEDULERS = frozenset(
    {
        "LambdaLR", "StepLR", "MultiStepLR", "ExponentialLR", "CosineAnnealingLR", "LinearLR", "OneCycleLR",
        "CyclicLR", "PolynomialLR", "ConstantLR", "SequentialLR", "ChainedScheduler", "ReduceLROnPlateau",
        "CosineAnnealingWarmRestarts", "WarmupLR", "get_scheduler", "get_linear_schedule_with_warmup",
        "get_cosine_schedule_with_warmup", "get_constant_schedule_with_warmup", "get_constant_schedule",
        "get_polynomial_decay_schedule_with_warmup", "create_scheduler", "build_scheduler", "get_lr_scheduler",
        "get_cosine_with_hard_restarts_schedule_with_warmup",
    }
)  # fmt: skip
# What all of torch's schedulers derive from, by its names of today and before.
_SCHEDULER_BASES = SCHEDULERS | {"LRScheduler", "_LRScheduler"}

# Loss modules and functions of torch by their last name; all of them reduce to a mean unless told otherwise.
CRITERIA = frozenset(
    {
        "CrossEntropyLoss", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCELoss", "BCEWithLogitsLoss",
        "NLLLoss", "KLDivLoss", "MarginRankingLoss", "TripletMarginLoss", "CosineEmbeddingLoss", "CTCLoss",
        "HingeEmbeddingLoss", "MultiMarginLoss", "PoissonNLLLoss", "GaussianNLLLoss", "LabelSmoothingCrossEntropy",
        "SoftTargetCrossEntropy", "MultiLabelSoftMarginLoss", "SoftMarginLoss",
    }
)  # fmt: skip
LOSSES = frozenset(
    {
        "cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "nll_loss", "kl_div", "margin_ranking_loss", "triplet_margin_loss",
        "cosine_embedding_loss", "ctc_loss", "hinge_embedding_loss", "gaussian_nll_loss",
    }
)  # fmt: skip
COUNTED_LOSSES = frozenset({"cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"})
# Models of transformers with one label for each row: their loss is a mean over rows.
LABELLING_ROWS = re.compile(
    r"For(\w*Sequence|\w*Image|Audio|Video)Classification|ForMultipleChoice"
)

CLIPS = frozenset(
    {"clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grad_value", "clip_grads_with_norm_"}
)  # fmt: skip
HELPER_CLIPS = frozenset(
    {"dispatch_clip_grad", "clip_gradients", "clip_grads", "clip_gradient", "adaptive_clip_grad"}
)

# Calls that hand a tensor on unchanged, as far as its gradient goes.
PASSING = frozenset(
    {
        "to", "cuda", "cpu", "float", "half", "double", "bfloat16", "type", "type_as", "contiguous", "clone",
        "view", "reshape", "squeeze", "unsqueeze", "flatten", "requires_grad_", "pin_memory", "retain_grad",
        "nan_to_num", "npu", "xpu", "expand", "view_as", "permute", "transpose", "t",
    }
)  # fmt: skip
DETACHING = frozenset(
    {"item", "detach", "detach_", "numpy", "tolist", "argmax", "size", "numel", "dim", "data_ptr", "eq", "ne"}
)  # fmt: skip
WRAPPING_ITERABLES = frozenset(
    {
        "tqdm", "trange", "track", "log_every", "prefetch", "DataPrefetcher", "prefetcher", "MpDeviceLoader",
        "progress_bar", "ParallelLoader", "skip_first_batches", "Prefetcher", "wrap_iter", "progress", "rank_zero_tqdm",
    }
)  # fmt: skip

# Attribute names whose call or assignment makes a statement matter.
EVENTS = frozenset(
    {
        "Accelerator", "Fabric",
        "backward", "manual_backward", "step", "unscale_", "no_sync", "accumulate", "scale",
        "no_backward_sync", "set_requires_gradient_sync", "require_backward_grad_sync", "all_reduce", "prepare",
        "sync_gradients", "grad", "clip_gradients", "optimizer_step", "step_and_update_lr", "scale_loss", "initialize",
        "setup", "set_gradient_accumulation_boundary", "lr_scheduler_step", "grad_scaler", "train_batch",
        "optimizer_zero_grad", "set_is_last_backward", "unscale_gradients", "gradient_accumulation_steps",
    }
).union(names.CLEARS, CLIPS, HELPER_CLIPS, WRAPPERS, SCALERS, NATIVE_SCALERS)  # fmt: skip

# Events that only tell about a gradient; the others change it, or how it is reduced.
_WEAK = {
    "all_reduce", "scale", "prepare", "sync_gradients", "grad", "initialize", "setup", "gradient_accumulation_steps",
    "grad_scaler", "set_is_last_backward",
}  # fmt: skip
STRONG = EVENTS - _WEAK

# Calls that may receive anything without touching a gradient.
_HARMLESS = (
    "print|log|logging|info|debug|warn|warning|error|len|str|repr|format|isinstance|type|id|hasattr|getattr|watch|summary"
    "|append|add_scalar|add_scalars|set_postfix|set_postfix_str|set_description|state_dict|parameters|named_parameters"
    "|isnan|isinf|isfinite|item|detach|mean|sum|all|any|min|max|abs|float|int|bool|train|eval|cuda|to|half|synchronize"
    "|barrier|empty_cache|gather|gather_for_metrics|reduce|all_reduce|all_gather|broadcast|cpu|numpy|update|copy|deepcopy"
    "|zip|list|tuple|dict|set|enumerate|range|iter|next|filter|map|sorted|reversed|sqrt|exp|Timer|time|requires_grad_"
    "|modules|named_modules|children|apply|compile|get_lr|get_last_lr|get_scale|chain|add|put|register|record|write|extend"
    "|unwrap_model|unwrap|prepare|initialize|push_to_hub|callback|freeze|unfreeze|wait_for_everyone|add_graph|stack|cat"
    "|SummaryWriter|EMA|ModelEMA|ModelEmaV2|AveragedModel|EMAModel|Path|open|join|dump|dumps|tensor|zeros_like|ones_like"
    "|set_epoch|set|is_available|device|autocast|get|setdefault|items|keys|values|pop|ModelEma|AverageMeter|Wandb|finish"
)
HARMLESS_CALLS = frozenset(_HARMLESS.split("|"))
HARMLESS_PARTS = (
    "save", "load", "eval", "valid", "test", "log", "print", "report", "metric", "plot", "wandb", "ema",
    "sample", "count", "num_param", "checkpoint", "resume", "restore", "get_", "set_lr", "lr_", "_lr",
    "adjust", "init", "monitor", "profil", "export", "visual", "hook", "summar", "display", "callback",
    "is_", "has_", "check", "reduce", "freeze", "track", "record", "generat", "infer", "predict",
    "compile", "describe", "dist_", "broadcast", "gather", "watch", "average", "accuracy",
    "master_params", "from_pretrained", "warmup", "saving", "dump", "backup", "upload", "found_inf",
)  # fmt: skip


# The logarithm of a chance is no log.
_LOGARITHM = re.compile(r"log_?(prob|ps?(?=_|$)|softmax|its|likelihood)")
_CHANCE = re.compile(r"log_?(prob|ps?(?=_|$)|its)")


def is_chance(called: str) -> bool:
    """True for a function that works out the logarithms of a model's chances (`get_per_token_logps(model, …)`)."""
    return bool(_CHANCE.search(called.lower()))


@lru_cache(maxsize=4096)
def is_report(name: str) -> bool:
    """True for the last name of a call that shows a number to somebody."""
    return name in REPORTS or _REPORT.fullmatch(name) is not None


@lru_cache(maxsize=4096)
def is_harmless(callee: str) -> bool:
    """True when a call of that dotted name cannot change gradients or take a step, as far as its name tells."""
    last = callee.rpartition(".")[2].strip("()")
    low = _LOGARITHM.sub("", last.lower())
    return (
        callee.startswith(("torch.", "logging.", "wandb."))
        or last in HARMLESS_CALLS
        or any(part in low for part in HARMLESS_PARTS)
    )


def optimizer_kind(path: str) -> str:
    """The optimizer class that a dotted callee builds, "" for none."""
    last = path.rpartition(".")[2]
    if last in OPTIMIZERS or _OPTIMIZER_VARIANT.search(last):
        return last
    of_torch = path.startswith(("torch.optim.", "optim.")) and "lr_scheduler" not in path
    return last if of_torch and last[:1].isupper() else ""


def is_scheduler(bases: Iterable[str]) -> bool:
    """True for a class of the project's that derives from one of torch's schedulers."""
    return not _SCHEDULER_BASES.isdisjoint(bases)


# What a class sets to tell the Trainer of transformers whether to divide its loss, the second since 5.19.
TRAINER_SWITCHES = ("model_accepts_loss_kwargs", "loss_is_scaled_for_ga")


# What makes a tensor to be filled later.
ALLOCATING = frozenset(
    {"torch.zeros", "torch.empty", "torch.full", "torch.ones", "torch.zeros_like", "torch.empty_like"}
)  # fmt: skip
