"""The densities of the hierarchy once more, in plain dense jax from their definitions.

The latents are one flat vector (theta, phi row by row, alpha, beta); use within x64().
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, logsumexp


def x64():
    return jax.enable_x64(True)


def flat(latents):
    return np.concatenate([latents.theta, latents.phi.ravel(), [latents.alpha, latents.beta]])


def dense(problem):
    """All that the densities below need to know of a problem."""
    weights = problem.graph.weights.toarray()
    weights = weights - np.diag(np.diag(weights))
    laplacian = np.diag(weights.sum(axis=1)) - weights
    return {
        "confusion": np.asarray(problem.counts.confusion.toarray(), float),
        "target": np.asarray(problem.counts.target, float),
        "weights": weights,
        "laplacian": laplacian,
        "log_pdet": np.log(np.linalg.eigvalsh(laplacian)[1:]).sum(),
        "prior": dataclasses.astuple(problem.prior),
    }


def unpack(x, data):
    n = len(data["target"])
    return x[:n], x[n : n + n * n].reshape(n, n), x[-2], x[-1]


def log_likelihood(x, data):
    theta, phi, _, _ = unpack(x, data)
    log_q = theta - logsumexp(theta)
    log_c = phi - logsumexp(phi, axis=0)
    log_r = logsumexp(log_q + log_c, axis=1)
    counts = jnp.column_stack([data["confusion"], data["target"]])
    coefficients = gammaln(counts.sum(axis=0) + 1).sum() - gammaln(counts + 1).sum()
    return coefficients + (counts * jnp.column_stack([log_c, log_r])).sum()


def fields(x, data):
    """theta'L theta, sum_i (phi_i - mu_i)'L(phi_i - mu_i), log density of alpha and beta."""
    theta, phi, alpha, beta = unpack(x, data)
    laplacian, sd = data["laplacian"], data["prior"][-1]
    anchor = 0.0
    if sd is not None:
        phi = phi - alpha * jnp.eye(len(theta)) - beta * data["weights"]
        for weight in (alpha, beta):
            anchor += -0.5 * (weight / sd) ** 2 - jnp.log(sd * jnp.sqrt(2 * jnp.pi))
    return theta @ laplacian @ theta, (phi * (laplacian @ phi)).sum(), anchor


def log_joint(x, tau, data):
    form_q, form_c, anchor = fields(x, data)
    a_q, b_q, a_c, b_c, _ = data["prior"]
    n = len(data["target"])

    def field(form, tau, copies):
        dims = copies * (n - 1)
        return 0.5 * (dims * jnp.log(tau / (2 * jnp.pi)) + copies * data["log_pdet"] - tau * form)

    def gamma(tau, a, b):
        return a * jnp.log(b) - gammaln(a) + (a - 1) * jnp.log(tau) - b * tau

    value = log_likelihood(x, data) + anchor
    value += field(form_q, tau[0], 1) + field(form_c, tau[1], n)
    return value + gamma(tau[0], a_q, b_q) + gamma(tau[1], a_c, b_c)


def log_collapsed(x, tau, data):
    """Up to a constant; tau is not used."""
    form_q, form_c, anchor = fields(x, data)
    a_q, b_q, a_c, b_c, _ = data["prior"]
    n = len(data["target"])
    q = (a_q + (n - 1) / 2) * jnp.log(b_q + form_q / 2)
    c = (a_c + n * (n - 1) / 2) * jnp.log(b_c + form_c / 2)
    return log_likelihood(x, data) + anchor - q - c


@partial(jax.jit, static_argnums=0)
def value_and_gradient(density, x, tau, data):
    """Value, gradient by the latents, gradient by tau."""
    return jax.value_and_grad(density, (0, 1))(x, tau, data)


@partial(jax.jit, static_argnums=0)
def negative_hessian_product(density, x, tau, data, direction):
    slope = jax.grad(density)
    return -jax.jvp(lambda at: slope(at, tau, data), (x,), (direction,))[1]
