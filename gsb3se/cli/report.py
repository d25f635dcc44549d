"""gsb3se report: a saved posterior or a batch's result as a page to look at."""

from __future__ import annotations

from pathlib import Path

import click

from gsb3se import report as pages
from gsb3se.cli import inputs
from gsb3se.cli.console import ExistingFile, File, check_output, console, plain_speech
from gsb3se.cli.inputs import Columns, read_shares, read_validation
from gsb3se.cli.model_options import in_order, level_option
from gsb3se.counts import ShiftCounts
from gsb3se.graph import LabelGraph
from gsb3se.labels import Label
from gsb3se.posterior import Posterior


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
@inputs.label_column
@inputs.prediction_column
@click.option("--title", help="Of the page.")
@level_option("Of a posterior's intervals.")
@inputs.certainty
def report(
    result: Path,
    out: Path,
    graph: Path | None,
    source_prior: Path | None,
    validation: Path | None,
    label_column: str,
    prediction_column: str,
    title: str | None,
    level: float,
    certainty: float,
) -> None:
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
        read = (result, graph, source_prior, validation)
        check_output(out, "--out", ".html", ".htm", inputs=read)
        named = {} if title is None else {"title": title}
        if result.suffix.lower() == ".npz":
            posterior = Posterior.load(result)
            prior = None if source_prior is None else read_shares(source_prior, posterior.labels)
            similar = _graph(graph, posterior.labels)
            page = pages.of_posterior(posterior, prior, similar, level=level, **named)
        else:
            table = pages.read_batch(result, certainty)
            labels = table.drift.labels
            counts = _counts(validation, Columns(label_column, prediction_column), labels)
            page = pages.of_batch(table, _graph(graph, labels), counts, **named)
        pages.save(page, out)
        console.print(f"wrote {out} ({len(page) / 1000:.0f} kB)")


def _graph(path: Path | None, labels: tuple[Label, ...]) -> LabelGraph | None:
    if path is None:
        return None
    graph = LabelGraph.load(path)
    if graph.n_classes != len(labels):
        raise ValueError(f"{path} has {graph.n_classes} labels and the result {len(labels)}")
    return in_order(graph, labels)


def _counts(path: Path | None, columns: Columns, labels: tuple[Label, ...]) -> ShiftCounts | None:
    return None if path is None else read_validation(path, columns, None, labels)[""]
