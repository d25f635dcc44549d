"""Many targets of one source: in one call, under names, and from what one prepared source keeps."""

import warnings

import numpy as np
import pytest

import gsb3se as gs
from gsb3se.inference.contracts import PreparingBackend
from gsb3se.model.source_problem import SourceProblem

CONFUSION = [[45, 4, 1], [3, 40, 6], [2, 6, 43]]
COUNTS = gs.ShiftCounts(CONFUSION, [60, 30, 10], labels=["ant", "bee", "cow"])
DAYS = {"monday": [60, 30, 10], "tuesday": [10, 30, 60], 3: [1, 0, 0]}
BACKENDS = {"structured": gs.Structured(refine=False), "newton": gs.NewtonCG()}


def quietly(*arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gs.GSB3SEWarning)
        return gs.estimate(*arguments, **options)


@pytest.mark.parametrize("backend", [*BACKENDS, "amortized"])
def test_named_targets_are_answered_under_their_names(backend):
    chosen = BACKENDS.get(backend, backend)
    named = quietly(COUNTS, targets=DAYS, backend=chosen, seed=1)
    listed = quietly(COUNTS, targets=list(DAYS.values()), backend=chosen, seed=1)
    assert list(named) == list(DAYS)
    for one, other in zip(named.values(), listed, strict=True):
        assert isinstance(one, gs.Posterior)
        np.testing.assert_array_equal(one.mean, other.mean)
        assert one.labels == ("ant", "bee", "cow")
    assert [posterior.n_target for posterior in named.values()] == [100, 100, 1]


def test_no_targets_are_no_posteriors():
    assert quietly(COUNTS, targets={}) == {} and quietly(COUNTS, targets=[]) == []


@pytest.mark.parametrize("target", [[1, 2], [1, -2, 3], [0.5, 1, 2], [np.nan, 1, 2]])
def test_a_target_that_cannot_be_one_is_refused_by_each_way(target):
    for targets in ({"monday": DAYS["monday"], "bad": target}, [target]):
        with pytest.raises(ValueError, match=r".{20}"):
            gs.estimate(COUNTS, targets=targets)


def test_a_prepared_source_answers_as_estimate_does():
    """And it needs no target to be prepared."""
    chosen = BACKENDS["structured"]
    assert isinstance(chosen, PreparingBackend)
    source = chosen.prepare(CONFUSION, labels=COUNTS.labels)
    assert type(source.problem) is SourceProblem
    expected = quietly(COUNTS, backend=chosen, seed=5)
    inferred = source.infer(COUNTS.target, seed=5)
    np.testing.assert_array_equal(inferred.mean, expected.mean)
    np.testing.assert_array_equal(inferred.interval(0.9), expected.interval(0.9))
