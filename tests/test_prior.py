"""The prior by name, and which one is taken where none is given."""

import numpy as np
import pytest

import gsb3se as gs
from gsb3se.training import LabelShiftMetric

COUNTS = gs.ShiftCounts([[9, 3, 1], [1, 8, 2], [1, 1, 9]], [70, 20, 10])


def test_gs_prior_is_the_papers_hierarchy():
    assert gs.Prior() == gs.Prior(1.0, 1.0, 1.0, 1.0, anchor_sd=None)
    assert gs.Prior.anchored().is_anchored


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, gs.Prior.anchored()),
        ("anchored", gs.Prior.anchored()),
        ("paper", gs.Prior()),
        (gs.Prior(2.0, 3.0), gs.Prior(2.0, 3.0)),
    ],
)
def test_a_prior_or_its_name_is_taken_everywhere(given, expected):
    assert gs.Problem(COUNTS, prior=given).prior == expected
    assert gs.estimate(COUNTS, prior=given, backend="newton").problem.prior == expected
    windows = gs.estimate(COUNTS, targets=[[70, 20, 10]], prior=given, backend="newton")
    assert windows[0].problem.prior == expected
    assert gs.Structured().prepare(COUNTS.confusion, prior=given).problem.prior == expected
    assert LabelShiftMetric(3, prior=given).prior == expected
    drawn = [
        gs.simulate(gs.LabelGraph.exchangeable(3), prior, 20, 50, seed=0).counts
        for prior in (given or "anchored", expected)
    ]
    assert drawn[0] == drawn[1]


def test_the_default_is_the_anchored_prior_to_the_last_digit():
    ours, theirs = (gs.estimate(COUNTS, **named).mean for named in ({}, {"prior": "anchored"}))
    np.testing.assert_array_equal(ours, theirs)
    assert (gs.estimate(COUNTS, prior="paper").mean != ours).any()


def test_other_names_and_other_things_are_refused():
    with pytest.raises(ValueError, match=r"unknown prior 'flat': expected 'anchored', 'paper'"):
        gs.estimate(COUNTS, prior="flat")
    with pytest.raises(TypeError, match=r"prior must be 'anchored', 'paper' or a gs.Prior; got 3"):
        gs.estimate(COUNTS, prior=3)
