"""Every script in examples/ runs, with small settings where it takes any.

Those that take more than some ten seconds even so do by  pytest -m slow.
"""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("script", "arguments", "expected"),
    [
        ("quickstart.py", [], "intervals hold the true share"),
        ("simplex_flow.py", ["flow.png"], "wrote flow.png"),
        pytest.param(
            "compare_backends.py",
            ["compared.png", "--classes", "3", "--draws", "60", "--steps", "100"],
            "wrote compared.png",
            marks=pytest.mark.slow,
        ),
        ("monitor_windows.py", ["drift.png", "--windows", "6"], "wrote drift.png"),
        (
            "training_loop.py",
            ["a.png", "--windows", "2", "--steps", "60", "--more-steps", "5"],
            "wrote a.png",
        ),
        (
            "lightning_callback.py",
            ["a.png", "--windows", "2", "--epochs", "1", "--passes", "1"],
            "wrote a.png",
        ),
        pytest.param(
            "benchmarks/batch_speed.py",
            ["--classes", "4", "--windows", "6", "--more", "9", "--predictions", "50"],
            "windows by amortized: peak",
            marks=pytest.mark.slow,
        ),
        (
            "benchmarks/batch_counting.py",
            ["--rows", "5000", "--windows", "3", "--classes", "4", "--repeats", "2"],
            "ratio of times",
        ),
        (
            "benchmarks/batch_kills.py",
            ["--kills", "1", "--windows", "3", "--classes", "3", "--backend", "newton"],
            "1 of 1 equal",
        ),
        pytest.param(
            "benchmarks/metric_cost.py",
            ["--classes", "9", "--rows", "64"],
            "times torchmetrics",
            marks=pytest.mark.slow,
        ),
        (
            "benchmarks/amortized_calibration.py",
            ["--classes", "6", "--beyond", "9", "--datasets", "8", "--datasets-beyond", "2"],
            "quantities lie in the band",
        ),
        pytest.param(
            "benchmarks/amortized_truth.py",
            [
                *("--cache", "cache", "--classes", "3", "--seeds", "1"),
                *("--warmup", "30", "--draws", "30"),
            ],
            "ratio",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "benchmarks/amortized_speed.py",
            ["--classes", "4", "--many", "12", "--windows", "3", "--warmup", "40", "--draws", "40"],
            "HMC to ESS 400",
            marks=pytest.mark.slow,
        ),
        (
            "benchmarks/model_cost.py",
            ["--classes", "40", "--rounds", "2", "--repeats", "2"],
            "times L @ phi",
        ),
        pytest.param(
            "benchmarks/sbc.py",
            ["--datasets", "2", "--classes", "2", "--warmup", "40", "--draws", "40"],
            "within the 95 % band",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "benchmarks/hmc_mixing.py",
            ["--classes", "3", "--repeats", "1", "--warmup", "40", "--draws", "40"],
            "ESS",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "benchmarks/hmc_against_quapy.py",
            ["--classes", "3", "--warmup", "40", "--draws", "40"],
            "ESS a second",
            marks=pytest.mark.slow,
        ),
        (
            "benchmarks/newton_modes.py",
            ["--problems", "3", "--most-classes", "6", "--large", "12"],
            "3 of 3",
        ),
        pytest.param(
            "benchmarks/agreement.py",
            ["--classes", "3", "--seeds", "1", "--cache", "cache", "--quick"],
            "mean error",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "benchmarks/structured_scale.py",
            ["--classes", "70"],
            "second window",
            marks=pytest.mark.slow,
        ),
        (
            "benchmarks/accurate_classifiers.py",
            [
                *("--results", "accurate.jsonl", "--classes", "40", "--accuracy", "0.9"),
                *("--labels", "50", "--predictions", "400", "--seeds", "1", "--no-corners"),
            ],
            "2 settings",
        ),
        pytest.param(
            "benchmarks/structured_speed.py",
            ["--classes", "3", "--warmup", "40", "--draws", "40"],
            "ratio",
            marks=pytest.mark.slow,
        ),
        (
            "paper/reproduce.py",
            [
                *("digits", "--epochs", "3", "--batch-size", "32", "--train-rows", "300"),
                *("--validation-rows", "150", "--n-target", "200", "--repeats", "1"),
                *("--resamples", "3", "--backend", "newton", "--out", "digits"),
            ],
            "wrote digits/results.csv",
        ),
        ("benchmarks/counts_memory.py", ["--classes", "50", "--predictions", "900"], "GB"),
        ("benchmarks/counts_memory.py", ["--names", "--classes", "9", "--predictions", "90"], "GB"),
    ],
)
def test_example_runs(tmp_path, script, arguments, expected):
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


def test_every_example_is_tried():
    [cases] = [mark.args[1] for mark in test_example_runs.pytestmark]
    tried = {getattr(case, "values", case)[0] for case in cases}
    found = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py")}
    shared = {"drifting_digits.py", "benchmarks/cases.py", "benchmarks/quapy_peers.py"}
    shared |= {"benchmarks/gaussian_classes.py"}
    shared |= {f"paper/{name}.py" for name in ("images", "outputs", "protocol")}
    real = {f"benchmarks/{path.name}" for path in EXAMPLES.glob("benchmarks/real*.py")}
    assert found == tried | shared | real  # the last in test_real_benchmark.py
