"""The family of posteriors: densities against quadrature, Jacobians and plain Gaussians."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gsb3se.posterior.families import BentStudent as BentForm
from gsb3se_amortized.family import BentStudents

NAMES = ("centre", "scale", "skew", "tail", "factor", "freedom", "mask")


def made(
    n: int, seed: int = 0, bent: float = 1.0, padded: int = 0, freedom: float = 6.0
) -> BentStudents:
    """A posterior over n classes, with room for some more."""
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    root = draw(n, n)
    factor = torch.eye(n + padded, dtype=torch.float64)
    factor[:n, :n] = torch.linalg.cholesky(root @ root.T + 0.5 * torch.eye(n) + 0.5)
    parts = [draw(n), draw(n).exp() / 2, 0.5 * bent * draw(n), (0.2 * bent * draw(n)).exp()]
    fills = (0.0, 1.0, 0.0, 1.0)
    vectors = [
        torch.cat([part, torch.full((padded,), fill, dtype=torch.float64)])
        for part, fill in zip(parts, fills, strict=True)
    ]
    freed = torch.tensor(freedom, dtype=torch.float64)
    return BentStudents(*vectors, factor, freed, torch.arange(n + padded) < n)


def repeated(family: BentStudents, times: int) -> BentStudents:
    return BentStudents(
        *(getattr(family, k).expand(times, *getattr(family, k).shape) for k in NAMES)
    )


def sum_zero_basis(n: int) -> torch.Tensor:
    """(n, n - 1) orthonormal."""
    ones = torch.ones(n, 1, dtype=torch.float64)
    rest = torch.randn(n, n - 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return torch.linalg.qr(torch.cat([ones, rest], dim=1))[0][:, 1:]


@pytest.mark.parametrize("padded", [0, 2])
def test_density_has_mass_one_and_the_mean_of_its_draws(padded: int) -> None:
    family = made(3, padded=padded)
    grid = torch.linspace(-40, 40, 641, dtype=torch.float64)
    across = torch.stack(torch.meshgrid(grid, grid, indexing="ij"), dim=-1).reshape(-1, 2)
    theta = across @ sum_zero_basis(3).T
    theta = torch.cat([theta, torch.zeros(len(theta), padded, dtype=torch.float64)], dim=1)
    mass = repeated(family, len(theta)).log_density(theta).exp() * float(grid[1] - grid[0]) ** 2
    assert mass.sum() == pytest.approx(1.0, abs=1e-4)
    x = family.sample(100_000, torch.Generator().manual_seed(0))[:, :3]
    drawn = x - x.mean(dim=-1, keepdim=True)
    exact = (mass[:, None] * theta[:, :3]).sum(dim=0)
    assert torch.allclose(drawn.mean(dim=0), exact, atol=5 * float(drawn.std(dim=0).max()) / 316)


def test_unbent_it_is_the_gaussian_on_the_sum_zero_space() -> None:
    n = 5
    family = made(n, seed=3, bent=0.0, freedom=1e9)
    family = BentStudents(
        family.centre,
        family.scale,
        torch.zeros(n, dtype=torch.float64),
        torch.ones(n, dtype=torch.float64),
        family.factor,
        family.freedom,
        family.mask,
    )
    inverse = 1 / family.scale
    precision = inverse[:, None] * (family.factor @ family.factor.T) * inverse
    if (precision.sum(dim=1) <= 0).any():
        pytest.skip("the hyperplane was moved")
    basis = sum_zero_basis(n)
    covariance = basis.T @ torch.linalg.inv(precision) @ basis
    theta = torch.linspace(-1, 1, n, dtype=torch.float64)
    gap = basis.T @ (theta - family.centre)
    expected = torch.distributions.MultivariateNormal(
        torch.zeros(n - 1, dtype=torch.float64), covariance
    ).log_prob(gap)
    assert float(family.log_density(theta)) == pytest.approx(float(expected), abs=1e-4)


def test_density_is_that_of_a_change_of_variables() -> None:
    """Against the Jacobian by automatic differentiation, in coordinates of the hyperplane."""
    n = 4
    family = made(n, seed=5)
    inverse = (1 / family.scale)[:, None]
    pull = (family.factor @ family.factor.T @ inverse)[:, 0]
    if (pull <= 0).any():
        pull = torch.maximum(pull, 1e-6 * pull.abs().max())
    rest = torch.randn(n, n - 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    plane = torch.linalg.qr(torch.cat([pull[:, None], rest], dim=1))[0][:, 1:]
    basis = sum_zero_basis(n)
    at = torch.tensor([0.3, -0.8, 0.5], dtype=torch.float64)

    def theta_of(coordinates: torch.Tensor) -> torch.Tensor:
        return basis.T @ family.bent(plane @ coordinates)

    jacobian = torch.autograd.functional.jacobian(theta_of, at)
    precision = plane.T @ family.factor @ family.factor.T @ plane
    freedom = float(family.freedom)
    log_student = (
        math.lgamma((freedom + n - 1) / 2)
        - math.lgamma(freedom / 2)
        - (n - 1) / 2 * math.log(freedom * math.pi)
        + torch.linalg.slogdet(precision)[1] / 2
        - (freedom + n - 1) / 2 * torch.log1p(at @ precision @ at / freedom)
    )
    expected = log_student - torch.linalg.slogdet(jacobian)[1]
    x = family.bent(plane @ at)
    assert float(family.log_density(x - x.mean())) == pytest.approx(float(expected), abs=1e-9)


def test_gradients_pass_through_the_root() -> None:
    family = made(4, seed=2)
    theta = torch.tensor([0.5, -0.2, 0.1, -0.4], dtype=torch.float64)
    inputs = [getattr(family, k).clone().requires_grad_() for k in NAMES[:-1]]

    def density(*parts: torch.Tensor) -> torch.Tensor:
        return BentStudents(*parts, family.mask).log_density(theta)

    assert torch.autograd.gradcheck(density, inputs, eps=1e-6, atol=1e-5)


@given(
    white=st.floats(-8, 8),
    skew=st.floats(-1.5, 1.5),
    tail=st.floats(0.5, 2),
    scale=st.floats(0.1, 3),
)
def test_bends_rise_and_straighten(white: float, skew: float, tail: float, scale: float) -> None:
    def vector(value: float) -> torch.Tensor:
        return torch.full((2,), value, dtype=torch.float64)

    eye = torch.eye(2, dtype=torch.float64)
    mask = torch.ones(2, dtype=torch.bool)
    family = BentStudents(
        vector(0.3), vector(scale), vector(skew), vector(tail), eye, torch.tensor(5.0), mask
    )
    at = vector(white).requires_grad_()
    x = family.bent(at)
    slope = torch.autograd.grad(x.sum(), at)[0]
    back, told = family._straightened(x.detach())
    assert float(back[0]) == pytest.approx(white, abs=1e-7 * (1 + abs(white)))
    assert float(told[0]) == pytest.approx(float(slope[0]), rel=1e-6)
    assert float(slope[0]) > 0


def test_the_saved_form_draws_the_same() -> None:
    family = made(4, seed=7)
    factor = family.draw_factor()
    vectors = (getattr(family, k).numpy() for k in NAMES[:4])
    form = BentForm(*vectors, family.factor.numpy(), float(family.freedom))
    drawn = form.sample(50, np.random.default_rng(0)).q
    rng = np.random.default_rng(0)
    white = rng.standard_normal((50, 4))
    white = white / np.sqrt(rng.chisquare(6.0, (50, 1)) / 6)
    x = family.bent(torch.from_numpy(white) @ factor.T)
    assert np.allclose(drawn, torch.softmax(x, dim=-1).numpy(), atol=1e-12)
    assert np.allclose(form.shares().sum(axis=1), 1)
