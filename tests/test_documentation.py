"""What README and --help show is run, or at least exists."""

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

README = (Path(__file__).parent.parent / "README.md").read_text()
TESTED = re.findall(r"<!-- run by the tests: (.*?) -->\n```(\w+)\n(.*?)```", README, re.DOTALL)


def commands(group=main, name="gsb3se"):
    yield name, group
    if isinstance(group, click.Group):
        for inner, command in group.commands.items():
            yield from commands(command, f"{name} {inner}")


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_help_has_examples_whose_options_exist(name, command):
    lines = [line.strip() for line in (command.help or "").splitlines()]
    examples = [line for line in lines if re.match(r"(torchrun .*)?gsb3se ", line)]
    assert any(name in line for line in examples)
    for example in examples:
        words = shlex.split(example[example.index("gsb3se ") :])[1:]
        found = main
        while isinstance(found, click.Group):
            found = found.commands[words.pop(0)]
        known = {option for parameter in found.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with the files that the README's commands are given."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    names = np.array(["ant", "bee", "cow", "dog"])
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
    graph = gs.LabelGraph.from_weights(np.ones((4, 4)) - np.eye(4), names.tolist())
    graph.save("graph.npz")
    return tmp_path


def test_the_uses_are_all_shown():
    assert {name for name, _, _ in TESTED} == {
        "thousands of classes",
        "training",
        "training in Python",
        "batch",
        "cluster",
        "report",
    }


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, kind, text in TESTED if kind == "bash"]
)
def test_commands_of_the_readme_run(workplace, name, text):
    examples = Path(__file__).parent.parent / "examples"
    (workplace / "examples").symlink_to(examples)
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


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, kind, text in TESTED if kind == "python"]
)
def test_snippets_of_the_readme_run(workplace, name, text):
    torch = pytest.importorskip("torch")
    assert len([line for line in text.splitlines() if line.strip()]) <= 12
    rng = np.random.default_rng(0)
    classes = 320
    truth = rng.integers(classes, size=20 * classes)
    model = torch.nn.Linear(4, 4)
    rows = torch.randn(200, 4)
    loader = [(rows, torch.randint(4, (200,)))]
    names = {
        "y_true": truth,
        "y_pred": np.where(
            rng.random(len(truth)) < 0.8, truth, rng.integers(classes, size=len(truth))
        ),
        "target_pred": rng.integers(classes, size=4000),
        "embeddings": rng.standard_normal((classes, 16)),
        "model": model,
        "validation_loader": loader,
        "target_loader": [rows],
        "source_prior": np.ones(4) / 4,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gs.GSB3SEWarning)  # 320 classes are unfamiliar
        exec(compile(text, f"README: {name}", "exec"), names)
