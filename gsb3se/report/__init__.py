"""A result as one HTML page to look at and pass on.

``page`` is the frame: style, tables, figures as SVG; ``sections`` are what several pages show;
``posterior_page`` and ``batch_page`` put them together, the latter from a ``batch_table``.

This room knows posteriors, batches' results and pictures. It must not know the command line.
"""

from gsb3se.report.batch_page import of_batch
from gsb3se.report.batch_table import BatchTable, read_batch
from gsb3se.report.page import as_svg, save
from gsb3se.report.posterior_page import in_words, of_posterior

__all__ = ["BatchTable", "as_svg", "in_words", "of_batch", "of_posterior", "read_batch", "save"]
