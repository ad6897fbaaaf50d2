"""The public benchmark counts what it says it counts, for any linter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli
from helpers import FLAGGED, LOOP, ROOT, Ran

from accumlint.registry import packs

COMMAND = [sys.executable, str(ROOT / "benchmarks" / "labels.py")]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
HEAD = 'title = "made up"\nsplit = "unseen"\n'
PLACE = '\n[[loop]]\nrepository = "owner/name"\ncommit = "{commit}"\npath = "train.py"\n'
DEFECT = f"""
[[loop.defect]]
line = {FLAGGED}
code = "ACC102"
name = "loss-not-divided"
changes_gradients = true
why = "nothing divides it"
"""
# Two functions with more than sixty lines between them.
APART = LOOP + "\n" * 80 + LOOP.replace("def train", "def other")
SECOND = FLAGGED + LOOP.count("\n") + 80


def labels(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "made_up.toml").write_text(text, encoding="utf-8")
    return folder


def asked(*arguments: str | Path) -> Ran:
    ran = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def row(out: str, first: str = "made up") -> list[str]:
    (line,) = [line for line in out.splitlines() if line.startswith(f"| {first} ")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def git(home: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x"]
    command = ["git", "-C", str(home), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository as a host has it: the labelled file, what it imports, and what no linter reads."""
    home = tmp_path / "host" / "owner" / "name"
    home.mkdir(parents=True)
    for name, text in {"train.py": LOOP, "lib/losses.py": "", "data.csv": "1"}.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    (home / "link.py").symlink_to("/etc/passwd")
    git(home, "init", "-q")
    git(home, "config", "uploadpack.allowFilter", "true")
    git(home, "add", "-A")
    git(home, "commit", "-q", "-m", "x")
    return home


def test_commits_are_fetched_once_and_every_format_gives_the_same_figures(
    tmp_path: Path, repository: Path
) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    text = HEAD + PLACE.format(commit=commit) + "complete = true\n" + DEFECT
    files = tmp_path / "files"
    given = ["--labels", labels(tmp_path / "labels", text), "--files", files]
    fetch = ["--clone", tmp_path / "repositories", "--host", (tmp_path / "host").as_uri()]
    assert asked(*given, *fetch) == Ran(0, "", "")
    folder = f"owner+name@{commit[:10]}"
    written = sorted(str(file.relative_to(files)) for file in files.rglob("*.py"))
    assert written == [
        f"alone/{folder}/train.py",
        f"project/{folder}/lib/losses.py",
        f"project/{folder}/train.py",
    ]
    (tmp_path / "host").rename(tmp_path / "gone")
    assert asked(*given, *fetch) == Ran(0, "", "")

    accumlint = [sys.executable, "-m", "accumlint"]
    formats = {"json": tmp_path / "found.json", "sarif": tmp_path / "found.sarif"}
    outputs = [f"--output={kind}={file}" for kind, file in formats.items()]
    options = ["check", "--isolated", "--no-cache", "--exit-zero", "--select", "ALL"]
    subprocess.run([*accumlint, *options, *outputs, files], capture_output=True, check=True)
    of_json, of_sarif = (asked(*given, "--report", file) for file in formats.values())
    ran = asked(*given, "--run", " ".join(accumlint))
    assert of_json.code == of_sarif.code == ran.code == 0
    assert of_json.out == of_sarif.out == ran.out
    for part in ran.out.split("## ")[1:]:
        assert row(part) == [
            "unseen", "1", "1 of 1 (1.00)", "1 of 1 (1.00)", "1 / 0 / 0", "1 of 1 (1.00)", "0 of 0",
        ]  # fmt: skip
        assert row(part, "ACC102") == ["-", "0", "1 of 1", "0"]
    assert ran.out.count("\n## ") == 2


def test_a_commit_that_cannot_be_had_is_told_and_left_out(tmp_path: Path, repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    text = HEAD + PLACE.format(commit=commit) + DEFECT + PLACE.format(commit=COMMIT) + DEFECT
    given = ["--labels", labels(tmp_path / "labels", text), "--files", tmp_path / "files"]
    report = tmp_path / "none.json"
    report.write_text("[]")
    ran = asked(*given, "--repos", tmp_path / "host", "--report", report)
    assert ran.code == 0
    assert ran.err.startswith(f"not to be had: owner/name {COMMIT[:10]}: ")
    assert row(ran.out)[1:4] == ["1 of 2", "0 of 1 (0.00)", "0 of 1 (0.00)"]


def result(code: str, line: int, **more: Any) -> dict[str, Any]:
    """A finding in SARIF, in the file that `scored` labels."""
    address = {"uri": f"alone/owner%2Bname%40{COMMIT[:10]}/train.py"}
    place = {"artifactLocation": address, "region": {"startLine": line}}
    return {"ruleId": code, "locations": [{"physicalLocation": place}], **more}


def scored(tmp_path: Path, text: str, *results: dict[str, Any], rules: str = "") -> Ran:
    """What is said of findings in a file with two functions."""
    file = tmp_path / "files" / "alone" / f"owner+name@{COMMIT[:10]}" / "train.py"
    file.parent.mkdir(parents=True)
    file.write_text(APART)
    run = {"tool": {"driver": {"name": "other", "rules": [{"id": "ACC102"}]}}, "results": results}
    report = tmp_path / "found.sarif"
    report.write_text(json.dumps({"version": "2.1.0", "runs": [run]}))
    (tmp_path / "map.toml").write_text(rules)
    given = ["--files", tmp_path / "files", "--map", tmp_path / "map.toml", "--report", report]
    return asked("--labels", labels(tmp_path / "labels", text), *given)


WHOLE = HEAD + PLACE.format(commit=COMMIT) + "complete = true\n"
LINE = WHOLE + f"line = {FLAGGED}\n"
BY_INDEX = {**result("", FLAGGED), "ruleIndex": 0}


@pytest.mark.parametrize(
    ("text", "found", "recall", "precision"),
    [
        (WHOLE + DEFECT, result("ACC102", FLAGGED - 5), "1 of 1", "1 / 0 / 0"),
        (WHOLE + DEFECT, BY_INDEX, "1 of 1", "1 / 0 / 0"),
        (WHOLE + DEFECT, result("ACC105", FLAGGED), "1 of 1", "1 / 0 / 0"),
        (WHOLE + DEFECT, result("ACC101", FLAGGED), "0 of 1", "0 / 0 / 1"),
        (WHOLE + DEFECT, result("ACC102", SECOND), "0 of 1", "0 / 0 / 1"),
        (WHOLE + DEFECT, result("ACC102", FLAGGED, kind="pass"), "0 of 1", "0 / 0 / 0"),
        (
            WHOLE + DEFECT,
            result("ACC102", FLAGGED, suppressions=[{"kind": "inSource"}]),
            "0 of 1",
            "0 / 0 / 0",
        ),
        (WHOLE + 'debatable = ["ACC101"]\n', result("ACC101", FLAGGED), "-", "0 / 1 / 0"),
        (LINE + 'holds = ["ACC102"]\n', result("ACC102", FLAGGED), "-", "1 / 0 / 0"),
        (LINE, result("ACC102", FLAGGED), "-", "0 / 0 / 1"),
        (LINE, result("ACC102", SECOND), "-", "0 / 0 / 0"),
        (
            HEAD + PLACE.format(commit=COMMIT) + DEFECT,
            result("ACC101", FLAGGED),
            "0 of 1",
            "0 / 0 / 0",
        ),
        ('rules = ["ACC101"]\n' + LINE, result("ACC102", FLAGGED), "-", "0 / 0 / 0"),
    ],
)
def test_a_finding_is_matched_by_rule_and_place(
    tmp_path: Path, text: str, found: dict[str, Any], recall: str, precision: str
) -> None:
    ran = scored(tmp_path, text, found)
    assert (ran.code, ran.err) == (0, "")
    figures = row(ran.out)
    assert (figures[3].partition(" (")[0], figures[4]) == (recall, precision)


@pytest.mark.parametrize(
    ("rules", "precision", "unmapped"),
    [
        ('X1 = "ACC102"', "1 / 0 / 0", False),
        ('X1 = ["ACC101", "ACC102"]', "1 / 0 / 0", False),
        ("X1 = []", "0 / 0 / 1", False),
        ("", "0 / 0 / 0", True),
    ],
)
def test_rules_of_other_linters_are_told_by_a_map(
    tmp_path: Path, rules: str, precision: str, unmapped: bool
) -> None:
    ran = scored(tmp_path, WHOLE + DEFECT, result("X1", FLAGGED), rules=rules)
    assert row(ran.out)[4] == precision
    assert ("1 findings of rules that stand for none of the labels: X1" in ran.out) is unmapped


def test_a_file_that_accumlint_cannot_read_is_told_and_the_others_count(tmp_path: Path) -> None:
    text = WHOLE + DEFECT + PLACE.format(commit=COMMIT).replace("train.py", "broken.py") + DEFECT
    home = tmp_path / "files" / "alone" / f"owner+name@{COMMIT[:10]}"
    home.mkdir(parents=True)
    (home / "train.py").write_text(LOOP)
    (home / "broken.py").write_text(f"{LOOP}\n(")
    given = ["--labels", labels(tmp_path / "labels", text), "--files", tmp_path / "files"]
    ran = asked(*given, "--run", f"{sys.executable} -m accumlint")
    assert ran.code == 0
    assert [line.partition(":")[0] for line in ran.err.splitlines()] == [str(home / "broken.py")]
    assert row(ran.out)[1:4] == ["2", "1 of 2 (0.50)", "1 of 2 (0.50)"]


@pytest.mark.parametrize(
    ("option", "content", "said"),
    [
        ("--report", None, "No such file or directory"),
        ("--report", "", "neither SARIF 2.1.0 nor accumlint's JSON"),
        ("--report", '{"version": "2.0.0", "runs": []}', "neither SARIF 2.1.0 nor"),
        ("--report", '{"version": "2.1.0"}', "neither SARIF 2.1.0 nor"),
        ("--report", '[{"code": "ACC102"}]', "neither SARIF 2.1.0 nor"),
        ("--map", "X1 = ", "Invalid value"),
        ("--map", "X1 = 7", "X1 is neither a rule nor a list of rules"),
        ("--map", 'X1 = "F401"', "no label has the rule 'F401'"),
        ("--run", None, "No such file or directory"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, option: str, content: str | None, said: str
) -> None:
    assert scored(tmp_path, WHOLE + DEFECT).code == 0
    given = tmp_path / "given"
    if content is not None:
        given.write_text(content)
    ran = asked("--labels", tmp_path / "labels", "--files", tmp_path / "files", option, given)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(f"labels.py: {given}: ")
    assert said in ran.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('title = "x"', "a key is missing: split"),
        (HEAD.replace("unseen", "seen") + PLACE.format(commit=COMMIT), "split is 'seen'"),
        (HEAD + PLACE.format(commit="main"), "no owner/name with a commit"),
        (WHOLE.replace("train.py", "../train.py"), "no path in a repository"),
        (WHOLE, "none of the labelled files is here"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(tmp_path: Path, text: str, said: str) -> None:
    ran = asked("--labels", labels(tmp_path / "labels", text), "--files", tmp_path / "files")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err


def test_the_labels_name_rules_that_exist() -> None:
    names = {entry.code: entry.name for entry in packs.catalogue()}
    rows = [
        row
        for file in (ROOT / "docs" / "data" / "labels").glob("*.toml")
        for row in tomli.loads(file.read_text(encoding="utf-8"))["loop"]
    ]
    defects = [defect for row in rows for defect in row.get("defect", [])]
    others = {code for row in rows for key in ("holds", "debatable") for code in row.get(key, [])}
    assert others | {code for defect in defects for code in defect.get("also", [])} <= set(names)
    wrong = [each for each in defects if names.get(each.get("code")) not in (None, each["name"])]
    assert not wrong
    assert [each["name"] for each in defects if each.get("code") not in names] == [
        "denominator-counts-other-tokens"
    ]


def test_the_page_tells_how_much_is_labelled() -> None:
    page = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
    for file in (ROOT / "docs" / "data" / "labels").glob("*.toml"):
        sample = tomli.loads(file.read_text(encoding="utf-8"))
        rows = sample["loop"]
        defects = [defect for row in rows for defect in row.get("defect", [])]
        gradients = sum(defect["changes_gradients"] for defect in defects)
        files = len({(row["repository"], row["commit"], row["path"]) for row in rows})
        repositories = len({row["repository"] for row in rows})
        told = row(page, f"[{sample['title']}](data/labels/{file.name})")
        assert told[:4] == [
            sample["split"], f"{files} ({repositories})", str(len(defects)), str(gradients)
        ]  # fmt: skip
