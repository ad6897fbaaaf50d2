"""Evidence of how many targets the micro-batches of a window count, and what ACC101 makes of it."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from accumlint.check import check
from accumlint.config import Settings
from accumlint.files.inputs.discovery import Target
from accumlint.reading.syntax import Source
from accumlint.reading.targets import TABLE, Kind, gathered, weight

SEEN = [
    ("F.cross_entropy(logits.view(-1, size), y.view(-1))", {"flattened"}),
    ("criterion(logits.transpose(1, 2), y)", {"flattened"}),
    ("F.cross_entropy(logits, y)", set[str]()),
    ("labels = tokens[:, 1:]", {"shifted"}),
    ("first = rows[1:]", set[str]()),
    ("model = AutoModelForCausalLM.from_pretrained(name)", {"language model"}),
    ("loss = model(input_ids=x, labels=y).loss", {"given"}),
    ("loss = model(pixel_values=x, labels=y).loss", set[str]()),
    ("loss = model(input_ids, attention_mask=mask, labels=y).loss", {"given", "attention mask"}),
    ("labels[:length] = -100", {"left out"}),
    ("labels = [-100] * length", {"left out"}),
    ("y = torch.ones_like(x) * -1\ncriterion = CrossEntropyLoss(ignore_index=-1)", {"left out"}),
    ("y = torch.ones_like(x) * 2\ncriterion = CrossEntropyLoss(ignore_index=-1)", set[str]()),
    ("y = torch.where(seen, y, torch.tensor(criterion.ignore_index))", {"left out"}),
    ("rows = logits[labels != -100]", {"left out", "counted"}),
    ("labels = torch.where(mask, tokens, -100)", {"left out"}),
    ("IGNORE = -100\nlabels[0] = IGNORE", {"left out"}),
    ("data = rows(path, ignored=IGNORE)\nIGNORE = -100", {"left out"}),
    ("data = rows(path, -100)", set[str]()),
    ("loss = CrossEntropyLoss(ignore_index=-100)", set[str]()),
    ("loss = CrossEntropyLoss(ignore_index=tokenizer.pad_token_id)", {"ignored padding"}),
    ("loss = CrossEntropyLoss(ignore_index=255)", {"own value"}),
    ("labels = pad_sequence(rows, padding_value=-100)", {"padded", "padded labels"}),
    ("batch = tokenizer(texts, padding=True, truncation=True)", {"padded", "truncated"}),
    ("batch = tokenizer(texts, padding='max_length')", set[str]()),
    ("convolution = nn.Conv1d(3, 8, 3, padding=1)", set[str]()),
    ("collate = DataCollatorForSeq2Seq(tokenizer)", {"padded labels"}),
    ("collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)", {"collator"}),
    ("collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)", {"random mask"}),
    ("text = tokenizer.apply_chat_template(rows)", {"chat"}),
    ("loss = mlm_loss + pair_loss", {"random mask"}),
    ("from data import MlmDataset", {"random mask"}),
    ("loss, labels = model(masked_lm_labels=y)[0], args.mlm_probability", {"random mask"}),
    ("decay = ['bias', 'mlm_ln.weight']\nx = mlm_ln(x)", set[str]()),
    ("loss = model(tokens, y, loss_mask=mask)", {"loss mask"}),
    ("loss = model(tokens, y, attn_mask=mask)", set[str]()),
    ("count = (labels != -100).sum()", {"counted"}),
    ("main = rank != -1", set[str]()),
    ("data = SFTDataset(path)", {"tuning data"}),
    ("total = total // size * size", {"blocks"}),
    ("padded = (total + size - 1) // size * size", set[str]()),
    ("i = torch.randint(len(data) - size, (rows,))", {"drawn"}),
    ("model = AutoModelForSequenceClassification.from_pretrained(name)", {"classes"}),
    ("pair = row['chosen'], row['rejected']", {"pairs"}),
    ("masks = Masks(size, mask_ratio=config.DATA.MASK_RATIO)", {"ratio"}),
    ("def loss(x, y, mask):\n    return F.mse_loss(x[mask], y[mask])", {"picked"}),
    ("def loss(x, y, mask):\n    return F.mse_loss(x, y.masked_select(mask))", {"selected"}),
    ("def loss(x, y, i):\n    return F.mse_loss(x[i], y[i])", set[str]()),
    ("def pairs(x, y, mask):\n    return x[mask], y[mask]", set[str]()),
    ("def loss(x, mask):\n    return (x * mask).sum() / mask.sum()", {"masked mean"}),
    ("def loss(x, w):\n    return torch.sum(x * w) / torch.sum(w)", {"masked mean"}),
    ("def loss(x, mask):\n    n = mask.sum()\n    return x.sum() / n", {"masked mean"}),
    ("def loss(x, mask):\n    return (x * mask).sum(1) / mask.sum(1)", set[str]()),
    ("def score(x, mask):\n    return (x * mask).sum() / mask.sum()", set[str]()),
]


@pytest.mark.parametrize(("code", "keys"), SEEN, ids=[code.partition("\n")[0] for code, _ in SEEN])
def test_each_kind_of_evidence_is_seen(code: str, keys: set[str]) -> None:
    source = Source("train.py", code)
    found = {e.key for e in gathered([(source, ast.parse(code))])}
    assert found - {"language model"} == keys - {"language model"}
    assert ("language model" in keys) <= ("language model" in found)


def test_every_row_of_the_table_has_an_example() -> None:
    assert set().union(*(keys for _, keys in SEEN)) == set(TABLE) - {"text"}


def test_a_kind_counts_once() -> None:
    code = "labels[0] = -100\nlabels[1] = -100"
    found = gathered([(Source("train.py", code), ast.parse(code))])
    assert weight(found) == TABLE["left out"].weight
    assert [e.node.lineno for e in found if isinstance(e.node, ast.stmt)] == [1]


def test_rows_for_and_against_have_their_sign() -> None:
    signs = {Kind.POSITION: 0, Kind.VARIES: 1, Kind.EQUAL: -1}
    for key, row in TABLE.items():
        assert (row.weight > 0) - (row.weight < 0) == signs[row.kind], key


TRAIN = """
def train(model, loader, optimizer, steps):
    for i, batch in enumerate(loader):
        loss = model(**batch).loss / steps
        loss.backward()
        if (i + 1) % steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""
PADDED = """
from transformers import AutoModelForCausalLM, DataCollatorForSeq2Seq
from loop import train

collate = DataCollatorForSeq2Seq(tokenizer)
model = AutoModelForCausalLM.from_pretrained(name)
train(model, DataLoader(rows, collate_fn=collate), optimizer, 4)
"""
BLOCKS = """
from transformers import AutoModelForCausalLM
from loop import train

def group_texts(rows):
    return rows

model = AutoModelForCausalLM.from_pretrained(name)
train(model, DataLoader(rows.map(group_texts)), optimizer, 4)
"""


@pytest.mark.parametrize(
    "imported", ["import nets", "from . import nets", "def read():\n    from nets import Reader"]
)
def test_an_imported_module_tells_by_what_is_used_of_it(tmp_path: Path, imported: str) -> None:
    nets = """
        class Reader(nn.Module):
            def forward(self, batch, labels, mask):
                logits = self.net(batch)
                return F.cross_entropy(logits[mask], labels[mask])
        """
    used = "    return Reader()" if "def" in imported else "model = nets.Reader()"
    (tmp_path / "setup.cfg").touch()
    (tmp_path / "nets.py").write_text(dedent(nets), encoding="utf-8")
    (tmp_path / "main.py").write_text(
        f"from loop import train\n{imported}\n{used}\n", encoding="utf-8"
    )
    (tmp_path / "loop.py").write_text(TRAIN, encoding="utf-8")
    target = Target("loop.py", str(tmp_path / "loop.py"), Settings(tmp_path, select=("ACC101",)))
    [report] = next(check([target])).reports
    assert {r.message for r in report.related if r.elsewhere} == {TABLE["picked"].says}


@pytest.mark.parametrize(
    ("caller", "found"), [(PADDED, [("ACC101", "likely")]), (BLOCKS, []), ("", [])]
)
def test_what_imports_a_loop_tells_of_its_labels(
    tmp_path: Path, caller: str, found: list[tuple[str, str]]
) -> None:
    (tmp_path / "setup.cfg").touch()
    (tmp_path / "loop.py").write_text(TRAIN, encoding="utf-8")
    (tmp_path / "main.py").write_text(caller, encoding="utf-8")
    file = str(tmp_path / "loop.py")
    checked = next(check([Target("loop.py", file, Settings(tmp_path, select=("ACC101",)))]))
    reports = checked.reports
    assert [(r.code, r.confidence) for r in reports] == found
    for report in reports:
        assert {r.place.line for r in report.related if r.elsewhere} == {2, 5}
        assert {r.message for r in report.related} >= {
            TABLE["padded labels"].says,
            TABLE["language model"].says,
        }


TEXT = "from transformers import AutoTokenizer\n"
CLASSES = "model = AutoModelForSequenceClassification.from_pretrained(name)\n"
NETS = "class Net(nn.Module):\n    def forward(self, x, y):\n        return self.head(x, y)\n"


@pytest.mark.parametrize(
    ("text", "beside", "found"),
    [
        (TEXT + TRAIN, {}, ["likely"]),
        (TRAIN, {}, []),
        (TEXT + CLASSES + TRAIN, {}, []),
        (TEXT + "from nets import Net\nmodel = Net()\n" + TRAIN, {"nets.py": NETS}, []),
        (TEXT + TRAIN, {"main.py": "from loop import train\ntrain(net, rows, optimizer, 4)\n"}, []),
        (TEXT + TRAIN.replace(".loss", "['action_loss']"), {}, []),
        (TEXT + TRAIN + "trainer.model_accepts_loss_kwargs = False\n", {}, []),
        (TEXT + TRAIN.replace("model(**batch).loss", "F.mse_loss(model(batch), 0)"), {}, []),
    ],
    ids=[
        "alone",
        "no text",
        "classes",
        "its model is here",
        "its caller is here",
        "one of several",
        "no count",
        "another loss",
    ],
)
def test_a_file_alone_is_judged_by_the_libraries_that_it_imports(
    tmp_path: Path, text: str, beside: dict[str, str], found: list[str]
) -> None:
    (tmp_path / "setup.cfg").touch()
    for name, content in {**beside, "loop.py": text}.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    target = Target("loop.py", str(tmp_path / "loop.py"), Settings(tmp_path, select=("ACC101",)))
    assert [r.confidence for r in next(check([target])).reports] == found


def test_a_folder_that_is_too_large_is_not_searched_for_callers(tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").touch()
    (tmp_path / "loop.py").write_text(TRAIN, encoding="utf-8")
    (tmp_path / "main.py").write_text(PADDED, encoding="utf-8")
    for number in range(501):
        (tmp_path / f"data{number}").mkdir()
    target = Target("loop.py", str(tmp_path / "loop.py"), Settings(tmp_path, select=("ACC101",)))
    assert next(check([target])).reports == ()
