"""Bennett's acceptance ratio, against Gaussian works and its own equation."""

import jax
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit

from probjax.annealing.bennett import bennett

LOG_Z = 3.0


def works(generator, variance, num_forward, num_backward):
    """Gaussian log weights: mean log Z -+ variance / 2 (Crooks' relation)."""
    spread = np.sqrt(variance)
    forward = generator.normal(LOG_Z - variance / 2, spread, num_forward)
    backward = generator.normal(LOG_Z + variance / 2, spread, num_backward)
    return forward.astype(np.float32), backward.astype(np.float32)


@pytest.mark.parametrize("counts", [(200, 200), (50, 400)])
def test_the_estimate_solves_its_equation(counts):
    a, b = works(np.random.default_rng(0), 4.0, *counts)
    ratio = np.log(counts[1] / counts[0])

    def excess(c):
        return expit(a - c + ratio).sum() - expit(-(b - c + ratio)).sum()

    found, _ = jax.jit(bennett)(a, b)
    np.testing.assert_allclose(found, brentq(excess, -20, 20), atol=2e-5)


@pytest.mark.parametrize(("variance", "correlated"), [(1.0, False), (9.0, True)])
def test_the_claimed_error_is_the_scatter_of_runs(variance, correlated):
    """Repeated runs; with correlation, each start of the reverse run is used twice."""
    generator, found = np.random.default_rng(0), []
    solve = jax.jit(bennett)
    for _ in range(300):
        a, b = works(generator, variance, 200, 200)
        if correlated:
            b = np.repeat(b[::2], 2)
        found.append([float(number) for number in solve(a, b)])
    estimates, claimed = np.array(found).T
    scatter = estimates.std(ddof=1)
    assert abs(estimates.mean() - LOG_Z) < 4 * scatter / np.sqrt(300)
    assert 0.8 < np.sqrt(np.mean(claimed**2)) / scatter < 1.25
    covered = np.abs(estimates - LOG_Z) < 2 * claimed
    assert covered.mean() > 0.9


def test_dead_particles_count_as_weights_of_zero():
    a, b = works(np.random.default_rng(1), 1.0, 400, 400)
    # Half of the base has no overlap with the target: Z is half as large.
    a[::2] = -np.inf
    found, stderr = jax.jit(bennett)(a, b)
    assert abs(found - LOG_Z + np.log(2)) < 4 * stderr
    nothing, _ = jax.jit(bennett)(np.full(5, -np.inf, np.float32), b[:5])
    assert np.isnan(nothing)


def test_one_particle_has_no_error():
    _, stderr = jax.jit(bennett)(np.ones(1, np.float32), np.ones(9, np.float32))
    assert np.isnan(stderr)


def test_runs_of_different_precision_are_combined(x64):
    a, b = works(np.random.default_rng(0), 1.0, 60, 60)
    single, _ = jax.jit(bennett)(a, b)
    mixed, _ = jax.jit(bennett)(a.astype(float), b)
    assert mixed.dtype == float
    np.testing.assert_allclose(mixed, single, atol=1e-4)
