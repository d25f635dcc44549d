"""The report: what it says, that it stands alone, and that a browser shows it without complaint."""

import html
import re
import shutil
import warnings
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from commands import failed_with, write_csv

import gsb3se as gs
from gsb3se import plots, report
from gsb3se.drawing import figures

NAMES = ("ant", "bee <b>", "cow & co", "dog$x$", "eel")
WEIGHTS = np.diag(np.ones(4), 1) + np.diag(np.ones(4), -1)


@pytest.fixture(scope="module")
def posterior():
    confusion = 30 * np.eye(5, dtype=int) + 4 * WEIGHTS.astype(int)
    counts = gs.ShiftCounts(confusion, [300, 100, 60, 50, 20], NAMES)
    return gs.estimate(counts, gs.LabelGraph.from_weights(WEIGHTS, NAMES))


@pytest.fixture
def drifting(tmp_path):
    """A batch's result of twelve windows, one of them failed, for two sites."""
    rng = np.random.default_rng(0)
    rows = []
    for site in ("north", "south"):
        for week in range(6):
            mean = (
                rng.dirichlet(np.ones(5) * 20)
                if week < 4
                else np.array([0.8, 0.1, 0.05, 0.03, 0.02])
            )
            failed = site == "south" and week == 1
            for i, name in enumerate(NAMES):
                share = None if failed else float(mean[i])
                rows.append(
                    {
                        "site": site, "week": week, "class": name, "mean": share,
                        "sd": None if failed else 0.01,
                        "low": None if failed else 0.8 * share,
                        "high": None if failed else 1.2 * share,
                        "source": 0.2, "n_target": 100, "n_validation": 30, "effective_n": None,
                        "shift": None if failed else float(np.abs(mean - 0.2).sum()),
                        "shift_probability": None if failed else float(week >= 4),
                        "status": "failed" if failed else "ok",
                        "message": "it has no rows" if failed else None,
                        "level": 0.9, "alert": 0.5,
                    }
                )  # fmt: skip
    table = pl.DataFrame(rows, infer_schema_length=None)
    table.write_parquet(tmp_path / "batch.parquet")
    table.write_csv(tmp_path / "batch.csv")
    table.write_ndjson(tmp_path / "batch.jsonl")
    return table


class Page(HTMLParser):
    """Ids, references, texts and open tags of a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.open, self.links, self.headings = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found[k] for k in ("src", "href", "xlink:href") if k in found]
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in ("meta", "link"):
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def stands_alone(text):
    page = Page(text)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert not re.search(r'(src|href)="https?:', text) and "<script" not in text
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    return page


def test_a_posterior_in_words_and_pictures(posterior):
    text = report.of_posterior(posterior)
    page = stands_alone(text)
    assert page.headings == [
        "What changed",
        "Where in the label graph",
        "Which classes are mistaken",
        "Diagnostics in words",
    ]
    assert "bee &lt;b&gt;" in text and "cow &amp; co" in text and "bee <b>" not in text
    source = posterior.problem.counts.validation_sizes / posterior.problem.counts.n_validation
    told = posterior.l1_distance(source).mean()
    assert f"The target is {told:.3f} from the source" in text
    largest = posterior.labels[int(np.argmax(np.abs(posterior.mean - source)))]
    assert re.search(r"<tbody><tr><td>(.*?)</td>", text)[1] == largest


def test_less_is_known_of_a_bare_posterior():
    bare = gs.Posterior.from_draws(np.random.default_rng(0).dirichlet([5, 3, 2], 200))
    page = stands_alone(report.of_posterior(bare))
    assert page.headings == ["The shares", "Diagnostics in words"]


def test_words_name_what_is_wrong():
    counts = gs.ShiftCounts([[30, 30, 0], [20, 20, 0], [0, 0, 0]], [60, 40, 5], ["a", "b", "c"])
    with pytest.warns(gs.GSB3SEWarning):
        post = gs.estimate(counts)
    said = " ".join(report.in_words(post))
    assert "no validation row of 'c'" in said and "'a', 'b'" in said
    assert "collect" in said  # the remedy


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_batch_drifts(drifting, tmp_path, suffix):
    table = report.read_batch(tmp_path / f"batch.{suffix}")
    assert table.keys == ["site", "week"] and len(table.groups) == 12
    assert table.drift.flagged.sum() == 4
    text = report.of_batch(table, gs.LabelGraph.from_weights(WEIGHTS, NAMES))
    page = stands_alone(text)
    assert page.headings[:2] == ["Drift over the windows: north", "Drift over the windows: south"]
    assert "1 group is failed; the first, south, 1: it has no rows." in text
    assert "4 of 12 shifted" in text


def test_the_command_makes_both(run, posterior, drifting, tmp_path):
    posterior.save(tmp_path / "post.npz")
    posterior.problem.graph.save(tmp_path / "graph.npz")
    shares = {"class": [f'"{name}"' for name in NAMES], "share": [0.5, 0.2, 0.1, 0.1, 0.1]}
    write_csv(tmp_path / "prior.csv", **shares)
    result = run("report", "post.npz", "--source-prior", "prior.csv", "--out", "a.html")
    assert result.exit_code == 0, result.output
    assert "<td>0.5000</td>" in (tmp_path / "a.html").read_text()
    result = run("report", "batch.parquet", "--graph", "graph.npz", "--out", "b.html")
    assert result.exit_code == 0, result.output
    result = run("report", "batch.csv", "--title", "Weeks & sites", "--out", "c.html")
    assert "<h1>Weeks &amp; sites</h1>" in (tmp_path / "c.html").read_text()


def test_bad_results_are_refused(run, posterior, tmp_path):
    posterior.problem.graph.save(tmp_path / "graph.npz")
    (tmp_path / "text.txt").write_text("x")
    write_csv(tmp_path / "other.csv", a=[1])
    assert failed_with(run("report", "graph.npz", "--out", "a.html"), "holds no Posterior")
    assert failed_with(run("report", "text.txt", "--out", "a.html"), "expected a .parquet, .csv")
    assert failed_with(
        run("report", "other.csv", "--out", "a.html"), "is no result of gsb3se batch"
    )
    assert failed_with(run("report", "other.csv", "--out", "a.pdf"), "--out must end in .html")
    assert not (tmp_path / "a.html").exists()


# The same figures as pictures


def test_plots_draw_what_the_page_shows(posterior, drifting, tmp_path):
    source = np.ones(5) / 5
    drift = report.read_batch(tmp_path / "batch.parquet").drift
    plots.shifts(posterior, source, tmp_path / "shifts.png")
    plots.confusions(posterior, tmp_path / "confusions.svg")
    plots.graph_changes(posterior, source, tmp_path / "graph.png")
    plots.drift(drift, tmp_path / "drift.png")
    plots.drift_distance(drift, tmp_path / "distance.pdf")
    assert len([path for path in tmp_path.iterdir() if path.stat().st_size > 2000]) >= 5
    with pytest.raises(ValueError, match="picture ends in"):
        plots.shifts(posterior, source, tmp_path / "shifts.txt")
    bare = gs.Posterior.from_draws([[0.2, 0.8]])
    with pytest.raises(ValueError, match="no mean confusion matrix"):
        plots.confusions(bare, tmp_path / "none.png")
    with pytest.raises(ValueError, match="does not know its graph"):
        plots.graph_changes(bare, [0.5, 0.5], tmp_path / "none.png")


def test_the_largest_shift_is_on_top():
    mean, source = np.array([0.5, 0.3, 0.2]), np.array([0.45, 0.1, 0.45])
    shares = figures.Shares(("a", "b", "c"), mean, mean - 0.1, mean + 0.1, source, 0.9)
    assert shares.order.tolist() == [2, 1, 0]
    axes = figures.shifts(shares).axes[0]
    ticks = zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
    names = {tick.get_text(): place for tick, place in ticks}
    assert names["c"] > names["b"] > names["a"]


def test_a_layout_keeps_neighbours_together():
    two = np.kron(np.eye(2), np.ones((5, 5))) - np.eye(10)
    two[4, 5] = two[5, 4] = 0.1
    at = figures.layout(two)
    apart = np.linalg.norm(at[:, None] - at, axis=2)
    assert apart[:5, :5].max() < np.median(apart[:5, 5:]) * 1.5
    assert apart[~np.eye(10, dtype=bool)].min() > 0.02 and np.isfinite(at).all()


def test_the_picture_of_a_large_graph_is_the_part_that_changed():
    rng = np.random.default_rng(0)
    graph = gs.LabelGraph.knn(rng.standard_normal((400, 5)), k=6)
    change = np.zeros(400)
    change[[7, 300]] = [0.2, -0.2]
    nodes = figures.around(graph, change)
    assert {7, 300} <= set(nodes.tolist()) and len(nodes) <= 45
    assert set(graph.weights[[7]].indices.tolist()) <= set(nodes.tolist())


# In a browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("Debian's chromium is not installed")
    playwright = pytest.importorskip("playwright.sync_api")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=quiet)
        yield opened
        opened.close()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_a_browser_shows_it_without_complaint(
    browser, posterior, drifting, tmp_path, width, scheme
):
    graph = posterior.problem.graph
    table = report.read_batch(tmp_path / "batch.parquet")
    report.save(report.of_posterior(posterior), tmp_path / "a.html")
    report.save(report.of_batch(table, graph, posterior.problem.counts), tmp_path / "b.html")
    colours = set()
    for name in ("a.html", "b.html"):
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        said, asked = [], []
        page.on("console", lambda message, said=said: said.append(message.text))
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.goto((tmp_path / name).as_uri())
        assert said == []
        assert asked == [(tmp_path / name).as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        drawn = page.locator("svg")
        assert drawn.count() >= 3
        for number in range(drawn.count()):
            box = drawn.nth(number).bounding_box()
            assert 200 < box["width"] <= width and box["height"] > 80
        letters = page.evaluate(
            "Math.min(...[...document.querySelectorAll('svg text')]"
            ".map(text => text.getBoundingClientRect().height).filter(height => height > 0))"
        )
        assert letters >= 5
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.close()
    assert colours == {"rgb(22, 24, 28)" if scheme == "dark" else "rgb(255, 255, 255)"}


def test_each_group_is_compared_with_its_own_source(drifting, tmp_path):
    other = pl.when(pl.col("site") == "south").then(0.1).otherwise(0.2)
    drifting.with_columns(source=other).write_parquet(tmp_path / "two.parquet")
    table = report.read_batch(tmp_path / "two.parquet")
    south = [group[0] == "south" for group in table.groups]
    np.testing.assert_allclose(table.drift.source, np.where(south, 0.1, 0.2)[:, None] + np.zeros(5))
    farthest = int(np.nanargmax(table.drift.shift))
    assert report.of_batch(table).count(f"{table.drift.source[farthest, 0]:.4f}") > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: pl.concat([t[:5], t[5:10].sort("mean", "class"), t[10:]]), "same order"),
        (lambda t: pl.concat([t[1:], t[:1]]), "differs within a group"),
        (lambda t: t.with_columns(level=pl.lit(None, pl.Float64)), "levels or alerts differ"),
        (lambda t: t.with_columns(level=pl.lit(5.0)), "out of its range"),
        (lambda t: t.with_columns(alert=pl.int_range(60) // 5 * 0.1), "levels or alerts differ"),
        (lambda t: t.with_columns(mean=pl.lit(None, pl.Float64)), "a share is none"),
        (lambda t: t.with_columns(low=pl.lit(0.99)), "an interval is missing or invalid"),
        (lambda t: t.with_columns(n_target=pl.lit(-3)), "negative"),
        (lambda t: t.with_columns(status=pl.lit(None, pl.String)), "a status is missing"),
        (lambda t: t.with_columns(shift=pl.lit(None, pl.Float64)), "a shift is missing"),
        (lambda t: t[:0], "has no rows"),
    ],
)
def test_tables_that_no_batch_wrote_are_refused(drifting, tmp_path, change, message):
    change(drifting).write_parquet(tmp_path / "odd.parquet")
    with pytest.raises(ValueError, match=message):
        report.read_batch(tmp_path / "odd.parquet")


def test_text_in_a_figure_is_left_as_it_is():
    names = ('id="q', "url(#x", 'href="#z', figures.INK)
    counts = gs.ShiftCounts(9 * np.eye(4, dtype=int), [4, 3, 2, 1], names)
    page = report.of_posterior(gs.estimate(counts, backend="newton"))
    drawn = re.findall(r"<text[^>]*>([^<]*)</text>", page)
    for name in names:
        assert html.escape(name, quote=False) in drawn


def test_hostile_names_make_valid_pictures(tmp_path):
    counts = gs.ShiftCounts(9 * np.eye(3, dtype=int), [4, 3, 2], ["$\\foo$", "x" * 400, "\u4e2d"])
    others = {"[red]" + chr(1): [0.2, 0.3, 0.5], "_hidden": [0.3, 0.3, 0.4], "$\\foo$": [1, 0, 0]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        post = gs.estimate(counts, backend="newton")
        plots.intervals(post, tmp_path / "a.svg", others=others)
    text = (tmp_path / "a.svg").read_text()
    ElementTree.fromstring(text)
    assert "hidden" in text or "_hidden" in text
