"""The command line: one command a file.

A command reads files, calls the public face, and says what it did. Options that several commands
share are in ``count_options`` (where counts come from, column names, soft scores for EM) and
``model_options`` (prior, graph, backend); ``console`` holds how commands speak: tables, notes,
errors of one sentence. A new command is a file here and a line below.
"""

import io
import sys

import click

from gsb3se.cli.baselines import baselines
from gsb3se.cli.batch import batch
from gsb3se.cli.compare import compare
from gsb3se.cli.demo import demo
from gsb3se.cli.estimate import estimate
from gsb3se.cli.graph import graph
from gsb3se.cli.report import report
from gsb3se.cli.train import train
from gsb3se.support.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gsb3se")
def main() -> None:
    """Estimate how often each class occurs in a target population a classifier is used on.

    \b
    gsb3se demo
    gsb3se estimate --validation val.csv --target new.csv --out posterior.npz
    gsb3se report posterior.npz --out report.html
    gsb3se batch logs.parquet --validation val.csv --by day --out shares.parquet
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a label the terminal cannot show becomes "?"
            stream.reconfigure(errors="replace")


main.add_command(demo)
main.add_command(estimate)
main.add_command(baselines)
main.add_command(batch)
main.add_command(compare)
main.add_command(graph)
main.add_command(train)
main.add_command(report)
