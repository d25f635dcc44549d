"""Every script in examples/ runs, with small settings where it takes any."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("script", "arguments", "expected"),
    [
        ("quickstart.py", [], "MLLS"),
        ("simplex_flow.py", ["flow.png"], "wrote flow.png"),
        (
            "benchmarks/model_cost.py",
            ["--classes", "40", "--rounds", "2", "--repeats", "2"],
            "times L @ phi",
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
    tried = {mark.args[1][i][0] for mark in test_example_runs.pytestmark for i in range(5)}
    found = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py")}
    assert found == tried
