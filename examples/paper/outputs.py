"""A classifier's outputs on validation and test rows: what the protocol starts from."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gsb3se.support.files import read_npz, write_atomically

Vector = np.ndarray
Matrix = np.ndarray


@dataclass(frozen=True, eq=False)
class Outputs:
    """Logits and labels.

    Attributes:
        logits_val, logits_test: (m, K) and (n, K); log-probabilities will do.
        labels_val, labels_test: classes 0..K-1.
        names: of the classes, if known.
        class_means: (K, d) mean features of the training images, if known.
    """

    logits_val: Matrix
    labels_val: Vector
    logits_test: Matrix
    labels_test: Vector
    names: tuple[str, ...] | None = None
    class_means: Matrix | None = None

    @property
    def n_classes(self) -> int:
        return self.logits_test.shape[1]

    def save(self, path: Path) -> None:
        """One NPZ file, which ``load`` and --logits read."""
        arrays = {name: np.asarray(x) for name, x in vars(self).items() if x is not None}
        write_atomically(path, lambda file: np.savez_compressed(file, **arrays))

    @classmethod
    def load(cls, path: Path, validation_rows: int, seed: int) -> "Outputs":
        """Read logits_* or probs_* with labels_*, of val and test.

        Where a file has no validation rows, as many as are asked for are taken out of the others,
        the classes in equal parts.
        """
        arrays = dict(read_npz(path))
        for name in [name for name in arrays if name.startswith("probs")]:
            scores = np.log(np.maximum(arrays.pop(name).astype(float), 1e-12))
            arrays[name.replace("probs", "logits")] = scores
        if "logits" in arrays and "labels" in arrays:  # of rows that are neither yet
            arrays |= {f"{part}_test": arrays.pop(part) for part in ("logits", "labels")}
        missing = {"logits_test", "labels_test"} - set(arrays)
        if missing:
            raise ValueError(
                f"{path} lacks {' and '.join(sorted(missing))}; it has {', '.join(arrays)}: "
                "save logits_val, labels_val, logits_test and labels_test"
            )
        scores, truth = _part(arrays, "test", path)
        if "logits_val" in arrays and "labels_val" in arrays:
            held, held_truth = _part(arrays, "val", path, scores.shape[1])
        else:
            rows = stratified(truth, validation_rows, seed)
            held, held_truth = scores[rows], truth[rows]
            rest = np.setdiff1d(np.arange(len(truth)), rows)
            scores, truth = scores[rest], truth[rest]
        names = tuple(arrays["names"].tolist()) if "names" in arrays else None
        return cls(held, held_truth, scores, truth, names, arrays.get("class_means"))


def _part(
    arrays: dict[str, Matrix], part: str, path: Path, n_classes: int | None = None
) -> tuple[Matrix, Vector]:
    """Logits and labels of one part, checked."""
    logits, labels = arrays[f"logits_{part}"].astype(float), arrays[f"labels_{part}"].ravel()
    columns = n_classes or (logits.shape[1] if logits.ndim == 2 else 0)
    if logits.shape != (len(labels), columns) or columns < 2 or len(labels) == 0:
        raise ValueError(
            f"{path}: logits_{part} must be rows by classes, a row for each of the {len(labels)} "
            f"labels{'' if n_classes is None else f' and {n_classes} classes'}; got {logits.shape}"
        )
    if not np.isfinite(logits).all():
        raise ValueError(f"{path}: logits_{part} must be finite")
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= columns:
        raise ValueError(f"{path}: labels_{part} must be classes 0..{columns - 1}")
    return logits, labels.astype(int)


def stratified(labels: np.ndarray, n: int, seed: int) -> np.ndarray:
    """n rows in an order of which every stretch has the classes in equal parts."""
    order = np.random.default_rng(seed).permutation(len(labels))
    turn = np.empty(len(labels), dtype=int)  # a class's first rows, then its second ones, ...
    for label in np.unique(labels):
        mine = order[labels[order] == label]
        turn[mine] = np.arange(len(mine))
    rows = order[np.argsort(turn[order], kind="stable")]
    most = np.bincount(labels)
    each = -(-n // len(most))
    if n > len(labels) or each > most.min():
        raise ValueError(
            f"{n} rows with equal classes were asked for, {each} a class; the scarcest class has "
            f"{most.min()} of {len(labels)}: ask for fewer with --train-rows and --validation-rows"
        )
    return rows[:n]
