"""Calls of trainers and engines that take the loss from the model: which divide its mean by the accumulation steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import itemgetter

from accumlint.reading import ir as p
from accumlint.reading.frameworks import TRAINER_SWITCHES
from accumlint.reading.hooks import (
    COUNTING,
    HOOKS,
    METHODS,
    Division,
    is_of,
    lineage,
    named,
    set_to,
    sets_no_steps,
)
from accumlint.reading.pins import Version, as_text, newest
from accumlint.reading.program import Program
from accumlint.reading.project import Project
from accumlint.reading.trainer_methods import StockTrainer

# Since this release the Trainer gives the number of targets in the window to a model whose `forward` takes `**kwargs`,
# and divides by the accumulation steps for others only.
_COUNTING_SINCE = (4, 46)
# The first release in which the `forward` of a class takes them, where it is a later one (read from the source of
# 4.46 to 5.0). Most classes of a kind stand for those that `AutoModelFor…` gives.
_TAKING_SINCE = {
    re.compile(
        r"^(?!Esm|ModernBert|Tapas|Lxmert|RoCBert|ViTMAE|VideoMAE|Parakeet)\w*"
        r"For(MaskedLM|Seq2SeqLM|SpeechSeq2Seq|PreTraining|CTC)$"
    ): (5, 0),
    re.compile(
        r"^(AutoModel|Bert|\w*Roberta|DistilBert|Albert|Electra|Deberta(V2)?|Camembert|BigBird|Longformer|LayoutLM(v[23])?"
        r"|MPNet|MobileBert)ForTokenClassification$"
    ): (5, 0),
    re.compile(
        r"^(U?M?T5|LongT5|SwitchTransformers|M?Bart|Pegasus\w*|BigBirdPegasus|LED|Marian|M2M100|Blenderbot\w*|Whisper"
        r"|ProphetNet|FSMT|PLBart|Mvp|Speech2Text)(ForConditionalGeneration|MTModel)$"
    ): (5, 0),
    re.compile(
        r"^(GPT2|GPTNeoX?|GPTJ|GPTBigCode|OPT|CodeGen|Falcon|Mpt|XGLM|BioGpt|Rwkv|StableLm|Roberta|XLMRoberta|OpenAIGPT)"
        r"(ForCausalLM|LMHeadModel)$"
    ): (4, 49),
    re.compile("^(Mistral|Granite)ForCausalLM$"): (4, 48),
}  # fmt: skip
# The last release that takes an argument, in the call of a Trainer or of its TrainingArguments.
_LAST_TAKING = {"tokenizer": (4, 57), "evaluation_strategy": (4, 50)}
# The last release that runs beside a library's release or an older one (from what its package requires).
_LAST_BESIDE = {"accelerate": ((0, 25), (4, 44)), "tokenizers": ((0, 19), (4, 44))}
# The last release when a name could still be imported, and what needs it.
_LAST_WITH = {
    re.compile(r"_PRETRAINED_(MODEL_|CONFIG_)?ARCHIVE_(LIST|MAP)$"): (
        (4, 40),
        "transformers 4.40 or older",
    ),
    re.compile(r"^prepare_model_for_int8_training$"): (
        (4, 38),
        "peft 0.9 or older, which is as old as transformers 4.38",
    ),
}
_HOOKS = [hook for hook in HOOKS if hook.division is Division.UNLESS_COUNTED]
# How a model tells the Trainer, whatever its `forward` takes.
_OF_MODELS = "accepts_loss_kwargs"


def stock_trainers(program: Program, project: Project) -> Iterator[StockTrainer]:
    """The calls of a file of which it is known whether the mean of each micro-batch is divided."""
    if any(
        p.dotted(made.func) == "deepspeed.initialize"
        for made in program.calls.get("initialize", ())
    ):
        for call in program.calls.get("train_batch", ()):
            yield StockTrainer(
                call, "DeepSpeed's pipeline averages the losses of the micro-batches"
            )
    for call in program.of(p.Call):
        name = p.dotted(call.func)
        known = "Trainer" in name or name in program.classes
        if not known or call.keyword(COUNTING) is not None:
            continue
        classes, outside = _lineage(name, program, project)
        hook = next((h for h in _HOOKS for path in outside if is_of(h, path)), None)
        if hook is None or sets_no_steps(hook, program):
            continue
        if any(
            not METHODS.isdisjoint(cls.methods) or COUNTING in cls.attributes for cls in classes
        ):
            continue
        switched = {set_to(switch, classes) for switch in TRAINER_SWITCHES} - {None}
        if switched:
            if switched == {False}:
                yield StockTrainer(call, f"`{classes[0].name}` says that its loss counts no window")
        elif (found := _judged(call, classes, program, project)) is not None:
            yield found


def _judged(
    call: p.Call, trainers: tuple[p.Class, ...], program: Program, project: Project
) -> StockTrainer | None:
    """What a trainer does with the loss of its model, None where that is not known."""
    model = _model(call, program)
    name_of_model = p.render(model) if model is not None else ""
    if program.labels_rows(name_of_model):
        return None
    names = {""}
    ignoring: StockTrainer | None = None
    for value in program.assigned.get(name_of_model, ()):
        made = p.dotted(value.func) if isinstance(value, p.Call) else ""
        name = re.sub(r"\.from_(pretrained|config)$", "", made)
        names.add(name.rpartition(".")[2])
        classes, _ = _lineage(name, program, project)
        forward = next((c.methods["forward"] for c in classes if "forward" in c.methods), None)
        if set_to(_OF_MODELS, classes) is False:
            return StockTrainer(call, f"`{classes[0].name}` sets `{_OF_MODELS}` to False")
        if forward is not None:
            why = f"`{classes[0].name}.forward`"
            if not any(param.star == "**" for param in forward.params):
                return StockTrainer(call, f"{why} takes no `**kwargs`")
            if _drops_the_rest(forward):
                if "labels" not in {param.name for param in forward.params}:
                    return StockTrainer(call, f"{why} takes no `labels` that could be counted")
                if "labels" in forward.names_read:
                    told = f"{why} takes `**kwargs` and ignores `num_items_in_batch`"
                    ignoring = StockTrainer(call, undivided=told, model=forward)
    limit, because = _newest(call, trainers, program, project)
    if limit is not None and limit < _COUNTING_SINCE:
        return StockTrainer(call, because)
    if ignoring is not None:
        return ignoring
    since, name = max((_taking_since(name), name) for name in names)
    if limit is None or limit >= since:
        return None
    taking = f"models of `{name}` take" if name.startswith("Auto") else f"`{name}` takes"
    return StockTrainer(call, f"{because}, where {taking} no `**kwargs`")


def _drops_the_rest(forward: p.Function) -> bool:
    """True for a `forward` that reads nothing of what it is given besides its named parameters: no count of targets."""
    rest = {param.name for param in forward.params if param.star == "**"}
    named = {param.name for param in forward.params}
    return forward.names_read.isdisjoint(rest) and "num_items_in_batch" not in named


def _model(call: p.Call, program: Program) -> p.Expr | None:
    """The model that a trainer is given, also in a table of its arguments (`Trainer(**given)`)."""
    if (given := call.keyword("model")) is not None or not call.args:
        return given
    first = call.args[0]
    if first.star != "**":
        return first.value
    tables = (t for t in program.assigned.get(p.render(first.value), ()) if isinstance(t, p.Call))
    return next((m for t in tables if (m := t.keyword("model")) is not None), None)


def _taking_since(name: str) -> Version:
    """The first release of transformers whose Trainer gives a class of models the number of targets."""
    found = (since for pattern, since in _TAKING_SINCE.items() if pattern.search(name))
    return next(found, _COUNTING_SINCE)


def _newest(
    call: p.Call, trainers: tuple[p.Class, ...], program: Program, project: Project
) -> tuple[Version | None, str]:
    """The newest release of transformers that the project can use, None where that is not known, and what shows it."""
    shown: list[tuple[Version, str]] = []
    if (pinned := newest("transformers", program.path, project)) is not None:
        shown.append((pinned, f"the project pins transformers {as_text(pinned)}"))
    for library, (oldest, last) in _LAST_BESIDE.items():
        pinned = newest(library, program.path, project)
        if pinned is not None and pinned <= oldest:
            needs = f"needs transformers {as_text(last)} or older"
            shown.append((last, f"{library} {as_text(pinned)}, which the project pins, {needs}"))
    for name in sorted(program.words.union(program.imports)):
        for pattern, (last, needed) in _LAST_WITH.items():
            if pattern.search(name) and name not in program.definitions:
                shown.append((last, f"`{name}` needs {needed}"))
    calls = [c for c in program.of(p.Call) if p.dotted(c.func).endswith("TrainingArguments")]
    if not any("__init__" in trainer.methods for trainer in trainers):
        calls.append(call)
    for made in calls:
        for name, last in _LAST_TAKING.items():
            if made.keyword(name) is not None:
                shown.append((last, f"`{name}=` needs transformers {as_text(last)} or older"))
    return min(shown, default=(None, ""), key=itemgetter(0))


def _lineage(
    name: str, program: Program, project: Project
) -> tuple[tuple[p.Class, ...], tuple[str, ...]]:
    """The class that a name of a file means, with those of the project above it, and what these come from outside."""
    found, outside = named(name, program.source, program, project)
    return lineage(found[0], program, project) if found else ((), outside)
