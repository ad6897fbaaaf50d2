"""A trainer that is made and not derived from divides the model's mean, and so does DeepSpeed's pipeline."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accumlint.check import check
from accumlint.config import Settings
from accumlint.files.inputs.discovery import Target
from accumlint.reading.pins import newest
from accumlint.reading.project import Project

HEAD = "from transformers import {imported}, TrainingArguments\n"
MODEL = "from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained('m')\n"
SEQ2SEQ = MODEL.replace("CausalLM", "Seq2SeqLM")
LABELS = "labels[:prompt] = -100\n"
ARGUMENTS = "args = TrainingArguments('out', gradient_accumulation_steps=8)\n"
MADE = "trainer = {name}(model=model, args=args, train_dataset=rows)\ntrainer.train()\n"
OLD = {"requirements.txt": "torch\ntransformers==4.31.0\n"}
NEW = {"requirements.txt": "torch\ntransformers>=4.50\n"}
OF_MODEL = """\
import torch.nn as nn
from transformers import AutoModelForCausalLM, PreTrainedModel


class Net({base}):
    def forward(self, input_ids, labels=None{more}):
        labels[labels == 0] = -100
        return self.inner(input_ids=input_ids, labels=labels)


model = Net.from_pretrained("m")
"""
PIPELINE = """\
import deepspeed
from deepspeed.pipe import PipelineModule

labels[:prompt] = -100
engine, _, _, _ = {made}(model=PipelineModule(layers, loss_fn=lm_loss), config=config)
for _ in range(updates):
    engine.train_batch(data_iter=rows)
"""
DERIVED = "\n\nclass Own(Trainer):\n    {body}\n\n\n"


def script(
    name: str = "Trainer",
    model: str = MODEL,
    labels: str = LABELS,
    between: str = "",
    made: str = MADE,
) -> str:
    return (
        HEAD.format(imported="Trainer")
        + model
        + labels
        + ARGUMENTS
        + between
        + made.format(name=name)
    )


def told(folder: Path, text: str, beside: dict[str, str], code: str = "ACC101") -> list[str]:
    (folder / ".git").mkdir()
    for name, content in {**beside, "train.py": text}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    file = folder / "train.py"
    (checked,) = check([Target(str(file), str(file), Settings(folder))])
    assert not checked.problems
    return [r.message for r in checked.reports if r.code == code]


Beside = dict[str, str]
COUNTED = OF_MODEL.format(base="PreTrainedModel", more=", **kwargs")
OWN_TEXT = OF_MODEL.format(base="nn.Module", more="")
SPOKEN: dict[str, tuple[str, Beside, str]] = {
    "an old release is pinned": (script(), OLD, "transformers 4.31"),
    "by a subclass that leaves the loss alone": (
        script("Own", between=DERIVED.format(body="def get_train_dataloader(self): return rows")),
        OLD,
        "transformers 4.31",
    ),
    "the model takes no `**kwargs`": (script(model=OWN_TEXT), NEW, "`Net.forward` takes no"),
    "the model has no `labels` that the Trainer could count": (
        script(model=COUNTED.replace("labels", "targets")),
        NEW,
        "`Net.forward` takes no `labels` that could be counted",
    ),
    "the model says so": (
        script(model=OF_MODEL.format(base="PreTrainedModel", more=", **kwargs").replace(
            "    def forward", "    accepts_loss_kwargs = False\n\n    def forward"
        )),
        {},
        "`Net` sets `accepts_loss_kwargs` to False",
    ),
    "its class says so": (
        script("Own", between=DERIVED.format(body="model_accepts_loss_kwargs = False")),
        NEW,
        "`Own` says that its loss counts no window",
    ),
    "a model that is told no count before release 5": (
        script(model=SEQ2SEQ, made=MADE.replace("args=args", "args=args, tokenizer=tokenizer")),
        {},
        "`tokenizer=` needs transformers 4.57 or older, where models of `AutoModelForSeq2SeqLM` take no",
    ),
    "the same by a pin": (
        script(model=SEQ2SEQ, made="given = dict(model=model, args=args)\ntrainer = {name}(**given)\n"),
        {"pyproject.toml": '[project]\ndependencies = ["transformers>=4.50,<5"]\n'},
        "the project pins transformers 4, where models of",
    ),
    "arguments that a later release refuses": (
        script(
            model=MODEL.replace("AutoModelForCausalLM", "BertForTokenClassification"),
            between="more = TrainingArguments('out', evaluation_strategy='no')\n",
        ),
        {},
        "`evaluation_strategy=` needs transformers 4.50 or older, where `BertForTokenClassification` takes no",
    ),
    "a name that later releases lack": (
        script(between="names = transformers.GPT2_PRETRAINED_MODEL_ARCHIVE_LIST\n"),
        {},
        "`GPT2_PRETRAINED_MODEL_ARCHIVE_LIST` needs transformers 4.40 or older",
    ),
    "a name that later releases of another library lack": (
        "from peft import prepare_model_for_int8_training\n" + script(),
        {},
        "`prepare_model_for_int8_training` needs peft 0.9 or older",
    ),
    "a library that later releases do not run beside": (
        script(),
        {"requirements.txt": "torch\ntransformers\ntokenizers==0.13.3\n"},
        "tokenizers 0.13, which the project pins, needs transformers 4.44 or older",
    ),
    "DeepSpeed's pipeline": (
        PIPELINE.format(made="deepspeed.initialize"),
        {},
        "DeepSpeed's pipeline averages",
    ),
}  # fmt: skip
SILENT: dict[str, tuple[str, Beside]] = {
    "a new release": (script(), NEW),
    "no release is pinned": (script(), {}),
    "a library that they run beside": (
        script(),
        {"requirements.txt": "transformers\ntokenizers==0.20.3\naccelerate==0.34.2\n"},
    ),
    "a function of the file that is called like what is gone": (
        script(between="def prepare_model_for_int8_training(model): return model\n"),
        {},
    ),
    "the model takes `**kwargs`": (
        script(model=OF_MODEL.format(base="PreTrainedModel", more=", **kwargs")),
        NEW,
    ),
    "a model that is told the count since release 5": (
        script(
            model=SEQ2SEQ, made=MADE.replace("args=args", "args=args, processing_class=tokenizer")
        ),
        {},
    ),
    "a model that was always told it": (
        script(made=MADE.replace("args=args", "args=args, tokenizer=tokenizer")),
        {},
    ),
    "token classification by a decoder, which takes them in 4.57": (
        script(
            model=MODEL.replace("AutoModelForCausalLM", "LlamaForTokenClassification"),
            made=MADE.replace("args=args", "args=args, tokenizer=tokenizer"),
        ),
        {},
    ),
    "the accumulation steps are left at one": (
        script().replace(", gradient_accumulation_steps=8", ""),
        OLD,
    ),
    "an argument of the subclass": (
        script(
            "Own",
            model=SEQ2SEQ,
            between=DERIVED.format(
                body="def __init__(self, tokenizer, **more): super().__init__(**more)"
            ),
            made=MADE.replace("args=args", "args=args, tokenizer=tokenizer"),
        ),
        {},
    ),
    "a loss function is given": (
        script(made=MADE.replace("args=args", "args=args, compute_loss_func=lost")),
        OLD,
    ),
    "a subclass with a loss": (
        script(
            "Own", between=DERIVED.format(body="def compute_loss(self, m, i): return counted(m, i)")
        ),
        OLD,
    ),
    "one label for each row": (
        script(model=MODEL.replace("CausalLM", "SequenceClassification"), labels=""),
        OLD,
    ),
    "one label for each row, beside labels that are left out": (
        script(
            model=MODEL.replace("CausalLM", "SequenceClassification")
            + "model = get_peft_model(model, settings)\n"
        ),
        OLD,
    ),
    "blocks of one length": (script(labels="rows = group_texts(rows)\n"), OLD),
    "another library's engine": (PIPELINE.format(made="deepspeech.initialize"), {}),
    "another library's trainer": (
        script().replace(
            "from transformers import Trainer,", "from own import Trainer\nfrom transformers import"
        ),
        OLD,
    ),
}


@pytest.mark.parametrize(("text", "beside", "why"), SPOKEN.values(), ids=SPOKEN)
def test_a_trainer_that_divides_the_model_s_mean_is_told_with_the_reason(
    text: str, beside: dict[str, str], why: str, tmp_path: Path
) -> None:
    (message,) = told(tmp_path, text, beside)
    assert why in message


@pytest.mark.parametrize(("text", "beside"), SILENT.values(), ids=SILENT)
def test_a_trainer_that_counts_or_has_nothing_to_count_is_not_told(
    text: str, beside: dict[str, str], tmp_path: Path
) -> None:
    assert told(tmp_path, text, beside) == []


# Whether neither the Trainer nor the model divides.
UNDIVIDED: dict[str, tuple[str, Beside, bool]] = {
    "the model drops the count": (script(model=COUNTED), NEW, True),
    "whichever release is there": (script(model=COUNTED), {}, True),
    "the model hands the count on": (
        script(model=COUNTED.replace("labels=labels)", "labels=labels, **kwargs)")), NEW, False,
    ),
    "the model reads the count": (
        script(model=COUNTED.replace("**kwargs", "num_items_in_batch=None, **kwargs")), NEW, False,
    ),
    "the model says that it counts nothing": (
        script(model=COUNTED.replace(
            "    def forward", "    accepts_loss_kwargs = False\n\n    def forward"
        )), NEW, False,
    ),
    "a release that gives no count": (script(model=COUNTED), OLD, False),
    "the model has no labels": (script(model=COUNTED.replace("labels", "targets")), NEW, False),
    "the accumulation steps are left at one": (
        script(model=COUNTED).replace(", gradient_accumulation_steps=8", ""), NEW, False,
    ),
    "a subclass with a loss": (
        script("Own", model=COUNTED, between=DERIVED.format(
            body="def compute_loss(self, m, i): return counted(m, i)"
        )), NEW, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "beside", "undivided"), UNDIVIDED.values(), ids=UNDIVIDED)
def test_a_model_that_drops_the_count_is_divided_by_nobody(
    text: str, beside: dict[str, str], undivided: bool, tmp_path: Path
) -> None:
    why = (
        "`Net.forward` takes `**kwargs` and ignores `num_items_in_batch`, and `Trainer` does not "
        "divide its loss by the accumulation steps"
    )
    assert told(tmp_path, text, beside, "ACC601") == [why] * undivided


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("requirements.txt", "transformers==4.31.0\n", (4, 31)),
        ("requirements-dev.txt", "transformers[torch] == 4.33\n", (4, 33)),
        ("requirements.txt", "transformers>=4.30,<4.46\n", (4, 45)),
        ("requirements.txt", "transformers<4.46.1\n", (4, 46)),
        ("requirements.txt", "transformers>=4.41,<5\n", (4, 9999)),
        ("requirements.txt", "transformers<=4\n", None),
        ("requirements.txt", "transformers~=4.40.1\n", (4, 40)),
        ("requirements.txt", "transformers~=4.40\n", None),
        ("requirements.txt", "transformers>=4.40\n", None),
        ("requirements.txt", "transformers!=4.40.0\n", None),
        ("requirements.txt", "transformers\ntorch==2.1.0\n", None),
        ("requirements.txt", "sentence-transformers==2.2\n", None),
        ("requirements.txt", "# transformers once had to be\ntokenizers==0.13\n", None),
        (
            "requirements.txt",
            "git+https://github.com/huggingface/transformers.git@v4.43.0\n",
            (4, 43),
        ),
        ("environment_llama.yml", "dependencies:\n  - transformers=4.28.1=py310\n", (4, 28)),
        (
            "pyproject.toml",
            '[project]\ndependencies = ["transformers==4.44.2", "torch"]\n',
            (4, 44),
        ),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntransformers = "4.28.1"\n', (4, 28)),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntransformers = "^4.28"\n', None),
        ("setup.py", 'setup(install_requires=["transformers", "torch==2.1.0"])\n', None),
        ("project_pip.txt", "torch==2.1.0\ntransformers==4.34.1\n", (4, 34)),
        ("py3.7.yaml", "  - pip:\n    - transformers==4.9.2\n", (4, 9)),
        ("README.md", "    pip install torch transformers==4.37.0\n", (4, 37)),
        ("Dockerfile", "RUN pip install 'transformers<4.46'\n", (4, 45)),
        ("CHANGELOG.md", "- pins transformers==4.31.0\n", None),
    ],
)
def test_the_newest_version_that_a_file_allows_is_read(
    file: str, text: str, expected: tuple[int, int] | None, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / file).write_text(text)
    (tmp_path / "deep").mkdir()
    assert newest("transformers", str(tmp_path / "deep" / "train.py"), Project()) == expected


def test_the_nearest_file_counts_and_none_outside_the_project(tmp_path: Path) -> None:
    top = tmp_path / "project"
    (top / ".git").mkdir(parents=True)
    (top / "part").mkdir()
    (tmp_path / "requirements.txt").write_text("transformers==4.20\n")
    train = str(top / "part" / "train.py")
    assert newest("transformers", train, Project()) is None
    (top / "requirements.txt").write_text("transformers==4.30\n")
    assert newest("transformers", train, Project()) == (4, 30)
    (top / "part" / "requirements.txt").write_text("transformers==4.40\n")
    assert newest("transformers", train, Project()) == (4, 40)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")
def test_a_pipe_a_link_and_a_huge_file_pin_nothing(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / "requirements.txt")
    (tmp_path / "requirements-link.txt").symlink_to("/dev/zero")
    (tmp_path / "requirements-huge.txt").write_text("transformers==4.30\n" + "#" * 2_000_000)
    assert newest("transformers", str(tmp_path / "train.py"), Project()) is None
