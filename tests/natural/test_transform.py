from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from small_models import (
    all_states,
    cubic_energy,
    cubic_params,
    drawn_from,
    flat_of,
    log_probs_of,
    random_ising,
)

from probjax import MPF, Data, HeatBath, MaximumLikelihood, experts, fit, ising, natural
from probjax.natural import natural_gradient, relative_gradient
from probjax.natural import transform as transform_module

ENERGIES = natural.energy_scores(ising.energy)
STATES = all_states(4).astype(float)


def of_leaves(function, tree):
    """A tree of NumPy, the same function of each leaf."""
    return jax.tree.map(lambda leaf: function(np.asarray(leaf)), tree)


def stacked(*trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def drawn(seed, params, num_rows):
    """Rows in the precision of the test."""
    return drawn_from(seed, params, num_rows).astype(float)


@partial(jax.jit, static_argnums=0)
def updates(transform, gradients, params, data):
    """A step for each entry of gradients and data, one after the other."""

    def update(state, given):
        gradient, rows = given
        step, state = transform.update(gradient, state, params, data=rows)
        return state, step

    state, steps = jax.lax.scan(update, transform.init(params), (gradients, data))
    return steps, state


def one_update(transform, gradient, params, data):
    steps, _ = updates(transform, stacked(gradient), params, stacked(data))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], steps)


def refused(match, transform, gradient, params, data):
    """While tracing: shapes are known then, and nothing is compiled."""
    with pytest.raises(ValueError, match=match):
        jax.eval_shape(
            lambda: transform.update(
                gradient, transform.init(params), params, data=data
            )
        )


@pytest.mark.parametrize("centred", [True, False])
def test_steps_do_not_depend_on_the_parameters_chosen(centred, x64):
    """In parameters t = B p a step is B times the step in p."""
    params, generator = cubic_params(0, 5), np.random.default_rng(0)
    flat = flat_of(params)
    change = generator.normal(size=(flat.size, flat.size)) / 6
    gradient, x = np.cos(9 * flat), generator.normal(size=(200, 5))
    _, unravel = ravel_pytree(params)

    def other_energy(other, x):
        return cubic_energy(unravel(jnp.linalg.solve(change, other)), x)

    here = natural_gradient(
        natural.energy_scores(cubic_energy), damping=0.0, centred=centred
    )
    there = natural_gradient(
        natural.energy_scores(other_energy), damping=0.0, centred=centred
    )
    step = one_update(here, unravel(gradient), params, x)
    # Gradients change the other way round.
    turned = np.linalg.solve(change.T, gradient)
    other_step = one_update(there, turned, change @ flat, x)
    np.testing.assert_allclose(other_step, change @ flat_of(step), rtol=1e-6, atol=1e-8)


def test_exact_natural_descent_finds_an_ising_model_in_few_steps(x64):
    """Centred scores are the Fisher matrix; left uncentred they are slow (ERRATA)."""
    truth = random_ising(5, 4, scale=0.5)
    log_p = log_probs_of(truth)
    data, start = Data(STATES, np.exp(log_p)), of_leaves(np.zeros_like, truth)

    def apart(centred):
        optimizer = optax.chain(
            natural_gradient(
                ENERGIES,
                damping=1e-6,
                centred=centred,
                rows=natural.states_of(ising.energy),
                key=jax.random.key(0),
            ),
            optax.sgd(1.0),
        )
        found = fit(
            jax.random.key(1),
            MaximumLikelihood(ising.energy),
            start,
            data,
            optimizer=optimizer,
            steps_per_round=20,
        )
        return np.exp(log_p) @ (log_p - log_probs_of(found.params))

    assert apart(True) < 1e-11
    assert apart(False) > 1e-4


def test_charts_are_seen_through(key, x64):
    """As steps do not depend on parameters, they do not depend on a chart either."""
    params = random_ising(5, 4, scale=0.5)
    data = drawn(0, params, 500)
    optimizer = optax.chain(natural_gradient(ENERGIES, damping=1e-10), optax.sgd(0.5))
    found = [
        fit(
            key,
            MPF(ising.energy),
            of_leaves(np.zeros_like, params),
            data,
            optimizer=optimizer,
            chart=chart,
            steps_per_round=5,
        ).params
        for chart in (None, ising.centred(data))
    ]
    chex.assert_trees_all_close(*found, rtol=1e-5)


def test_a_metric_serves_several_steps(x64):
    params = random_ising(0, 4)
    # The energy is linear in its parameters, so only other rows have another metric.
    data, other = (drawn(seed, random_ising(seed, 4), 100) for seed in (0, 9))
    gradients = stacked(*3 * [of_leaves(np.sin, params)])
    for solve in (
        natural.Dense(),
        natural.BlockDiagonal(),
        natural.Diagonal(),
        natural.LowRank(),
    ):
        found = []
        for every in (2, 1):
            transform = natural_gradient(
                ENERGIES, every=every, solve=solve, num_rows=20
            )
            rows = np.stack([data, other, other])
            steps, _ = updates(transform, gradients, params, rows)
            found.append(np.concatenate([steps.bias, steps.coupling], axis=1))
        kept, (first, second, _) = found
        assert np.linalg.norm(first - second) > 0.1 * np.linalg.norm(first)
        np.testing.assert_allclose(kept, [first, first, second], rtol=1e-9)


@pytest.mark.parametrize(
    "solve", [natural.Dense(), natural.LowRank(), natural.ConjugateGradient()]
)
def test_momentum_keeps_what_the_metric_says_little_of(solve, x64):
    params = random_ising(0, 4)
    data = drawn(1, params, 30)
    transform = natural_gradient(ENERGIES, damping=0.1, momentum=0.9, solve=solve)
    gradients = [of_leaves(f, params) for f in (np.sin, np.cos)]
    steps, _ = updates(transform, stacked(*gradients), params, stacked(data, data))
    before, after = np.concatenate([steps.bias, steps.coupling], axis=1)
    metric = np.asarray(natural.metric(ENERGIES, params, data))
    shift = 0.1 * np.trace(metric) / 10
    right = flat_of(gradients[1]) + 0.9 * shift * before
    truth = np.linalg.solve(metric + shift * np.eye(10), right)
    np.testing.assert_allclose(after, truth, rtol=1e-4)


def test_it_stands_in_a_chain():
    params = random_ising(0, 4)
    data, gradient = drawn(2, params, 100), of_leaves(np.sin, params)
    step = flat_of(one_update(natural_gradient(ENERGIES), gradient, params, data))
    chain = optax.chain(
        natural_gradient(ENERGIES),
        optax.clip_by_global_norm(0.1),
        optax.trace(0.9),
        optax.scale_by_learning_rate(optax.linear_schedule(1.0, 0.0, 2)),
    )
    steps, state = updates(
        chain, stacked(gradient, gradient), params, stacked(data, data)
    )
    steps = np.concatenate([steps.bias, steps.coupling], axis=1)
    for found, rate, kept in zip(steps, (1.0, 0.5), (1.0, 1.9), strict=True):
        length = np.linalg.norm(found)
        assert length == pytest.approx(0.1 * rate * kept, rel=1e-4)
        along = -found @ step / length / np.linalg.norm(step)
        assert along == pytest.approx(1, rel=1e-5)
    report = state[0].report
    assert report.rank == 10
    assert report.condition > 1


def test_many_fits_at_once(key):
    params = random_ising(0, 4, scale=0.5)
    data = np.stack([drawn(seed, params, 200) for seed in range(3)])
    optimizer = optax.chain(natural_gradient(ENERGIES, every=3), optax.sgd(0.5))

    def run(rows):
        objective = MPF(ising.energy)
        return fit(
            key, objective, params, rows, optimizer=optimizer, steps_per_round=10
        ).params

    chex.assert_trees_all_close(
        jax.jit(jax.vmap(run))(data),
        stacked(*map(run, data)),
        rtol=1e-3,
        atol=1e-4,
    )


def test_draws_of_the_model_give_its_metric(key):
    params = random_ising(1, 4, scale=0.5)
    exactly = natural_gradient(
        ENERGIES, rows=natural.states_of(ising.energy), key=key, damping=0.1
    )
    drawn = natural_gradient(
        ENERGIES,
        rows=natural.draws_of(ising.energy, HeatBath(), num_steps=20),
        key=key,
        damping=0.1,
    )
    gradient, rows = of_leaves(np.sin, params), np.zeros((20_000, 4))
    truth, found = (
        flat_of(one_update(transform, gradient, params, rows))
        for transform in (exactly, drawn)
    )
    assert np.linalg.norm(found - truth) < 0.05 * np.linalg.norm(truth)


def test_relative_gradients_are_of_any_mixture(x64):
    """Steps are equivariant: with W B in place of W they are the step times B."""
    filters, mix = np.random.default_rng(0).normal(size=(2, 4, 4))
    gradient = np.sin(filters)
    transform = relative_gradient()

    @jax.jit
    def step_of(gradient, filters):
        return transform.update(gradient, transform.init(filters), filters)[0]

    step = np.asarray(step_of(gradient, filters))
    np.testing.assert_allclose(step, gradient @ filters.T @ filters)
    # In W B the gradient is the one in W times the inverse of B', from the right.
    turned = gradient @ np.linalg.inv(mix).T
    other = step_of(turned, filters @ mix)
    np.testing.assert_allclose(other, step @ mix, rtol=1e-9)


def test_a_relative_step_lowers_the_loss_of_ica(key):
    truth = experts.Params(np.eye(3, dtype=np.float32) + np.float32(0.9), np.ones(3))
    responses = np.random.default_rng(0).laplace(size=(2000, 3))
    x = np.linalg.solve(truth.filters, responses.T).T
    start = experts.Params(np.diag([1.0, 2.0, 0.5]), np.ones(3))
    objective = MaximumLikelihood(experts.laplace, log_z=experts.laplace_log_z)
    optimizer = optax.chain(relative_gradient(), optax.sgd(0.1))
    found = fit(key, objective, start, x, optimizer=optimizer, steps_per_round=50)
    losses = np.asarray(found.losses)
    assert np.all(np.diff(losses[:10]) < 0)
    log_z = 3 * np.log(2) - np.linalg.slogdet(truth.filters)[1]
    assert losses[-1] < np.abs(responses).sum(1).mean() + log_z + 0.05


def test_a_few_rows_stand_for_all_by_their_weights():
    params = random_ising(0, 4)
    gradient = of_leaves(np.sin, params)
    weighed = Data(STATES, np.arange(16.0) % 2)
    few = natural_gradient(ENERGIES, num_rows=8)
    found = one_update(few, gradient, params, weighed)
    truth = one_update(natural_gradient(ENERGIES), gradient, params, STATES[1::2])
    chex.assert_trees_all_close(found, truth, rtol=1e-5)
    # Places are found without overflow.
    many = np.arange(1e6)[:, None]
    taken = transform_module._selected_rows(Data(many), 50_000).x[:, 0]
    np.testing.assert_array_equal(taken, np.arange(50_000) * 20)


def test_damping_may_follow_a_schedule():
    params = random_ising(0, 4)
    gradient = of_leaves(np.sin, params)
    falling = natural_gradient(ENERGIES, damping=optax.linear_schedule(1.0, 0.0, 2))
    found, _ = updates(
        falling, stacked(gradient, gradient), params, stacked(STATES, STATES)
    )

    @jax.jit
    def fixed(damping):
        transform = natural_gradient(ENERGIES, damping=damping)
        return transform.update(gradient, transform.init(params), params, data=STATES)[
            0
        ]

    truth = stacked(fixed(1.0), fixed(0.5))
    chex.assert_trees_all_close(found, truth, rtol=1e-5)
    assert np.abs(truth.bias[0] - truth.bias[1]).max() > 1e-3


def test_fits_in_batches_and_of_mixed_precision(key, x64):
    params = of_leaves(np.float32, random_ising(0, 4, scale=0.5))
    data, start = drawn(0, params, 200), of_leaves(np.zeros_like, params)
    optimizer = optax.chain(natural_gradient(ENERGIES), optax.sgd(0.1))
    run = partial(
        fit, key, MPF(ising.energy), start, optimizer=optimizer, batch_size=50
    )
    found = run(data, num_rounds=2, steps_per_round=4)
    assert found.params.bias.dtype == np.float32
    losses = np.asarray(found.losses)
    assert losses[4:].mean() < losses[:4].mean() - 0.01
    assert natural.metric(ENERGIES, params, data).dtype == np.float32
    hidden = np.arange(800).reshape(200, 4) > 0
    with pytest.raises(ValueError, match="complete rows"):
        run(Data(data, mask=hidden), num_rounds=2, steps_per_round=4)


def test_bad_input_is_refused_in_a_sentence(key):
    params = random_ising(0, 4)
    gradient = of_leaves(np.sin, params)
    for match, options in {
        "every": dict(every=0),
        "num_rows must be": dict(num_rows=0),
        "momentum must be from 0": dict(momentum=1.0),
        "with momentum, .* got Robust": dict(momentum=0.5, damping=natural.Robust()),
        "key must be given": dict(rows=natural.states_of(ising.energy)),
        "which stores no inverse": dict(solve=natural.ConjugateGradient(), every=2),
        "num_rows must be given": dict(solve=natural.LowRank(), every=2),
        "damping must be 0": dict(damping=-1.0),
        "damping must be a number .* got <class": dict(damping=natural.Robust),
        "damping must be a number .* got 'much'": dict(damping="much"),
        "solve must be .* got <class .*Dense": dict(solve=natural.Dense),
    }.items():
        with pytest.raises(ValueError, match=match):
            natural_gradient(ENERGIES, **options)
    with pytest.raises(ValueError, match=r"a matrix; try Dense\(\)"):
        natural_gradient(natural.Metric(lambda p, d: None), solve=natural.LowRank())
    exactly = natural_gradient(ENERGIES, damping=0.0)
    told = "singular without damping, got 10 parameters and 3 rows"
    refused(told, exactly, gradient, params, STATES[:3])
    many = natural_gradient(ENERGIES, num_rows=17)
    refused("at most the 16 rows, got 17", many, gradient, params, STATES)
    transform = natural_gradient(ENERGIES)
    refused("needs parameters and rows", transform, gradient, params, None)
    told = "a tree like the parameters"
    refused(told, transform, gradient.bias, params, STATES)
    with pytest.raises(ValueError, match="square matrices, got shape"):
        relative_gradient().update(np.ones((2, 3)), (), np.ones((2, 3)))
    with pytest.raises(ValueError, match="needs the parameters"):
        relative_gradient().update(np.ones((2, 2)), ())
    by_hand = optax.chain(natural_gradient(lambda p, d: ENERGIES(p, d)), optax.sgd(1.0))
    with pytest.raises(ValueError, match="if fit has a chart, got Given"):
        fit(
            key,
            MPF(ising.energy),
            params,
            STATES,
            optimizer=by_hand,
            chart=ising.centred(STATES),
        )
