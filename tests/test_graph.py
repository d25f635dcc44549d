import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from gsb3se import LabelGraph
from gsb3se.graph.neighbours import nearest_neighbour_edges, shortest_bridges
from gsb3se.support.files import save_arrays


def blobs(n_blobs, size, seed=0, spread=0.05):
    """Points in tight groups far apart: their k-NN graph is disconnected."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((n_blobs, 6))
    return np.repeat(centres, size, axis=0) + spread * rng.standard_normal((n_blobs * size, 6))


def distances(points):
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


points = st.builds(
    lambda n, d, seed: np.random.default_rng(seed).standard_normal((n, d)),
    n=st.integers(2, 30),
    d=st.integers(1, 5),
    seed=st.integers(0, 10**6),
)


@given(points, st.integers(1, 12))
def test_knn_is_the_definition_by_brute_force(embeddings, k):
    graph = LabelGraph.knn(embeddings, k)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    d = distances(unit)
    np.fill_diagonal(d, np.inf)
    n, k = len(d), min(k, len(d) - 1)
    near = np.zeros((n, n), bool)
    reach = np.sort(d, axis=1)[:, k - 1]
    near |= d <= reach[:, None] + 1e-12
    near |= near.T
    weights = graph.weights.toarray()
    bridged = np.zeros((n, n), bool)
    for i, j in graph.bridges:
        bridged[i, j] = bridged[j, i] = True
    linked = (weights > 0) & ~bridged
    assert not (linked & ~near).any()
    if embeddings.shape[1] > 1:  # on a line unit vectors coincide, and ties may fall either way
        np.testing.assert_array_equal(linked, near)
        lengths = d[np.triu(linked)]
        sigma = np.median(lengths[lengths > 0])
        expected = np.maximum(np.exp(-((d[linked] / sigma) ** 2)), 1e-3)
        np.testing.assert_allclose(weights[linked], expected, rtol=1e-6)


@given(points, st.integers(1, 4))
def test_every_knn_graph_is_a_connected_laplacian(embeddings, k):
    graph = LabelGraph.knn(embeddings, k, normalise=False)
    laplacian = graph.laplacian.toarray()
    np.testing.assert_allclose(laplacian, laplacian.T)
    np.testing.assert_allclose(laplacian.sum(axis=0), 0, atol=1e-12)
    eigenvalues = np.linalg.eigvalsh(laplacian)
    assert eigenvalues[1] > 1e-9
    assert graph.algebraic_connectivity == pytest.approx(eigenvalues[1], rel=1e-6)
    expected = np.log(eigenvalues[1:]).sum()
    assert graph.log_pseudo_determinant == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_bridges_are_the_shortest_that_connect(seed):
    """Against the minimum spanning tree of the whole graph with the k-NN edges for free."""
    points = blobs(6, 5, seed)
    edges = nearest_neighbour_edges(points, 2)
    bridges = shortest_bridges(points, edges)
    d = distances(points)
    total = d.copy()
    total[edges[:, 0], edges[:, 1]] = total[edges[:, 1], edges[:, 0]] = 1e-9
    tree = minimum_spanning_tree(sparse.csr_array(np.triu(total)))
    assert d[tuple(bridges.T)].sum() == pytest.approx(tree.sum(), abs=1e-6)
    parts = connected_components(
        sparse.coo_array((np.ones(len(edges)), tuple(edges.T)), shape=d.shape), directed=False
    )[0]
    assert len(bridges) == parts - 1


def test_bridges_between_equally_distant_parts_make_no_circle():
    corners = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]]) * 10
    points = np.concatenate([corners, corners + 0.1])
    graph = LabelGraph.knn(points, k=1, normalise=False)
    assert len(graph.bridges) == 3


def test_bridges_are_listed_and_a_connected_graph_has_none():
    graph = LabelGraph.knn(blobs(4, 6), k=3)
    assert len(graph.bridges) == 3
    assert all(graph.weights[i, j] > 0 for i, j in graph.bridges)
    assert "3 of them to join its parts" in repr(graph)
    whole = LabelGraph.knn(np.random.default_rng(0).standard_normal((20, 3)), k=10)
    assert whole.bridges == ()


def test_equal_embeddings_are_tied_with_full_weight():
    graph = LabelGraph.knn(np.ones((4, 3)), k=2)
    assert graph.weights.data.tolist() == [1.0] * graph.weights.nnz


def test_blocks_do_not_change_the_answer(monkeypatch):
    points = blobs(5, 8)
    whole = LabelGraph.knn(points, k=3)
    monkeypatch.setattr("gsb3se.graph.neighbours._BLOCK_BYTES", 1)
    assert abs(LabelGraph.knn(points, k=3).weights - whole.weights).max() < 1e-12


def test_building_from_many_labels_stays_small():
    embeddings = np.random.default_rng(0).standard_normal((4000, 32)).astype(np.float32)
    tracemalloc.start()
    LabelGraph.knn(embeddings, k=8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 120e6  # all distances at once would be 128e6, and more than once


@pytest.mark.parametrize("n", [201, 300])
def test_sparse_eigenvalue_is_the_dense_one(n):
    for points in (np.random.default_rng(0).standard_normal((n, 4)), blobs(n // 3, 3)):
        graph = LabelGraph.knn(points, k=3)
        eigenvalues = np.linalg.eigvalsh(graph.laplacian.toarray())
        assert graph.algebraic_connectivity == pytest.approx(eigenvalues[1], rel=1e-5)


def test_exchangeable_is_the_complete_graph_without_being_stored():
    graph = LabelGraph.exchangeable(5)
    centring = np.eye(5) - 1 / 5
    np.testing.assert_allclose(graph.laplacian.toarray(), centring)
    weights = graph.weights.toarray()
    np.testing.assert_allclose(weights - np.diag(np.diag(weights)), (1 - np.eye(5)) / 5)
    np.testing.assert_allclose(np.diag(weights), 0, atol=1e-15)
    x = np.random.default_rng(0).standard_normal((5, 3))
    np.testing.assert_allclose(graph.laplacian @ x, centring @ x)
    np.testing.assert_allclose(graph.laplacian @ x[:, 0], centring @ x[:, 0])
    assert graph.algebraic_connectivity == 1.0
    assert graph.log_pseudo_determinant == 0.0
    assert graph.n_edges == 10
    tracemalloc.start()
    LabelGraph.exchangeable(10_000).laplacian @ np.ones(10_000)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def test_exchangeable_equals_the_same_graph_from_weights():
    dense = LabelGraph.from_weights((np.ones((6, 6)) - np.eye(6)) / 6)
    exchangeable = LabelGraph.exchangeable(6)
    np.testing.assert_allclose(dense.laplacian.toarray(), exchangeable.laplacian.toarray())
    assert dense.algebraic_connectivity == pytest.approx(1)
    assert dense.log_pseudo_determinant == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("kind", ["knn", "exchangeable"])
def test_sampled_fields_have_the_pseudo_inverse_as_covariance(kind):
    rng = np.random.default_rng(0)
    graph = (
        LabelGraph.exchangeable(7)
        if kind == "exchangeable"
        else LabelGraph.knn(rng.standard_normal((7, 3)), k=2)
    )
    fields = graph.sample_fields(60_000, rng)
    np.testing.assert_allclose(fields.sum(axis=0), 0, atol=1e-9)
    covariance = np.linalg.pinv(graph.laplacian.toarray())
    error = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)) * 2 / 60_000)
    assert (np.abs(np.cov(fields) - covariance) < 5 * error).all()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[0, 1], [0.5, 0]], "symmetric; .* differ by up to 0.5"),
        ([[0, 2], [2, 0]], r"lie in \[0, 1\]; found 0 to 2"),
        ([[0, -0.1], [-0.1, 0]], r"lie in \[0, 1\]; found -0.1 to 0"),
        ([[0, np.nan], [np.nan, 0]], "finite"),
        ([[0, 1, 0], [1, 0, 0]], r"square, at least 2 x 2; got shape \(2, 3\)"),
        ([[1]], "at least 2 x 2"),
        ([[0, 1, 0], [1, 0, 0], [0, 0, 0]], "falls into 2 parts; one of them is 2"),
        (np.zeros((3, 3)), "falls into 3 parts"),
    ],
)
def test_bad_weights_are_named(weights, message):
    with pytest.raises(ValueError, match=message):
        LabelGraph.from_weights(weights)


def test_self_loops_are_dropped_and_sparse_input_is_welcome():
    weights = np.array([[1.0, 0.3, 0], [0.3, 0.7, 0.2], [0, 0.2, 0]])
    dense = LabelGraph.from_weights(weights)
    assert dense.weights.diagonal().tolist() == [0, 0, 0]
    assert dense.n_edges == 2
    assert (
        abs(LabelGraph.from_weights(sparse.coo_array(weights)).weights - dense.weights).max() == 0
    )


@pytest.mark.parametrize(
    ("embeddings", "k", "message"),
    [
        (np.ones((1, 3)), 1, "at least 2 rows"),
        (np.ones(3), 1, r"got shape \(3,\)"),
        ([[1, 2], [np.inf, 0]], 1, "rows 1 are not"),
        ([[1, 2], [0, 0]], 1, "must not be zero; rows 1"),
        (np.eye(3), 0, "k must be a whole number of at least 1; got 0"),
        (np.eye(3), 1.5, "got 1.5"),
    ],
)
def test_bad_embeddings_are_named(embeddings, k, message):
    with pytest.raises(ValueError, match=message):
        LabelGraph.knn(embeddings, k)


def test_wrong_labels_are_named():
    with pytest.raises(ValueError, match="expected 3 labels"):
        LabelGraph.knn(np.eye(3), 1, labels=["a"])
    with pytest.raises(ValueError, match="more than once: 'a'"):
        LabelGraph.exchangeable(2, labels=["a", "a"])
    for n_classes in (1, 2.5, "3"):
        with pytest.raises(ValueError, match="n_classes must be a whole number of at least 2"):
            LabelGraph.exchangeable(n_classes)


@pytest.mark.parametrize(
    "graph",
    [
        LabelGraph.knn(blobs(3, 4), k=2, labels=[f"l{i}" for i in range(12)]),
        LabelGraph.knn(blobs(3, 4), k=2),
        LabelGraph.exchangeable(4, labels=[3, 1, 2, 0]),
    ],
    ids=["named", "unnamed", "exchangeable"],
)
def test_save_and_load(tmp_path, graph):
    graph.save(tmp_path / "graph.npz")
    loaded = LabelGraph.load(tmp_path / "graph.npz")
    assert loaded.labels == graph.labels
    assert loaded.bridges == graph.bridges
    np.testing.assert_array_equal(loaded.weights.toarray(), graph.weights.toarray())


def test_reordering_moves_weights_and_bridges_with_their_labels():
    names = [f"l{i}" for i in range(12)]
    graph = LabelGraph.knn(blobs(3, 4), k=2, labels=names)
    shuffled = graph.reordered(np.random.default_rng(0).permutation(names).tolist())
    for i, one in enumerate(shuffled.labels):
        for j, other in enumerate(shuffled.labels):
            assert shuffled.weights[i, j] == graph.weights[names.index(one), names.index(other)]
    named = {frozenset((shuffled.labels[i], shuffled.labels[j])) for i, j in shuffled.bridges}
    assert named == {frozenset((names[i], names[j])) for i, j in graph.bridges}
    with pytest.raises(ValueError, match="labels it has"):
        graph.reordered([*names[:-1], "stranger"])


def test_class_means_use_plain_distance():
    features = np.array([[0.0, 0], [2, 0], [10, 0], [12, 0], [30, 0]])
    graph = LabelGraph.from_class_means(features, ["a", "a", "b", "b", "c"], k=1)
    assert graph.labels == ("a", "b", "c")
    assert graph.weights[0, 1] > 0
    assert graph.weights[1, 2] > 0
    assert graph.weights[0, 2] == 0


@pytest.mark.parametrize("scale", [1e-200, 1e200])
@pytest.mark.parametrize("normalise", [False, True])
def test_the_scale_of_embeddings_does_not_matter(scale, normalise):
    points = np.random.default_rng(0).standard_normal((20, 4))
    expected = LabelGraph.knn(points, 3, normalise=normalise).weights.toarray()
    found = LabelGraph.knn(points * scale, 3, normalise=normalise).weights.toarray()
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_neighbours_far_from_the_origin_are_found_by_their_differences():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((40, 6))
    expected = LabelGraph.knn(points, 3, normalise=False).weights.toarray() > 0
    found = LabelGraph.knn(points + 1e8, 3, normalise=False).weights.toarray() > 0
    np.testing.assert_array_equal(found, expected)
    near = np.ones(64) + 1e-7 * rng.standard_normal((30, 64))
    unit = near / np.linalg.norm(near, axis=1, keepdims=True)
    d = distances(unit)
    np.fill_diagonal(d, np.inf)
    nearest = d.argmin(axis=1)
    weights = LabelGraph.knn(near, 1).weights
    assert all(weights[i, j] > 0 for i, j in enumerate(nearest))


def test_negligible_weights_are_no_edges_and_the_diagonal_is_ignored():
    tiny = np.array([[0, 1, 0], [1, 0, 1e-17], [0, 1e-17, 0]])
    with pytest.raises(ValueError, match="falls into 2 parts"):
        LabelGraph.from_weights(tiny)
    loops = LabelGraph.from_weights([[5, 0.5], [0.5, np.nan]])
    assert loops.weights.toarray().tolist() == [[0, 0.5], [0.5, 0]]


def test_weights_are_read_only():
    graph = LabelGraph.from_weights([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="read-only"):
        graph.weights.data[0] = 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": [5.0, 5.0]}, r"lie in \[0, 1\]"),
        ({"data": [0.5, np.nan]}, "finite"),
        ({"data": [0.5, 0.7]}, "symmetric"),
        ({"indices": [1, 9]}, "damaged"),
        ({"bridges": [[0, 99]]}, "damaged: a bridge"),
        ({"data": None}, "damaged: it lacks 'data'"),
    ],
)
def test_a_damaged_graph_file_is_refused(tmp_path, change, message):
    whole = {
        "n_classes": 2, "exchangeable": False, "bridges": np.empty((0, 2), int),
        "data": [0.5, 0.5], "indices": [1, 0], "indptr": [0, 1, 2],
    }  # fmt: skip
    content = {name: value for name, value in (whole | change).items() if value is not None}
    save_arrays(tmp_path / "g.npz", "LabelGraph", **content)
    with pytest.raises(ValueError, match=message):
        LabelGraph.load(tmp_path / "g.npz")


def test_fields_drawn_in_blocks_are_independent(monkeypatch):
    monkeypatch.setattr("gsb3se.graph.laplacian._FIELD_BLOCK_BYTES", 1)
    graph = LabelGraph.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    fields = graph.sample_fields(3000, np.random.default_rng(0))
    np.testing.assert_allclose(np.cov(fields), np.linalg.pinv(graph.laplacian.toarray()), atol=0.08)
    half = fields[0, :1500] @ fields[0, 1500:] / 1500
    assert abs(half) < 0.1


@pytest.mark.parametrize("embeddings", [np.eye(3) * 1j, [["a"], ["b"]], np.ones((5, 0))])
def test_embeddings_that_are_no_numbers_are_refused(embeddings):
    with pytest.raises(ValueError, match="embeddings must be"):
        LabelGraph.knn(embeddings, 1, normalise=False)
