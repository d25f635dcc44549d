"""Both branches, each in a fresh process: an import can only be watched once."""

import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

pytest.importorskip("torch")
if find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)


def run(program):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_torchvision_and_open_clip_import_and_work():
    """Whatever pair of builds is installed."""
    done = run(
        """
        from gsb3se.support.torchvision_ops import make_torchvision_importable
        make_torchvision_importable()
        import torch, torchvision, open_clip
        from torchvision.models import resnet18
        print(resnet18().eval()(torch.zeros(1, 3, 32, 32)).shape)
        assert make_torchvision_importable() is False
        """
    )
    assert done.returncode == 0, done.stderr
    assert "torch.Size([1, 1000])" in done.stdout


def test_where_the_compiled_operators_cannot_load_their_signatures_are_declared():
    done = run(
        """
        import torch
        from gsb3se.support import torchvision_ops

        def refuse(path):
            raise OSError("built for another torch")

        torch.ops.load_library = refuse
        assert torchvision_ops.make_torchvision_importable() is True
        assert torchvision_ops.make_torchvision_importable() is False
        import torchvision
        print(torch.ops.torchvision.nms.default._schema)
        """
    )
    assert done.returncode == 0, done.stderr
    assert "iou_threshold" in done.stdout


def test_where_they_load_nothing_is_declared():
    done = run(
        """
        import torch
        from gsb3se.support import torchvision_ops

        loaded = []
        torch.ops.load_library = loaded.append
        assert torchvision_ops.make_torchvision_importable() is False
        assert len(loaded) == 1 and "_C" in loaded[0], loaded
        assert not hasattr(torch.ops.torchvision, "nms")
        """
    )
    assert done.returncode == 0, done.stderr


def test_without_torchvision_nothing_happens():
    done = run(
        """
        from gsb3se.support import torchvision_ops
        torchvision_ops.find_spec = lambda name: None
        assert torchvision_ops.make_torchvision_importable() is False
        """
    )
    assert done.returncode == 0, done.stderr
