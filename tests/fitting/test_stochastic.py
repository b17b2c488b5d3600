"""Parts of stochastic approximation: metric, distance from groups, dependence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from small_models import (
    cubic_energy,
    cubic_params,
    drawn_from,
    flat_ising,
    random_ising,
)

from probjax import L2, Data, HeatBath, MaximumLikelihood, ising, potts, rbm
from probjax.fitting import metric as metrics
from probjax.fitting.dependence import depends_on_first
from probjax.fitting.distance import RowSample
from probjax.fitting.group_distance import group_distance
from probjax.fitting.metric import metric_of
from probjax.trees import as_array

SIZE = 4
SAMPLED = MaximumLikelihood(ising.energy, sampler=HeatBath())


def statistics(x):
    """dE/dparams of an Ising model for each row."""
    first, second = np.triu_indices(x.shape[1], 1)
    return np.concatenate([x, 2 * x[:, first] * x[:, second]], axis=1)


def estimate(x, penalty=None, weights=None):
    point, unravel = ravel_pytree(flat_ising(x.shape[1]))
    sample = RowSample(Data(as_array(x), weights), (), as_array(1.0))
    return metric_of(
        jax.random.key(0), SAMPLED, penalty, unravel, point, sample, for_steps=True
    )


def test_the_metric_is_the_covariance_over_rows_and_the_curvature_of_the_penalty():
    x = drawn_from(0, random_ising(0, SIZE), 3000)
    found = jax.jit(lambda: estimate(x, L2(0.05)))()
    covariance = np.cov(statistics(x), rowvar=False, bias=True) + 0.1 * np.eye(10)
    ridge = 10 / 3010
    regular = covariance + ridge * np.diag(np.diag(covariance))
    gradient = np.random.default_rng(1).normal(size=10).astype(np.float32)
    solved = jax.jit(lambda found, g: found.solve(g))(found, gradient)
    np.testing.assert_allclose(regular @ np.asarray(solved), gradient, atol=2e-3)


def test_weights_are_counts_for_the_metric():
    x = drawn_from(0, random_ising(0, SIZE), 300)
    states, counts = np.unique(x, axis=0, return_counts=True)
    weights = as_array(counts.astype(np.float32))
    found = jax.jit(lambda: estimate(states, weights=weights))()
    variance = statistics(x).var(0)
    floor = np.where(np.arange(10) < SIZE, 1, 4) / len(states)
    np.testing.assert_allclose(
        found.scale**-2.0, np.maximum(variance, floor), rtol=1e-4
    )


def test_pairs_that_never_occur_have_finite_steps():
    x = drawn_from(0, random_ising(0, SIZE), 400)
    x[:, 1] *= 1 - x[:, 0]
    scale = np.asarray(jax.jit(lambda: estimate(x))().scale)
    # Once in 400 rows, 2 x_0 x_1 would have the variance 4 / 400.
    np.testing.assert_allclose(scale[SIZE], 10, rtol=1e-4)


def test_many_parameters_use_no_correlations(monkeypatch):
    monkeypatch.setattr(metrics, "MAX_DENSE", 5)
    x = drawn_from(0, random_ising(0, SIZE), 400)
    found = jax.jit(lambda: estimate(x))()
    assert found.inverse is None
    np.testing.assert_allclose(found.scale**-2.0, statistics(x).var(0), rtol=1e-4)


def groups(seed, *, mean, noise, count=20, size=200):
    generator = np.random.default_rng(seed)
    return mean + noise * generator.normal(size=(count, size))


measure = jax.jit(group_distance)


def test_the_distance_is_unbiased_although_the_noise_is_large():
    size = 200
    found = [
        measure(g @ g.T, float(size))
        for g in (groups(seed, mean=0.3, noise=2.0) for seed in range(200))
    ]
    squared, errors = map(np.asarray, zip(*found, strict=True))
    np.testing.assert_allclose(squared.mean(), 0.09, atol=4 * squared.std() / 200**0.5)
    # The jackknife overestimates the error of a mean over pairs a little.
    assert 1 < errors.mean() / squared.std() < 1.4
    # With the product of a group with itself it would be 0.09 + 2^2 / 20.
    assert squared.mean() < 0.12


def test_a_direction_that_the_chains_do_not_determine_adds_its_noise():
    g = groups(0, mean=0.3, noise=0.1)
    burst = np.zeros((20, 200))
    burst[3] = 50.0
    squared, error = measure((g + burst) @ (g + burst).T, 200.0)
    plain = np.sum((g + burst).mean(0) ** 2) / 200
    assert plain > 6
    unresolved = np.sum((burst - burst.mean(0)) ** 2) / (20 * 19) / 200
    np.testing.assert_allclose(squared, 0.09 + unresolved, rtol=0.15)
    assert error < 0.1


def branched(params, x):
    """A sum whose sign depends on the parameters."""
    return jax.lax.cond(params[0] > 0, jnp.sum, lambda p: -jnp.sum(p), params * x)


def looped(params, x):
    return jax.lax.fori_loop(0, 3, lambda i, total: total + params[i] * x[i], 0.0)


def folded(params, x):
    return jnp.sum(jax.nn.relu(params * x))


@jax.jit
def compiled(params, x):
    return jnp.where(x[0] > 0, params @ x, 2 * params @ x**2)


@pytest.mark.parametrize(
    ("energy", "params", "depends"),
    [
        (ising.energy, flat_ising(4), False),
        (potts.energy, potts.Params(np.zeros((4, 2)), np.zeros((6, 2, 2))), False),
        (compiled, np.zeros(4), False),
        (jax.checkpoint(compiled), np.zeros(4), False),
        (rbm.energy, rbm.Params(np.zeros((4, 2)), np.zeros(4), np.zeros(2)), True),
        (cubic_energy, cubic_params(0, 4), True),
        # Its derivative does not depend on params where it exists, its gradient does.
        (folded, np.zeros(4), True),
        (branched, np.zeros(4), True),
        # Loops are not followed, so that the answer is on the safe side.
        (looped, np.zeros(4), True),
    ],
    ids=[
        "ising",
        "potts",
        "compiled",
        "checkpointed",
        "rbm",
        "cubic",
        "piecewise",
        "branches",
        "loop",
    ],
)
def test_dependence_is_followed(energy, params, depends):
    params = jax.tree.map(lambda leaf: as_array(leaf, np.float32), params)
    x = as_array(np.ones(4, np.float32))
    assert depends_on_first(jax.grad(energy), params, x) == depends
    assert depends_on_first(energy, params, x)
