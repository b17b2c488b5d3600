"""The contract everything else stands on, in five cases that must never retrace."""

import importlib
import operator

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import (
    AfterSteps,
    cubic_energy,
    cubic_params,
    drawn_from,
    flat_ising,
    random_ising,
)

from probjax import L1, MPF, PseudoLikelihood, fit, ising
from probjax.connectivity import GaussianSteps
from probjax.fitting import GradientNorm
from probjax.fitting.rounds import advance
from probjax.potential import Potential
from probjax.trees import as_array

ADAM = optax.adam(0.05)
# The module: `probjax.fitting.fit` is the function.
FIT = importlib.import_module("probjax.fitting.fit")


def traces(monkeypatch, most):
    """Make `fit` fail if its core is traced more than `most` times."""
    chex.clear_trace_counter()
    counted = jax.jit(chex.assert_max_traces(n=most)(advance))
    monkeypatch.setattr(FIT, "advance_compiled", counted)


def bits(seed, rows, size):
    return np.random.default_rng(seed).binomial(1, 0.4, (rows, size)).astype(float)


def test_closed_form_flow_compiles_once_for_new_params_data_and_keys(monkeypatch):
    traces(monkeypatch, 1)
    found = [
        fit(
            jax.random.key(seed),
            MPF(ising.energy),
            random_ising(seed, 6),
            bits(seed, 300, 6),
            chart=ising.centred(bits(seed, 300, 6)),
            stop=GradientNorm(10.0 ** -(4 + seed)),
        )
        for seed in range(2)
    ]
    assert all(result.converged for result in found)
    assert not np.allclose(found[0].params.coupling, found[1].params.coupling)


def test_flow_of_a_plain_function_of_any_params_compiles_once(monkeypatch):
    traces(monkeypatch, 1)
    for seed in range(2):
        data = bits(seed, 200, 5)
        found = fit(
            jax.random.key(seed),
            MPF(cubic_energy),
            cubic_params(seed, 5),
            data,
            stop=AfterSteps(20),
        )
        assert len(found.losses) == 20
        assert np.all(np.diff(found.losses) < 0)


def test_sampled_connectivity_with_minibatches_compiles_once_for_new_knobs(
    monkeypatch,
):
    traces(monkeypatch, 1)
    for scale in (1, 0.5):
        data = np.random.default_rng(3).normal(1.0, 2.0, size=(1000, 1))
        found = fit(
            jax.random.key(0),
            MPF(gaussian, connectivity=GaussianSteps(scale, num_draws=4)),
            as_array(np.zeros(2)),
            data,
            optimizer=ADAM,
            batch_size=200,
            num_rounds=100,
            steps_per_round=3,
        )
        mean, log_precision = np.asarray(found.params)
        assert abs(mean - data.mean()) < 0.3
        assert abs(np.exp(-log_precision / 2) - data.std()) < 0.3


def gaussian(params, x):
    return jnp.exp(params[1]) * jnp.sum((x - params[0]) ** 2) / 2


def test_l1_fit_has_exact_zeros_and_compiles_once_for_new_strengths(monkeypatch):
    traces(monkeypatch, 1)
    truth = random_ising(0, 8, edges=[(0, 1), (2, 3), (4, 5)])
    data = drawn_from(1, truth, 2000)
    zeros = []
    for strength in (0.03, 0.1):
        found = fit(
            jax.random.key(0),
            PseudoLikelihood(ising.energy),
            flat_ising(8),
            data,
            penalty=L1(strength, weights=ising.Params(0.0, 1.0)),
        )
        assert found.converged
        zeros.append(np.sum(np.asarray(found.params.coupling) == 0))
        assert np.all(np.asarray(found.params.bias) != 0)
    assert 0 < zeros[0] < zeros[1] < 28


def test_annealed_hmc_step_costs_one_gradient_of_the_target():
    evaluations = []

    def target(params, x):
        evaluations.append(0)
        return jnp.sum(params * x**4)

    def base(params, x):
        return jnp.sum(x**2) / 2

    @jax.jit
    def run(params, x, v):
        def leap(carry, beta):
            x, v, (terms, gradients) = carry
            weights = jnp.stack([1 - beta, beta])
            model = Potential((base, target), (None, params), weights)
            v = v - 0.05 * model.combine(gradients)
            x = x + 0.1 * v
            cache = model.terms_and_gradients(x)
            v = v - 0.05 * model.combine(cache[1])
            return (x, v, cache), model(x) - model.combine(cache[0])

        start = Potential((base, target), (None, params), jnp.array([1.0, 0.0]))
        carry = (x, v, start.terms_and_gradients(x))
        return jax.lax.scan(leap, carry, jnp.linspace(0, 1, 50))

    many = jax.jit(jax.vmap(run, (None, 0, 0)))
    for scale in (1.0, 2.0):
        _, stale = many(scale * np.arange(1.0, 4.0), np.ones((5, 3)), np.ones((5, 3)))
        np.testing.assert_allclose(stale, 0, atol=1e-4)
    # Traced once at the start, once for the gradient in the loop's body, and once for
    # `model(x)`, which only this test asks for; and not again for new parameters.
    assert len(evaluations) == 3


def test_a_repeated_fit_compiles_nothing_at_all():
    compiled = []

    def listen(event, duration_secs, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration_secs)

    def learn(seed, strength):
        data = bits(seed, 200, 5)
        start = random_ising(seed, 5, scale=0.1 * (1 + seed))
        chart = ising.centred(data)
        fits = [
            fit(jax.random.key(seed), MPF(ising.energy), start, data, chart=chart),
            fit(
                jax.random.key(seed),
                MPF(ising.energy),
                start,
                data,
                penalty=L1(strength),
                stop=GradientNorm(),
            ),
        ]
        return [len(found.losses) for found in fits]

    lengths = learn(0, 0.01), learn(1, 0.02)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        lengths += (learn(2, np.float32(0.03)), learn(3, 1))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(set(map(tuple, lengths))) > 1
    assert compiled == []


@pytest.mark.parametrize("options", ["minibatches", "l1"])
def test_every_way_down_works_under_vmap(options):
    data = np.stack([bits(seed, 100, 4) for seed in range(3)])
    start, key = random_ising(0, 4, scale=0.2), jax.random.key(0)
    chosen = {
        "minibatches": dict(optimizer=ADAM, batch_size=20, steps_per_round=7),
        "l1": dict(penalty=L1(0.02)),
    }[options]

    def one(rows):
        return fit(key, MPF(ising.energy), start, rows, **chosen).params

    together = jax.jit(jax.vmap(one))(data)
    alone = jax.tree.map(lambda *leaves: np.stack(leaves), *map(one, data))
    chex.assert_trees_all_close(together, alone, atol=1e-3)


def test_fit_under_vmap_equals_fits_one_by_one():
    data = np.stack([bits(seed, 100, 4) for seed in range(3)])
    start = random_ising(0, 4)
    key = jax.random.key(0)

    def one(rows):
        return fit(key, MPF(ising.energy), start, rows)

    together = jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(data))
    assert together.converged.all()
    for i in range(3):
        alone = one(data[i])
        one_of_three = jax.tree.map(operator.itemgetter(i), together.params)
        chex.assert_trees_all_close(one_of_three, alone.params, atol=1e-3)
        # Rounding may decide a step.
        assert abs(np.isfinite(together.losses[i]).sum() - len(alone.losses)) <= 2
