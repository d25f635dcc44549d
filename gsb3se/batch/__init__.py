"""Many groups of predictions at once, from files of any size to one table.

:func:`run` is what ``gsb3se batch`` does: ``counting`` counts the target files group by group with
polars' streaming engine, ``validation`` reads the confusion counts of each model, ``jobs`` says
what is to be inferred in which chunks, ``scheduling`` sends these somewhere (``processes``,
``dask_cluster``) where ``window_inference`` infers them, ``journal`` keeps what is finished so that
a run that was killed goes on, and ``output`` writes one row per group and class. A new option is a
field of :class:`~gsb3se.batch.run.BatchOptions` and an option of ``cli/batch.py``. If it changes a
result it is also a field of :class:`~gsb3se.batch.jobs.Job` and a line of ``run._plan``, or
``--resume`` would mix two settings; a file that it names belongs into ``run._read_files``.

This room knows estimates and files. It must not know what a terminal or a page looks like.
"""

from gsb3se.batch.output import BatchOutcome
from gsb3se.batch.run import BatchOptions, run

__all__ = ["BatchOptions", "BatchOutcome", "run"]
