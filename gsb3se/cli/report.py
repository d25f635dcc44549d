"""gsb3se report: a saved posterior or a batch's result as a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gsb3se import report as pages
from gsb3se.batch.validation import TableColumns, read_shares, read_validation
from gsb3se.cli import count_options
from gsb3se.cli.console import ExistingFile, File, console, plain_speech
from gsb3se.cli.model_options import level_option
from gsb3se.graph import LabelGraph
from gsb3se.model.counts import ConfusionCounts
from gsb3se.posterior.posterior import Posterior
from gsb3se.support.files import check_output
from gsb3se.support.labels import Label


@click.command()
@click.argument("result", type=ExistingFile)
@click.option("--out", type=File, required=True, help="The page to write (.html).")
@click.option("--graph", type=ExistingFile, help="A saved label graph to draw changes in.")
@click.option(
    "--source-prior",
    type=ExistingFile,
    help="For a posterior: CSV with columns class and share; by default the validation labels'.",
)
@click.option(
    "--validation",
    type=ExistingFile,
    help="For a batch: the validation file, to sum up the confusions.",
)
@count_options.label_column
@count_options.prediction_column
@click.option("--title", help="Of the page.")
@level_option("Of a posterior's intervals.")
@count_options.certainty
def report(result: Path, out: Path, graph: Path | None, title: str | None, **given: Any) -> None:
    """Make one HTML page of RESULT, a saved posterior (.npz) or a batch's result.

    It shows the intervals beside the source prior, largest shifts first, the label graph with the
    classes that changed, the confusions, the diagnostics in words, and for a batch the drift over
    its windows. The page holds everything it shows: it opens without a network, on a phone too.

    \b
    gsb3se estimate --validation val.csv --target new.csv --out posterior.npz
    gsb3se report posterior.npz --out report.html
    gsb3se report shares.parquet --graph graph.npz --validation val.csv --out drift.html
    """
    with plain_speech():
        read = (result, graph, given["source_prior"], given["validation"])
        check_output(out, "--out", ".html", ".htm", inputs=read)
        named = {} if title is None else {"title": title}
        if result.suffix.lower() == ".npz":
            posterior = Posterior.load(result)
            source = given["source_prior"]
            prior = None if source is None else read_shares(source, posterior.labels)
            similar = _graph(graph, posterior.labels)
            page = pages.of_posterior(posterior, prior, similar, level=given["level"], **named)
        else:
            table = pages.read_batch(result, given["certainty"])
            labels = table.drift.labels
            columns = TableColumns(given["label_column"], given["prediction_column"])
            counts = _counts(given["validation"], columns, labels)
            page = pages.of_batch(table, _graph(graph, labels), counts, **named)
        pages.save(page, out)
        console.print(f"wrote {out} ({len(page) / 1000:.0f} kB)")


def _graph(path: Path | None, labels: tuple[Label, ...]) -> LabelGraph | None:
    if path is None:
        return None
    graph = LabelGraph.load(path)
    if graph.n_classes != len(labels):
        raise ValueError(f"{path} has {graph.n_classes} labels and the result {len(labels)}")
    return graph.aligned(labels)


def _counts(
    path: Path | None, columns: TableColumns, labels: tuple[Label, ...]
) -> ConfusionCounts | None:
    return None if path is None else read_validation(path, columns, None, labels)[""]
