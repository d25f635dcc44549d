"""Lets a CUDA build of torchvision import beside a CPU build of torch."""

from gsb3se.support.torchvision_ops import make_torchvision_importable

__all__ = ["make_torchvision_importable"]
