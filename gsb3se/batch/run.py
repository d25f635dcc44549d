"""A batch from files to a file: what ``gsb3se batch`` and ``gs.batch.run`` do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gsb3se.batch import output
from gsb3se.batch.counting import TargetColumns, count_predictions
from gsb3se.batch.dask_cluster import OnDask
from gsb3se.batch.groups import Groups
from gsb3se.batch.jobs import Job
from gsb3se.batch.journal import DamagedJournal, Journal, as_plan, file_stamp
from gsb3se.batch.output import BatchOutcome
from gsb3se.batch.processes import InProcess
from gsb3se.batch.scheduling import infer_groups
from gsb3se.batch.validation import TableColumns, read_shares, read_validation
from gsb3se.graph import LabelGraph
from gsb3se.inference.contracts import (
    DEFAULT_BACKEND,
    Backend,
    BatchBackend,
    as_backend,
    identity,
)
from gsb3se.model.content_hash import content_hash
from gsb3se.model.counts import ConfusionCounts
from gsb3se.model.prior import Prior
from gsb3se.model.source_problem import SourceProblem
from gsb3se.support.errors import some_of
from gsb3se.support.files import check_output, read_npz, whole
from gsb3se.support.labels import Label, as_labels
from gsb3se.support.machine import available_cores
from gsb3se.support.named_axes import in_order_of
from gsb3se.support.progress import progress_bar
from gsb3se.support.simplex import Vector, as_distribution
from gsb3se.support.table_files import table_files, values_in
from gsb3se.support.version import __version__

MODEL_COLUMN = "model"  # what a column that names the classifier is usually called

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Everything about a batch beside its files; the options of ``gsb3se batch``.

    Attributes:
        by: columns that tell groups apart, one name or several.
        label_column, prediction_column, count_column: names of columns in the files; the last
            one holds the number of predictions of a row (default: one).
        model_column: that names the model, in the validation file as well; pool_models: take all
            rows for one classifier's, though the files have a column "model".
        labels: all classes, or a file of them: a name a line, or a JSON list.
        graph: of similar labels, or a saved one; prior, backend: as of :func:`gsb3se.estimate`.
        level: of the intervals.
        source_prior: (K,) shares that shifts are measured from, or a CSV file with the columns
            class and share; by default those of the validation labels.
        alert: L1 distance to them beyond which a shift raises an alert; certainty: posterior
            probability of that from which a group is flagged.
        seed: of all randomness; a group's draws depend on it and on the group's key alone, except
            with ``Amortized(refine="structured")``, which draws for groups together.
        resume: go on where a call that was stopped had got to.
        workers: processes; by default one a core where the work is worth it.
        dask: address of a dask scheduler; or "local", to start one here.
    """

    by: str | Sequence[str] = ()
    label_column: str = "label"
    prediction_column: str = "prediction"
    count_column: str | None = None
    model_column: str | None = None
    pool_models: bool = False
    labels: AnyPath | Sequence[Label] | None = None
    graph: AnyPath | LabelGraph | None = None
    prior: Prior | str | None = None
    backend: str | Backend = DEFAULT_BACKEND
    level: float = 0.9
    source_prior: AnyPath | ArrayLike | None = None
    alert: float = 0.5
    certainty: float = 0.95
    seed: int = 0
    resume: bool = False
    workers: int | None = None
    dask: str | None = None

    def __post_init__(self) -> None:
        ranges = {"level": (0, 1), "certainty": (0, 1), "alert": (0, 2)}
        for name, (low, high) in ranges.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(
                    f"{name} must lie between {low} and {high}; got {getattr(self, name)!r}"
                )

    @property
    def target_columns(self) -> TargetColumns:
        """The columns of the target files."""
        by = (self.by,) if isinstance(self.by, str) else tuple(self.by)
        keys = (*([] if self.model_column is None else [self.model_column]), *by)
        columns = TargetColumns(self.prediction_column, keys, self.count_column)
        if len(set(columns.all)) < len(columns.all):
            raise ValueError(
                "--by, --model-column, --prediction-column and --count-column must differ"
            )
        if taken := [key for key in columns.keys if key in output.COLUMNS]:
            raise ValueError(
                f"--by {taken[0]} would be two columns of the result: rename it in the target files"
            )
        return columns


def run(
    target: AnyPath | Sequence[AnyPath], *, validation: AnyPath, out: AnyPath, **options: Any
) -> BatchOutcome:
    """Infer every group of the target files and write one table, as ``gsb3se batch`` does.

    Args:
        target: Parquet or CSV files, folders of them, or globs; each row is a prediction.
        validation: CSV, Parquet or NPZ file with true labels and predictions, or a folder.
        out: the .parquet, .csv or .jsonl file to write, with one row per group and class.
        options: the fields of :class:`BatchOptions`.

    What is finished is kept beside ``out``: with ``resume=True`` the same call goes on after a
    stop. A group that fails says why in its rows and does not stop the others.

    >>> run("logs/", validation="val.csv", out="shares.parquet", by="day")  # doctest: +SKIP
    """
    names = {field.name for field in fields(BatchOptions)}
    if unknown := sorted(set(options) - names):
        raise TypeError(f"unknown options {some_of(unknown)}: expected some of {sorted(names)}")
    chosen = BatchOptions(**options)
    sources = [target] if isinstance(target, str | os.PathLike) else list(target)
    columns, files = chosen.target_columns, table_files(sources)
    path, validation = Path(out), Path(validation)
    check_output(path, "--out", *output.SUFFIXES, inputs=_read_files(chosen, validation, files))
    if chosen.model_column is None and not chosen.pool_models:
        _check_one_model(validation, files)
    job = _job(chosen, validation)
    with Journal(unfinished_path(path), _plan(job, columns, files), chosen.resume) as journal:
        try:
            outcome = _infer(job, chosen, files, columns, journal, path)
        except KeyboardInterrupt as stop:
            stop.add_note(f"stopped; the same call with --resume goes on ({journal.path})")
            raise
        except DamagedJournal:
            raise
        except Exception as error:
            if not journal.discard_if_empty():
                error.add_note("what is finished is kept: the same call with --resume goes on")
            raise
        journal.discard()
    return outcome


def unfinished_path(out: Path) -> Path:
    """Where finished groups are kept until all are."""
    return out.with_name(out.name + ".unfinished")


def _infer(
    job: Job,
    options: BatchOptions,
    files: list[Path],
    columns: TargetColumns,
    journal: Journal,
    out: Path,
) -> BatchOutcome:
    groups = _counted(journal, files, columns, job)
    with (
        _executor(options, job.backend, len(groups)) as executor,
        progress_bar(f"{len(groups)} groups", len(groups)) as bar,
    ):
        infer_groups(job, groups, journal, executor, bar.advance)
    if (why := journal.only_failures()) is not None:
        raise ValueError(f"no group could be inferred, the first because {why}")
    return output.write_results(out, job, groups, journal, options.certainty)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _read_files(options: BatchOptions, validation: Path, files: list[Path]) -> list[Path]:
    """Every file that is read, none of which may be written over."""
    checkpoint = getattr(options.backend, "checkpoint", None)
    given: list[Any] = [validation, options.labels, options.graph, options.source_prior, checkpoint]
    return [*(Path(each) for each in given if _is_path(each)), *files]


def _check_one_model(validation: Path, files: list[Path]) -> None:
    """Refuse to pool the predictions of several classifiers unless that is asked for."""
    if validation.suffix == ".npz":
        column = read_npz(validation, [MODEL_COLUMN]).get(MODEL_COLUMN)
        here = None if column is None else set(column.astype(str).tolist())
    else:
        here = values_in(table_files([validation]), MODEL_COLUMN)
    there = None if here is None else values_in(files, MODEL_COLUMN)
    if here is None or there is None or len(here | there) <= 1:
        return
    raise ValueError(
        f"the validation and target files have a column {MODEL_COLUMN!r}, with "
        f"{some_of(sorted(here)) or 'no value'} in {validation} and "
        f"{some_of(sorted(there)) or 'no value'} in the target: give --model-column {MODEL_COLUMN} "
        "to infer each by its own confusions, or --pool-models to take them for one classifier"
    )


def _job(options: BatchOptions, validation: Path) -> Job:
    """What is to be inferred, its files read."""
    graph = options.graph
    if graph is not None and not isinstance(graph, LabelGraph):
        graph = LabelGraph.load(graph)
    labels: Any = options.labels
    if labels is not None:
        labels = Path(labels) if _is_path(labels) else as_labels(labels)
    elif graph is not None:
        labels = graph.labels
    columns = TableColumns(options.label_column, options.prediction_column, options.count_column)
    counts = read_validation(validation, columns, options.model_column, labels)
    classes = next(iter(counts.values())).labels
    graph = None if graph is None else graph.aligned(classes)
    return Job(
        {name: SourceProblem(each, graph, options.prior) for name, each in counts.items()},
        _source_priors(options.source_prior, counts, classes),
        _without_bar(as_backend(options.backend)),
        options.level,
        options.alert,
        options.seed,
        options.model_column is not None,
    )


def _source_priors(
    given: Any, counts: Mapping[str, ConfusionCounts], labels: tuple[Label, ...]
) -> dict[str, Vector]:
    """What each model's shifts are measured from."""
    if given is None:
        return {name: each.validation_shares for name, each in counts.items()}
    if _is_path(given):
        shares = read_shares(Path(given), labels)
    else:
        ordered = in_order_of(labels, given, "source_prior")
        shares = as_distribution(ordered, "source_prior", len(labels))
    return dict.fromkeys(counts, shares)


def _without_bar(backend: Any) -> Backend:
    """The backend without a progress bar of its own: there is one of all groups."""
    return replace(backend, progress=False) if hasattr(backend, "progress") else backend


def _plan(job: Job, columns: TargetColumns, files: list[Path]) -> dict[str, str]:
    """Everything the result depends on."""
    return as_plan(
        gsb3se_version=__version__,
        target_files=[file_stamp(path) for path in files],
        columns=columns,
        validation_graph_and_prior={k: content_hash(p, "") for k, p in job.problems.items()},
        labels=job.labels,
        source_prior={k: np.asarray(p).tolist() for k, p in job.source_priors.items()},
        backend=identity(job.backend),
        level=job.level,
        alert=job.alert,
        seed=job.seed,
    )


def _counted(journal: Journal, files: list[Path], columns: TargetColumns, job: Job) -> Groups:
    """Count the target files, unless a run that was stopped has."""
    kept = journal.counted
    if kept is not None:
        with whole(journal.path):
            return Groups.from_bytes(kept, job.labels)
    with progress_bar(f"counting {len(files)} files"):
        groups = count_predictions(files, columns, job.labels)
    journal.keep_counted(groups.to_bytes())
    return groups


def _executor(options: BatchOptions, backend: Backend, total: int) -> InProcess | OnDask:
    cores = available_cores()
    if options.dask is not None:
        return OnDask(options.dask, options.workers or cores)
    workers = options.workers
    if workers is None:  # a pass over many windows takes less than to start helpers for them
        workers = 1 if isinstance(backend, BatchBackend) else cores
    return InProcess(workers, total)
