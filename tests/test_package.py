"""What a user meets first: the import, the examples in the docstrings, missing extras."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import gsb3se
import gsb3se_amortized
from gsb3se.support.errors import MissingExtra, install_command, require


def modules():
    for package in (gsb3se, gsb3se_amortized):
        yield package.__name__
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield found.name


@pytest.mark.parametrize("name", list(modules()))
def test_examples_in_docstrings_are_right(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0


HEAVY = "torch jax sklearn numpyro pyro torchvision open_clip pandas polars matplotlib rich click"


def test_the_import_is_light():
    heavy = f"[n for n in {HEAVY.split()} if n in sys.modules]"
    program = f"import sys, gsb3se, gsb3se_amortized; print({heavy})"
    assert run(program) == "[]"


def test_the_import_changes_no_setting():
    """Beyond what importing numpy and scipy does."""
    program = """
import random, warnings
import numpy as np, scipy.sparse.csgraph, scipy.special

def settings():
    state = [str(part) for part in np.random.get_state()]
    return np.geterr(), np.get_printoptions(), list(warnings.filters), random.getstate(), state

before = settings()
import gsb3se
print(settings() == before)
"""
    assert run(program) == "True"


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_rooms_that_are_seldom_needed_come_when_they_are_asked_for():
    program = """
import sys, gsb3se
rooms = ["batch", "plots", "report", "stream"]
before = [room for room in rooms if "gsb3se." + room in sys.modules]
print(before, all(getattr(gsb3se, room).__doc__ for room in rooms), set(rooms) <= set(dir(gsb3se)))
"""
    assert run(program) == "[] True True"
    with pytest.raises(AttributeError, match="no attribute 'bach'"):
        _ = gsb3se.bach


def test_every_public_name_is_there_and_documented():
    for name in gsb3se.__all__:
        assert getattr(gsb3se, name).__doc__


def test_a_missing_extra_names_the_command():
    with pytest.raises(MissingExtra, match=r"run  pip install .*\[plots\]"):
        require("surely_not_installed.submodule", extra="plots")


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'gsb3se[plots]'"),
        (
            '{"url": "file:///a%20b/gsb3se", "dir_info": {"editable": true}}',
            "pip install -e '/a b/gsb3se[plots]'",
        ),
        (
            '{"url": "file:///there/gsb3se", "dir_info": {}}',
            "pip install 'gsb3se[plots] @ file:///there/gsb3se'",
        ),
        (
            '{"url": "https://host/gsb3se", "vcs_info": {"vcs": "git", "commit_id": "0"}}',
            "pip install 'gsb3se[plots] @ git+https://host/gsb3se'",
        ),
    ],
)
def test_the_command_installs_from_where_the_package_came(monkeypatch, origin, command):
    installed = type("Installed", (), {"read_text": lambda self, name: origin})()
    monkeypatch.setattr("gsb3se.support.errors.distribution", lambda name: installed)
    assert install_command("plots") == command


def test_a_broken_package_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import surely_not_installed")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        require("broken_package", extra="plots")
