"""What README, guide, results and --help show is run, or at least exists."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import click
import numpy as np
import polars as pl
import pytest

import gsb3se as gs
from gsb3se.cli import main
from gsb3se.posterior import status
from gsb3se.support import limits

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "examples" / "guide").glob("*.md")),
    *sorted((ROOT / "examples" / "benchmarks" / "results").glob("*.md")),
]
BLOCK = re.compile(r"(?:<!-- run by the tests: (.*?) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)
BLOCKS = [
    (page.relative_to(ROOT).as_posix(), *block)
    for page in PAGES
    for block in BLOCK.findall(page.read_text())
]
RUN = [pytest.param(kind, text, id=f"{page}: {name}") for page, name, kind, text in BLOCKS if name]
NAMES = ["ant", "bee", "cow", "dog"]


def commands(group=main, name="gsb3se"):
    yield name, group
    if isinstance(group, click.Group):
        for inner, command in group.commands.items():
            yield from commands(command, f"{name} {inner}")


def check_command(line):
    """Every command and option of a line that calls gsb3se exists."""
    words = shlex.split(line[line.index("gsb3se ") :], comments=True)[1:]
    command = main
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    assert {word for word in words if word.startswith("-")} <= options_of(command)


def options_of(command):
    """Every spelling of a command's options."""
    return {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_help_has_examples_whose_options_exist(name, command):
    lines = [line.strip() for line in (command.help or "").splitlines()]
    examples = [line for line in lines if re.match(r"(torchrun .*)?gsb3se ", line)]
    assert any(name in line for line in examples)
    for example in examples:
        check_command(example)


def shell_lines():
    for page, _, kind, text in BLOCKS:
        if kind == "bash":
            for line in text.replace("\\\n", " ").splitlines():
                yield page, line.strip()


@pytest.mark.parametrize(
    "line", sorted({line for _, line in shell_lines() if re.match(r"(torchrun .*)?gsb3se ", line)})
)
def test_commands_on_pages_exist_with_their_options(line):
    check_command(line)


@pytest.mark.parametrize(
    "line", sorted({line for _, line in shell_lines() if line.startswith("python examples/")})
)
def test_scripts_on_pages_exist_with_their_options(line, monkeypatch):
    words = shlex.split(line, comments=True)[1:]
    script = ROOT / words.pop(0)
    assert script.is_file()
    options = {word for word in words if word.startswith("-")}
    if not options:
        return
    monkeypatch.syspath_prepend(str(script.parent))
    spec = importlib.util.spec_from_file_location(f"page_{script.stem}", script)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    entry = module.main
    if isinstance(entry, click.Command):
        assert options <= options_of(entry)
    else:
        assert all(option in script.read_text() for option in options)


def test_every_python_block_is_run():
    assert all(name for _, name, kind, _ in BLOCKS if kind == "python")


def test_links_on_pages_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page}: {link}"


@pytest.mark.parametrize(
    ("page", "mark", "expected"),
    [
        ("choosing.md", "limits", limits.as_markdown()),
        ("statuses.md", "statuses", status.as_markdown()),
    ],
)
def test_lists_of_the_guide_are_those_of_the_code(page, mark, expected):
    text = (ROOT / "examples" / "guide" / page).read_text()
    listed = re.search(
        rf"<!-- {mark}: made by .*? -->\n(.*?)\n?<!-- {mark}: end -->", text, re.DOTALL
    )
    assert listed[1] == expected


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with the files that the pages' commands are given."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    names = np.array(NAMES)
    truth = rng.integers(4, size=400)
    predicted = np.where(rng.random(400) < 0.8, truth, rng.integers(4, size=400))
    validation = pl.DataFrame({"label": names[truth], "prediction": names[predicted]})
    validation.write_csv("val.csv")
    models = [validation.with_columns(model=pl.lit(model)) for model in ("old", "new")]
    pl.concat(models).write_csv("models.csv")
    days = np.repeat(np.arange(8), 150)
    drawn = [rng.choice(4, 150, p=rng.dirichlet([3, 2, 2, 1])) for _ in range(8)]
    logs = pl.DataFrame({"day": days, "prediction": names[np.concatenate(drawn)]})
    Path("logs").mkdir()
    both = pl.concat([logs.with_columns(model=pl.lit(model)) for model in ("old", "new")])
    both.write_parquet("logs/part-0.parquet")
    logs.select("prediction").head(300).write_csv("new.csv")
    graph = gs.LabelGraph.from_weights(np.ones((4, 4)) - np.eye(4), NAMES)
    graph.save("graph.npz")
    np.savez("embeddings.npz", embeddings=rng.standard_normal((4, 3)))
    Path("names.txt").write_text("\n".join(NAMES))
    return tmp_path


@pytest.mark.parametrize(
    "text", [pytest.param(p.values[1], id=p.id) for p in RUN if p.values[0] == "bash"]
)
def test_commands_of_the_pages_run(workplace, text):
    (workplace / "examples").symlink_to(ROOT / "examples")
    scripts = str(Path(sys.executable).parent)
    path = scripts + os.pathsep + os.environ["PATH"]
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def objects(rng, classes):
    """Everything that the snippets take for granted."""
    torch = pytest.importorskip("torch")
    truth = rng.integers(classes, size=20 * classes)
    right = rng.random(len(truth)) < 0.8
    names = NAMES if classes == 4 else list(range(classes))
    as_names = np.array(names)
    predicted = np.where(right, truth, rng.integers(classes, size=len(truth)))
    target = rng.integers(classes, size=1000 if classes == 4 else 4000)
    confusion = np.zeros((classes, classes), int)
    np.add.at(confusion, (predicted, truth), 1)
    counts = gs.ShiftCounts(confusion, np.bincount(target, minlength=classes), names)
    logits = 2 * np.eye(classes)[truth] + rng.standard_normal((len(truth), classes))
    rows = torch.randn(200, 4)
    return {
        "gs": gs,
        "y_true": as_names[truth],
        "y_pred": as_names[predicted],
        "target_pred": as_names[target],
        "names": names,
        "matrix": confusion.T,
        "confusion": confusion,
        "target_counts": counts.target,
        "counts": counts,
        "later_counts": counts,
        "other_counts": counts,
        "embeddings": rng.standard_normal((classes, 16)),
        "features": rng.standard_normal((len(truth), 5)),
        "encoder": lambda words: rng.standard_normal((len(words), 5)),
        "graph": gs.LabelGraph.knn(rng.standard_normal((classes, 4)), k=2, labels=names),
        "monday": counts.target,
        "tuesday": counts.target[::-1].copy(),
        "source_prior": np.ones(classes) / classes,
        "logits": logits,
        "y": truth,
        "target_logits": logits[:200],
        "model": torch.nn.Linear(4, 4),
        "validation_loader": [(rows, torch.randint(4, (200,)))],
        "target_loader": [rows],
    }


@pytest.mark.parametrize(
    "text", [pytest.param(p.values[1], id=p.id) for p in RUN if p.values[0] == "python"]
)
def test_snippets_of_the_pages_run(workplace, text, request):
    many = "thousands" in request.node.name
    names = objects(np.random.default_rng(0), 320 if many else 4)
    if "post." in text or "(post)" in text:
        names["post"] = gs.estimate(names["counts"], names["graph"]) if not many else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gs.GSB3SEWarning)  # 320 classes are unfamiliar
        exec(compile(text, request.node.name, "exec"), names)


def test_the_readme_prints_what_it_says(workplace, capsys):
    readme = PAGES[0].read_text()
    python, printed = re.search(
        r"ten lines -->\n```python\n(.*?)```\n\n```text\n(.*?)```", readme, re.DOTALL
    ).groups()
    exec(compile(python, "README", "exec"), {})
    number = re.compile(r"\d+\.\d+")
    found = capsys.readouterr().out
    assert number.sub("#", found) == number.sub("#", printed)
    values = [np.array([float(x) for x in number.findall(text)]) for text in (found, printed)]
    np.testing.assert_allclose(*values, atol=0.02)
    assert (workplace / "shares.png").stat().st_size > 10_000
    assert len([line for line in python.splitlines() if line.strip()]) <= 10
    assert 5_500 <= len(readme.encode()) <= 8_500
