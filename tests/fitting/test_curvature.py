"""Hessians by units and by columns, inverses by factors and by eigenvectors."""

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from small_models import counted_states, random_ising

from probjax import L2, MPF, Data, PseudoLikelihood, fit, ising
from probjax.data import FixedFlips
from probjax.fitting import GradientNorm, charts, gradient_noise, sandwich, uncertainty
from probjax.fitting.curvature import curved_factor, hessian_by_units
from probjax.fitting.loss import loss_over_rows
from probjax.objectives import Corrupted, RatioMatching

SIZE = 5
DATA = counted_states(SIZE)
EDGES = ((0, 1), (1, 3), (2, 4))


@pytest.mark.parametrize("edges", [None, EDGES])
@pytest.mark.parametrize("make", [MPF, PseudoLikelihood, RatioMatching])
@pytest.mark.parametrize("rows", [DATA, Data(DATA.x[::2])])
def test_hessians_by_units_are_those_of_autodiff(make, edges, rows, x64):
    objective = make(ising.energy)
    params = random_ising(3, SIZE, edges=edges, scale=0.7)
    data = objective.prepare(params, rows)
    flat, unravel = ravel_pytree(params)

    def loss(flat):
        return loss_over_rows(objective, unravel(flat), data, (), chunk_size=None)[0]

    losses = objective.unit_losses(params, data)
    value, gradient = jax.jit(jax.value_and_grad(loss))(flat)
    assert np.abs(gradient).max() > 0.01
    of_rows = (params, data, value, gradient)
    found = jax.jit(lambda rest: hessian_by_units(losses, objective.reduce, *rest))
    np.testing.assert_allclose(
        found(of_rows), jax.jit(jax.hessian(loss))(flat), rtol=1e-9, atol=1e-12
    )


def test_losses_that_are_no_sum_over_units_do_not_claim_to_be():
    params = random_ising(0, SIZE)

    def own_energy(params, x):
        return ising.energy(params, x)

    for objective in (
        MPF(ising.energy, exclude_data=True),
        MPF(own_energy),
        Corrupted(MPF(ising.energy), FixedFlips(1)),
        PseudoLikelihood(ising.energy, num_states=3),
    ):
        assert objective.unit_losses(params, DATA) is None
    missing = DATA._replace(mask=DATA.x >= 0)
    assert MPF(ising.energy).unit_losses(params, missing) is None


@pytest.fixture
def few_dense(monkeypatch):
    """Treat models of this file as if they had many parameters."""
    monkeypatch.setattr(sandwich, "MAX_DENSE", 2)


@pytest.mark.parametrize("chart", [None, charts.Affine(scale=2.0)])
@pytest.mark.parametrize("clusters", [None, np.arange(2**SIZE) // 2])
def test_factors_give_the_covariance_of_eigenvectors(
    chart, clusters, key, x64, request
):
    objective = MPF(ising.energy)
    options = dict(penalty=L2(1e-3), stop=GradientNorm())
    fitted = fit(key, objective, random_ising(1, SIZE), DATA, **options)
    options = dict(chart=chart, clusters=clusters)
    dense = uncertainty(objective, fitted, DATA, **options).covariance
    request.getfixturevalue("few_dense")
    found = uncertainty(objective, fitted, DATA, **options)
    assert found.loose.shape[1] == 1
    np.testing.assert_allclose(found.covariance, dense, rtol=1e-7, atol=1e-12)


def test_flat_directions_of_many_parameters_are_found(few_dense, key, x64):
    def energy(params, x):
        return ising.energy(params["first"], x) + params["second"] * x[0]

    objective = PseudoLikelihood(energy)
    start = {"first": random_ising(1, SIZE), "second": np.zeros(())}
    fitted = fit(key, objective, start, DATA)
    stderr = uncertainty(objective, fitted, DATA).stderr
    bias = np.asarray(stderr["first"].bias)
    assert np.isinf(bias[0])
    assert np.isinf(stderr["second"])
    assert np.isfinite(bias[1:]).all()
    assert np.isfinite(stderr["first"].coupling).all()


def test_a_factor_of_a_flat_loss_says_so():
    assert bool(curved_factor(np.diag([1.0, 2.0]).astype("f4")).is_curved)
    flat = np.array([[1.0, 1.0], [1.0, 1.0]], "f4")
    assert not bool(curved_factor(flat).is_curved)
    bent = np.array([[1.0, 2.0], [2.0, 1.0]], "f4")
    assert not bool(curved_factor(bent).is_curved)


def test_sampled_rows_keep_the_variance_of_rare_pairs(few_dense, monkeypatch, key):
    """4 of 4,000 rows have both of two units on; 400 rows represent all."""
    rng = np.random.default_rng(0)
    x = rng.binomial(1, 0.2, (4000, 3)).astype("f4")
    x[:, 2] *= 1 - x[:, 1]
    x[[30, 1001, 2002, 3003], 1:] = 1
    objective = PseudoLikelihood(ising.energy)
    fitted = fit(key, objective, random_ising(0, 3), x)
    every = uncertainty(objective, fitted, x).stderr.coupling
    monkeypatch.setattr(gradient_noise, "SAMPLE_ROWS", 400)
    jax.clear_caches()
    some = uncertainty(objective, fitted, x).stderr.coupling
    np.testing.assert_allclose(some, every, rtol=0.15)
    assert 0.2 < float(every[2]) < 0.6  # about 1 / (2 sqrt(4))
