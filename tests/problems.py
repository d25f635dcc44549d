"""Random problems, and the hierarchy written down once more for automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax.scipy.special import gammaln, logsumexp

import gsb3se as gs
from gsb3se.model import Latents, Problem, Strengths


def random_graph(n_classes, kind, rng):
    if kind == "exchangeable":
        return gs.LabelGraph.exchangeable(n_classes)
    if kind == "knn":
        return gs.LabelGraph.knn(rng.standard_normal((n_classes, 5)), k=2)
    weights = rng.uniform(0.05, 1.0, (n_classes, n_classes))
    return gs.LabelGraph.from_weights((weights + weights.T) / 2)


def random_problem(n_classes, seed, anchored, kind="knn", n_source=8, n_target=60):
    """A problem with zero cells, possibly empty classes, and a point to evaluate it at."""
    rng = np.random.default_rng(seed)
    graph = random_graph(n_classes, kind, rng)
    shapes = rng.uniform(0.5, 2.5, 4)
    prior = gs.Prior(*shapes, anchor_sd=rng.uniform(2, 6) if anchored else None)
    sizes = rng.integers(0, n_source + 1, n_classes)
    confusion = np.column_stack(
        [rng.multinomial(n, rng.dirichlet(np.full(n_classes, 0.4))) for n in sizes]
    )
    target = rng.multinomial(n_target, rng.dirichlet(np.full(n_classes, 0.7)))
    problem = Problem(gs.ShiftCounts(confusion, target), graph, prior)
    point = Latents(
        rng.standard_normal(n_classes),
        1.5 * rng.standard_normal((n_classes, n_classes)),
        *(rng.normal(0, 3, 2) if anchored else (0.0, 0.0)),
    )
    return problem, point, Strengths(*rng.uniform(0.2, 3.0, 2))


problems = st.builds(
    random_problem,
    n_classes=st.integers(2, 12),
    seed=st.integers(0, 2**31),
    anchored=st.booleans(),
    kind=st.sampled_from(["knn", "dense", "exchangeable"]),
)


def direction_like(point, seed):
    rng = np.random.default_rng(seed)
    anchored = point.alpha != 0.0 or point.beta != 0.0
    return Latents(
        rng.standard_normal(point.theta.shape),
        rng.standard_normal(point.phi.shape),
        *(rng.standard_normal(2) if anchored else (0.0, 0.0)),
    )


class Oracle:
    """The densities of the hierarchy in plain dense jax, from their definitions.

    The latents are one flat vector (theta, phi row by row, alpha, beta). Use within
    ``jax.enable_x64(True)``.
    """

    def __init__(self, problem):
        counts, prior = problem.counts, problem.prior
        self.prior = prior
        self.n = counts.n_classes
        self.confusion = np.asarray(counts.confusion.toarray(), float)
        self.target = np.asarray(counts.target, float)
        weights = problem.graph.weights.toarray()
        self.weights = weights - np.diag(np.diag(weights))
        self.laplacian = np.diag(self.weights.sum(1)) - self.weights
        eigenvalues = np.linalg.eigvalsh(self.laplacian)[1:]
        self.log_pdet = np.log(eigenvalues).sum()

    def unpack(self, x):
        n = self.n
        return x[:n], x[n : n + n * n].reshape(n, n), x[-2], x[-1]

    def log_likelihood(self, x):
        theta, phi, _, _ = self.unpack(x)
        log_q = theta - logsumexp(theta)
        log_c = phi - logsumexp(phi, axis=0)
        log_r = logsumexp(log_q + log_c, axis=1)

        def multinomial(counts, log_p):
            coefficient = gammaln(counts.sum() + 1) - gammaln(counts + 1).sum()
            return coefficient + (counts * log_p).sum()

        columns = sum(multinomial(self.confusion[:, i], log_c[:, i]) for i in range(self.n))
        return columns + multinomial(self.target, log_r)

    def fields(self, x):
        """theta'L theta, sum_i (phi_i - mu_i)'L(phi_i - mu_i), log density of alpha and beta."""
        theta, phi, alpha, beta = self.unpack(x)
        sd = self.prior.anchor_sd
        if sd is None:
            residual, anchor = phi, 0.0
        else:
            residual = phi - alpha * jnp.eye(self.n) - beta * self.weights
            anchor = sum(
                -0.5 * (a / sd) ** 2 - jnp.log(sd * jnp.sqrt(2 * jnp.pi)) for a in (alpha, beta)
            )
        return (
            theta @ self.laplacian @ theta,
            (residual * (self.laplacian @ residual)).sum(),
            anchor,
        )

    def log_joint(self, x, tau):
        form_q, form_c, anchor = self.fields(x)
        n, prior = self.n, self.prior

        def field(form, tau, copies):
            dims = copies * (n - 1)
            return 0.5 * (dims * jnp.log(tau / (2 * jnp.pi)) + copies * self.log_pdet - tau * form)

        def gamma(tau, a, b):
            return a * jnp.log(b) - gammaln(a) + (a - 1) * jnp.log(tau) - b * tau

        value = self.log_likelihood(x) + anchor
        value += field(form_q, tau[0], 1) + field(form_c, tau[1], n)
        return value + gamma(tau[0], prior.a_q, prior.b_q) + gamma(tau[1], prior.a_C, prior.b_C)

    def free(self):
        """Mask of the entries of the flat vector that the problem has."""
        mask = np.ones(self.n + self.n**2 + 2, bool)
        if not self.prior.is_anchored:
            mask[-2:] = False
        return mask


def flat(latents):
    return np.concatenate([latents.theta, latents.phi.ravel(), [latents.alpha, latents.beta]])


def x64():
    return jax.enable_x64(True)
