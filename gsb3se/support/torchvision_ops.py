"""Lets a CUDA build of torchvision import beside a CPU build of torch.

torchvision's wheel is built for CUDA; with a CPU torch its compiled operators cannot load, and its
import then dies because it describes an operator, ``torchvision::nms``, that was never declared.
Declaring the operator's signature is enough: everything but the detection operators works.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[Any] = []  # torch drops a declaration with the object that made it


def make_torchvision_importable() -> bool:
    """Call before importing torchvision or anything that does (open_clip, timm, torchmetrics).

    Returns:
        Whether stand-in signatures had to be declared; False where torchvision is absent, imported
        already, or complete.
    """
    spec = find_spec("torchvision") if "torchvision" not in sys.modules else None
    if spec is None or spec.origin is None or _declared:
        return False
    import torch

    if _compiled_operators_load(Path(spec.origin).parent):
        return False
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _OPERATORS:
        library.define(name + _SIGNATURE)
    _declared.append(library)
    return True


def _compiled_operators_load(folder: Path) -> bool:
    """Whether torch can load torchvision's extension module; it stays loaded if so."""
    import torch

    for extension in (*folder.glob("_C*.so"), *folder.glob("_C*.pyd")):
        try:
            torch.ops.load_library(str(extension))
        except OSError:
            continue
        return True
    return False
