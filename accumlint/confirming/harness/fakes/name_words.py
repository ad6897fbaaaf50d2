"""What the words of a name tell about what it stands for, where no role is known."""

from __future__ import annotations

import re
from collections.abc import Iterable

# What a micro-batch holds.
DATA = re.compile(
    r"^(?!.*(context|time|meter|izer|processor|norm|metric|stat|log|count|num|size|idx|index|sampler|fn$|func|hook)).*(batch|data$|input|image|sample|target|label|text$|audio|token|mask|img|^[xy]s?(_train|_batch|_tr|_?b)?$|feature|video|^inp|^valid$|^valid_(pixel|position|place|row)s?$)"
)
# Functions that make a thing are not the thing, and neither is what tells how it is to be.
MAKERS = re.compile(
    r"^(get|build|create|make|init|setup|set|load|save|configure|prepare|register"
    r"|parallelize|shard|wrap|compile|convert|apply|freeze|unfreeze|log|print|count)_"
)
# What a model trains, as another object keeps it.
TRAINED = re.compile(
    r"^(trainable|learnable|train|model|net|network|lora|adapter|all)_(params|parameters)$"
)
NO_MODEL = re.compile(
    r"^model_(dump|validate|copy|fields|config|name|path|type|id|args|kwargs|dir)|count$|_dict$|^(batch|data|sample)_generator$"
)
NO_LOADER = re.compile(
    r"_dict$|config|cfg|conf$|kwargs|args$|class|cls$|_name$|^(n|num|max|total)_"
)
# What is asked for by such a name is a flag.
QUESTION = re.compile(r"(enable|disable|needs?|uses?|should|wants?)_")
# A running average of the weights is no network that trains; often the first rank alone has one.
AVERAGE = re.compile(
    r"(^|[._ ])(ema|swa|shadow|average[sd]?)(_|\b)|\b(EMA|SWA)|Averaged?(Model|Weights)"
)
# Names of networks that reading does not go by, since they are more often parts of one.
NETWORK = re.compile(r"classifier$|^(?!(n|num)_)(.*_)?(clf|head|predictor|projector)$")
CRITERION = re.compile(r"^(loss|criterion)_?(fn|func|function)$")
# What an object is called that gives a loss when it is called.
COMPUTING = re.compile(r"^(compute|calc|calculate)_loss(_\w+)?$")
IGNORED = re.compile(r"ignore_?ind|ignore_?id")
NAMES_PADDING = re.compile(r"pad_?(token_?)?id|padding_idx|^pad_?index$")
# Settings by a name that an optimizer may have too, which holds no data.
OPTIONS = re.compile(r"opts?\.")
# A function that looks at what has been trained.
_EVALUATING = re.compile(r"(^|_)(test|eval(uate|uation)?|valid(ate|ation)?)(_|$)")
# One number of several.
ONE_OF = re.compile(r"(\w+)s\[\d\]")
# A window may be asked for by what it holds.
WINDOW = re.compile(
    r"^(optim(izer)?|update|effective|global|total|virtual|target|desired|logical)_batch_?size$"
    r"|(accum|acc|update)\w*_(?P<tokens>n_?tokens|num_tokens|tokens)$"
)
# Flags that are off in the ordinary course of training, and ends that come once in a long while.
SELDOM = re.compile(
    r"fsdp|deepspeed|compile|throughput|benchmark|(^|[._])(do_)?(eval|test)|\(\)$"
    r"|new_epoch|epoch_end|is_last|is_end|exhausted|finished|early_stop|overflow"
)
# What looks at an optimizer, moves its learning rate, or sets things up.
HARMLESS = re.compile(
    r"^set_|save|load|checkpoint|ckpt|resum|restor|log|print|report|state|eval|valid|test|lr|rate|sched|warm|momentum|early|meter|write"
    r"|setup|set_up|prepar|init|wrap|build|make|creat|context|hook|^(skip_)?synchronize\b"
)
# What does something to a setting is none.
VERB = re.compile(r"(adjust|compute|calculate|calc|get|set|build|create|make|apply|reset|clear)_")
# The only stage of a pipeline is its first and its last.
ONLY = re.compile(r"is_\w*(first|last)\w*_stage")
# What is asked where there is one process.
ALONE = re.compile(r"single_?(gpu|device|process)|no_?(ddp|distributed)|one_gpu")
RANKS = re.compile(r"world_size$|^n(um)?_?(processes|procs?|gpus?)$")
# Flags and settings that ask for a GradScaler.
SCALED = re.compile(r"fp16|float16|(^|_)half$|(^|_)amp($|_)|mixed_prec|(^|_)(grad_?)?scaler$")


def evaluates(functions: Iterable[str]) -> bool:
    """Whether one of the functions that are being run looks at what has been trained, by its name."""
    return any(map(_EVALUATING.search, functions))
