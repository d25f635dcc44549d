"""Rooms import only from rooms above them, and files and functions are short enough to see."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ["support", "graph", "model", "posterior", "drawing", "inference", "gsb3se_amortized"]
ROOMS += ["checks", "names people import", "stream", "batch", "compare", "report", "cli"]
APART = {"structured", "hmc", "gaussian"}  # they test each other
FILES = [
    path
    for package in ("gsb3se", "gsb3se_amortized")
    for path in sorted((ROOT / package).rglob("*.py"))
    if path != ROOT / "gsb3se" / "__init__.py"
]


def room_of(module):
    """The room of gsb3se.room.module; a module of its own is a name that people import."""
    parts = module.split(".")
    if parts[0] == "gsb3se_amortized":
        return parts[0]
    return parts[1] if parts[1] in ROOMS else "names people import"


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path):
    """Every module of ours that a file imports, at the top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module == "gsb3se":
            names = [f"gsb3se.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (name for name in names if name.startswith(("gsb3se.", "gsb3se_amortized")))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_room_imports_only_from_rooms_above_it(path):
    own = ROOMS.index(room_of(name_of(path)))
    upward = [name for name in imports(path) if ROOMS.index(room_of(name)) > own]
    assert not upward


@pytest.mark.parametrize("room", sorted(APART))
def test_backends_that_test_each_other_share_nothing(room):
    others = tuple(f"gsb3se.inference.{other}" for other in APART - {room})
    for path in (ROOT / "gsb3se" / "inference" / room).rglob("*.py"):
        assert not [name for name in imports(path) if name.startswith(others)], path


def test_every_room_says_what_it_knows():
    for path in FILES:
        if path.name == "__init__.py" and path.parent.name != "weights":
            assert len(ast.get_docstring(ast.parse(path.read_text())) or "") > 60, path


def test_files_and_functions_are_short_enough_to_see():
    for path in FILES:
        text = path.read_text()
        assert len(text.splitlines()) <= 450, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                documentation = (ast.get_docstring(node, clean=False) or "").splitlines()
                lines = node.end_lineno - node.lineno + 1 - len(documentation)
                assert lines <= 60, f"{path}: {node.name} has {lines} lines"


def test_a_class_name_means_one_thing():
    seen = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                assert node.name not in seen, f"{node.name} in {seen[node.name]} and {path}"
                seen[node.name] = path
