"""Backends: one a file, each a small frozen object with the method ``infer``."""
