"""Tables and figures of the benchmark on real classifiers, from its Parquet file.

python examples/benchmarks/real_tables.py real.parquet --cost cost.parquet --out results
python examples/benchmarks/real_tables.py real.parquet --out results --page PAGE --readme README.md

The folder gets tables.md and the figures; --page also puts the first table between the marks of a
page, and --readme a few of its rows between those of README.md. Means are over shifts and repeats.
The shifts of a repeat share its validation rows, so standard errors are those of the repeats'
means; differences are taken repeat by repeat.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import polars as pl
from real_figures import draw_all
from real_results import (
    BAYESIAN,
    HARD,
    METHODS,
    SOFT,
    Findings,
    standard_error,
    title_of,
)

from gsb3se.support.files import write_text

PAGE_MARKS = ("<!-- results: made by real_tables.py -->", "<!-- results: end -->")
README_MARKS = ("<!-- headline: made by real_tables.py -->", "<!-- headline: end -->")
HEADLINE = (  # methods of README.md
    "counted",
    "bbse",
    "mlls",
    "em",
    "anchored plain",
    "anchored amortized",
)
LABELS = 10
TRUTHS = ("population", "realised")
CIFAR100 = ("cifar100-wideresnet164", "cifar100-densenetbc100")
GRAPHS = ("names", "hierarchy", "features", "shuffled")


@click.command()
@click.argument("results", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--cost", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--page", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--readme", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(
    results: Path, cost: Path | None, out: Path, page: Path | None, readme: Path | None
) -> None:
    """Make all tables and figures anew."""
    found = Findings(pl.read_parquet(results))
    out.mkdir(parents=True, exist_ok=True)
    costs = None if cost is None else pl.read_parquet(cost)
    write_text(out / "tables.md", "\n".join(all_tables(found, costs)))
    draw_all(found, out)
    if page is not None:
        put_between_marks(page, PAGE_MARKS, summary(found))
    if readme is not None:
        put_between_marks(readme, README_MARKS, headline(found))
    print(f"wrote {out / 'tables.md'} and figures beside it")


def put_between_marks(path: Path, marks: tuple[str, str], table: str) -> None:
    """Replace what stands between the marks of a file."""
    text = path.read_text()
    begin, end = marks
    if text.count(begin) != 1 or text.count(end) != 1:
        raise click.ClickException(f"{path} must have the lines {begin!r} and {end!r} once each")
    before, rest = text.split(begin)
    write_text(path, f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}")


def all_tables(found: Findings, costs: pl.DataFrame | None) -> Iterator[str]:
    """Every table with a sentence that says what it is."""
    labels = f"{LABELS} labels a class"
    yield "# Label-shift estimators on real classifiers\n"
    yield "Made by real_tables.py; the README says how, and what it means. L1 is that between the "
    yield "estimate and the population's shares, unless it says realised; ± one standard error.\n"
    yield f"## Errors with {labels}, against population / realised shares\n"
    yield summary(found)
    for data_set in found.there(CIFAR100):
        for truth in TRUTHS:
            yield f"\n## {title_of(data_set)}, {labels}, one by one, {truth} shares\n"
            yield paired_table(found, data_set, f"l1_{truth}")
    yield f"\n## How often intervals hold the truth, {labels}\n"
    yield coverage_table(found)
    for truth in TRUTHS:
        yield f"\n## Labels a class, {truth} shares\n"
        yield labels_table(found, f"l1_{truth}")
    for truth in TRUTHS:
        yield f"\n## Kinds of shift, {labels}, {truth} shares\n"
        yield shifts_table(found, f"l1_{truth}")
    yield "\n## Sizes of the shifts\n\nMean L1 between source and population. A target is drawn "
    yield "without replacement, so no share exceeds what the pool supports: with many classes "
    yield "'tweak one' is hardly a shift.\n"
    yield shift_sizes(found)
    yield f"\n## Label graphs, {labels}, all shifts but the graph-smooth one\n"
    yield graphs_table(found, [shift for shift in found.shifts if shift != "graph-smooth"])
    yield f"\n## Label graphs, {labels}, graph-smooth shift, made with the main graph\n"
    yield graphs_table(found, ["graph-smooth"])
    for truth in TRUTHS:
        yield f"\n## Predictions in the target, {labels}, Dirichlet(1), {truth} shares\n"
        yield sizes_table(found, f"l1_{truth}")
    for truth in TRUTHS:
        yield f"\n## Every method, {labels}, {truth} shares, with standard errors\n"
        yield by_data_set(found, f"l1_{truth}")
    yield f"\n## Accuracy after Saerens' correction, {labels}\n"
    yield "Gain in percentage points over the classifier as it is, on its own scores.\n"
    yield by_data_set(found, "gain", scale=100, form="+.2f")
    yield f"\n## Squared error of importance weights, {labels}\n"
    yield "Median over repeats and shifts of the mean over classes, against population weights.\n"
    yield by_data_set(found, "weight_mse_population", median=True)
    yield f"\n## Posteriors whose status is not ok, {labels}, %\n"
    yield doubts_table(found)
    yield "\n## Seconds\n\nMedians in the runs above, two processes side by side.\n"
    yield by_data_set(found, "seconds", median=True, form=".3g")
    if len(found.failures):
        yield f"\n## Failures\n\n{len(found.failures)} rows have none of these figures:\n"
        yield "\n".join(f"- {text}" for text in sorted(set(found.failures["status"])))
    if costs is not None:
        yield "\n## A thousand classes\n"
        yield cost_table(costs)
    yield ""


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def summary(found: Findings) -> str:
    """Mean L1 of every method on every data set, the best on hard and on soft scores in bold."""
    best = {
        (found.best(data_set, LABELS, kind, f"l1_{truth}"), data_set, truth)
        for data_set in found.data_sets
        for kind in (HARD, SOFT)
        for truth in TRUTHS
    }
    rows = []
    for method in METHODS:
        told = []
        for data_set in found.data_sets:
            cells = []
            for truth in TRUTHS:
                cell = found.mean_and_error(data_set, LABELS, method, f"l1_{truth}")
                text = "" if cell is None else f"{cell[0]:.3f}"
                cells.append(f"**{text}**" if (method, data_set, truth) in best else text)
            told.append(" / ".join(cells) if any(cells) else "")
        if any(told) and method != "bbse bootstrap":
            rows.append([title_of(method), *told])
    return markdown(["method", *map(title_of, found.data_sets)], rows)


def headline(found: Findings) -> str:
    """Mean L1 against population shares of a few methods; the best of them in bold."""
    rows = []
    for method in HEADLINE:
        cells = [found.mean_and_error(d, LABELS, method, "l1_population") for d in found.data_sets]
        rows.append([None if cell is None else cell[0] for cell in cells])
    best = [min(filter(None, column), default=None) for column in zip(*rows, strict=True)]
    texts = [
        [
            "" if x is None else f"**{x:.3f}**" if x == least else f"{x:.3f}"
            for x, least in zip(row, best, strict=True)
        ]
        for row in rows
    ]
    names = map(title_of, HEADLINE)
    heads = ["method", *map(title_of, found.data_sets)]
    return markdown(heads, [[name, *row] for name, row in zip(names, texts, strict=True)])


def paired_table(found: Findings, data_set: str, figure: str) -> str:
    """Every method against the best of ours: differences, their errors, repeats won."""
    best = found.best(data_set, LABELS, BAYESIAN, figure)
    if best is None:
        return ""
    rows = []
    for method in METHODS:
        # A method that ran on some of the shifts is compared on those.
        shifts = found.shifts_of(data_set, LABELS, method)
        other = found.repeats(data_set, LABELS, method, figure, shifts=shifts)
        same = found.repeats(data_set, LABELS, best, figure, shifts=shifts)
        if other is None or same is None or method in (best, "bbse bootstrap"):
            continue
        apart = other - same
        rows.append(
            [
                title_of(method),
                str(len(shifts)),
                f"{other.mean():.4f}",
                f"{same.mean():.4f}",
                f"{apart.mean():+.4f} ± {standard_error(apart):.4f}",
                f"{(apart > 0).sum()} of {len(apart)}",
            ]
        )
    mean, error = found.mean_and_error(data_set, LABELS, best, figure)
    told = f"Best of ours, by these figures: {title_of(best)}, mean L1 {mean:.4f} ± {error:.4f}."
    heads = ["method", "shifts", "mean L1", title_of(best), "difference", "won by the latter"]
    return told + "\n\n" + markdown(heads, rows)


def coverage_table(found: Findings) -> str:
    """90 % and 50 % intervals by data set and method, over the shifts on which it ran."""
    figures = {
        "cover90_population": ("90 %", ".3f"),
        "cover90_present": ("present classes", ".3f"),
        "cover90_realised": ("realised", ".3f"),
        "cover50_population": ("50 %", ".3f"),
        "width90": ("width of 90 %", ".4f"),
        "score90_population": ("interval score", ".4f"),
    }
    rows = []
    for data_set in found.data_sets:
        for method in (
            m for m in METHODS if m in BAYESIAN or m in ("bayesian-cc", "bbse bootstrap")
        ):
            shifts = found.shifts_of(data_set, LABELS, method)
            known = {
                name: found.mean_and_error(data_set, LABELS, method, name, shifts=shifts)
                for name in figures
            }
            if known["cover90_population"] is None:
                continue
            told = [
                "" if known[name] is None else f"{known[name][0]:{form}}"
                for name, (_, form) in figures.items()
            ]
            told[0] += f" ± {known['cover90_population'][1]:.3f}"
            rows.append([title_of(data_set), title_of(method), str(len(shifts)), *told])
    heads = ["data set", "method", "shifts", *(head for head, _ in figures.values())]
    return markdown(heads, rows)


def labels_table(found: Findings, figure: str) -> str:
    """L1 by labels a class."""
    labels = found.labels
    rows = []
    for data_set in found.data_sets:
        for method in METHODS:
            cells = [found.mean_and_error(data_set, n, method, figure) for n in labels]
            if sum(cell is not None for cell in cells) > 1:
                told = ["" if c is None else f"{c[0]:.4f} ± {c[1]:.4f}" for c in cells]
                rows.append([title_of(data_set), title_of(method), *told])
    return markdown(["data set", "method", *map(str, labels)], rows)


def shifts_table(found: Findings, figure: str) -> str:
    """L1 by kind of shift."""
    rows = []
    shifts = found.shifts
    for data_set in found.data_sets:
        for method in METHODS:
            cells = [
                found.mean_and_error(data_set, LABELS, method, figure, shifts=[shift])
                for shift in shifts
            ]
            if any(cells):
                told = ["" if c is None else f"{c[0]:.3f}" for c in cells]
                rows.append([title_of(data_set), title_of(method), *told])
    return markdown(["data set", "method", *shifts], rows)


def shift_sizes(found: Findings) -> str:
    """How large the shifts are."""
    rows = []
    for data_set in found.data_sets:
        sizes = [found.shift_size(data_set, shift) for shift in found.shifts]
        rows.append([title_of(data_set), *("" if x is None else f"{x:.2f}" for x in sizes)])
    return markdown(["data set", *found.shifts], rows)


def graphs_table(found: Findings, among: list[str]) -> str:
    """How much a graph changes the L1 of a method, against none, on the same shifts."""
    rows = []
    for data_set in found.data_sets:
        for method in (m for m in METHODS if m in BAYESIAN):
            ran = found.shifts_of(data_set, LABELS, method, graph="none")
            shifts = [shift for shift in ran if shift in among]
            base = found.repeats(data_set, LABELS, method, graph="none", shifts=shifts)
            if base is None:
                continue
            told = []
            for graph in GRAPHS:
                other = found.repeats(data_set, LABELS, method, graph=graph, shifts=shifts)
                apart = None if other is None else other - base
                told.append(
                    "" if apart is None else f"{apart.mean():+.4f} ± {standard_error(apart):.4f}"
                )
            rows.append([title_of(data_set), title_of(method), f"{base.mean():.4f}", *told])
    heads = ["data set", "method", "mean L1 without", *(f"{graph}: change" for graph in GRAPHS)]
    return markdown(heads, rows)


def sizes_table(found: Findings, figure: str) -> str:
    """L1 by the number of target predictions."""
    rows = []
    sizes = found.target_sizes
    for data_set in found.data_sets:
        shift = [found.shift_size(data_set, "dirichlet 1", size) for size in sizes]
        if sum(x is not None for x in shift) > 1:
            told = ["" if x is None else f"{x:.2f}" for x in shift]
            rows.append([title_of(data_set), "size of the shift", *told])
        for method in METHODS:
            cells = [
                found.mean_and_error(
                    data_set, LABELS, method, figure, shifts=["dirichlet 1"], n_target=size
                )
                for size in sizes
            ]
            if sum(cell is not None for cell in cells) > 1:
                told = ["" if c is None else f"{c[0]:.4f} ± {c[1]:.4f}" for c in cells]
                rows.append([title_of(data_set), title_of(method), *told])
    return markdown(["data set", "method", *(f"{size:,}" for size in sizes)], rows)


def by_data_set(
    found: Findings, figure: str, scale: float = 1, median: bool = False, form: str = ".3f"
) -> str:
    """One figure of every method on every data set."""
    rows = []
    for method in METHODS:
        told = []
        for data_set in found.data_sets:
            if median:
                value = found.median(data_set, LABELS, method, figure)
                told.append("" if value is None else f"{scale * value:{form}}")
            else:
                cell = found.mean_and_error(data_set, LABELS, method, figure)
                error = "" if cell is None else f" ± {scale * cell[1]:{form.lstrip('+')}}"
                told.append("" if cell is None else f"{scale * cell[0]:{form}}{error}")
        if any(told):
            rows.append([title_of(method), *told])
    return markdown(["", *map(title_of, found.data_sets)], rows)


def doubts_table(found: Findings) -> str:
    """How often a backend says that its posterior is not to be taken as it is."""
    rows = []
    for method in (m for m in METHODS if m in BAYESIAN):
        shares = [found.doubtful(data_set, LABELS, method) for data_set in found.data_sets]
        if any(share is not None for share in shares):
            told = ["" if share is None else f"{100 * share:.0f}" for share in shares]
            rows.append([title_of(method), *told])
    return markdown(["", *map(title_of, found.data_sets)], rows)


def cost_table(costs: pl.DataFrame) -> str:
    """Seconds and peak memory, each method in a process of its own."""
    rows = []
    for row in costs.iter_rows(named=True):
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.3g}"
        status = re.sub(r"^ok$", "", row["status"])
        rows.append([title_of(row["method"]), seconds, f"{row['peak_gb']:.2f}", status])
    return markdown(["method", "s", "peak GB", "status"], rows)


if __name__ == "__main__":
    main()
