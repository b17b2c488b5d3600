from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from small_models import cubic_energy, cubic_params, random_ising

from probjax import (
    MPF,
    Data,
    HeatBath,
    MaximumLikelihood,
    exact,
    experts,
    fit,
    ising,
    natural,
)
from probjax.natural import natural_gradient, relative_gradient
from probjax.natural import transform as transform_module

ENERGIES = natural.energy_scores(ising.energy)


def states_and_chances(params, size):
    log_p = exact.log_probs(ising.energy, params, size)
    return Data(exact.states(size), jnp.exp(log_p))


def norm(tree):
    return jnp.linalg.norm(ravel_pytree(tree)[0])


def one_update(transform, gradient, params, data):
    return transform.update(gradient, transform.init(params), params, data=data)


@pytest.mark.parametrize("centred", [True, False])
def test_steps_do_not_depend_on_the_parameters_chosen(centred, key, x64):
    """In parameters t = B p a step is B times the step in p."""
    params = cubic_params(0, 5)
    flat, unravel = ravel_pytree(params)
    change = jax.random.normal(key, (flat.size, flat.size)) / 6
    gradient, x = jnp.cos(9 * flat), jax.random.normal(key, (200, 5))

    def other_energy(other, x):
        return cubic_energy(unravel(jnp.linalg.solve(change, other)), x)

    here = natural_gradient(
        natural.energy_scores(cubic_energy), damping=0.0, centred=centred
    )
    there = natural_gradient(
        natural.energy_scores(other_energy), damping=0.0, centred=centred
    )
    step, _ = one_update(here, unravel(gradient), params, x)
    # Gradients change the other way round.
    turned = jnp.linalg.solve(change.T, gradient)
    other_step, _ = one_update(there, turned, change @ flat, x)
    np.testing.assert_allclose(
        other_step, change @ ravel_pytree(step)[0], rtol=1e-6, atol=1e-8
    )


def test_exact_natural_descent_finds_an_ising_model_in_few_steps(x64):
    """Centred scores are the Fisher matrix; left uncentred they are slow (ERRATA)."""
    truth = random_ising(3, 4, scale=0.5)
    data = states_and_chances(truth, 4)
    start = jax.tree.map(jnp.zeros_like, truth)

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
        log_q = exact.log_probs(ising.energy, found.params, 4)
        return exact.kl(jnp.log(data.weights), log_q)

    assert apart(True) < 1e-11
    assert apart(False) > 1e-4


def test_charts_are_seen_through(key, x64):
    """As steps do not depend on parameters, they do not depend on a chart either."""
    params = random_ising(5, 4, scale=0.5)
    data = exact.sample(key, ising.energy, params, 4, num_draws=500)
    optimizer = optax.chain(natural_gradient(ENERGIES, damping=1e-10), optax.sgd(0.5))
    found = [
        fit(
            key,
            MPF(ising.energy),
            jax.tree.map(jnp.zeros_like, params),
            data,
            optimizer=optimizer,
            chart=chart,
            steps_per_round=5,
        ).params
        for chart in (None, ising.centred(data))
    ]
    chex.assert_trees_all_close(*found, rtol=1e-5)


def test_a_metric_serves_several_steps(key, x64):
    params = random_ising(0, 4)
    # The energy is linear in its parameters, so only other rows have another metric.
    data, other = (
        exact.sample(key, ising.energy, random_ising(seed, 4), 4, num_draws=100)
        for seed in (0, 9)
    )
    gradient = jax.tree.map(jnp.sin, params)
    for solve in (
        natural.Dense(),
        natural.Blocks(),
        natural.Diagonal(),
        natural.LowRank(),
    ):
        options = dict(solve=solve, num_rows=20)
        kept = natural_gradient(ENERGIES, every=2, **options)
        fresh = natural_gradient(ENERGIES, **options)
        state, steps = kept.init(params), []
        update = jax.jit(kept.update)
        for rows in (data, other, other):
            step, state = update(gradient, state, params, data=rows)
            steps.append(step)
        first, _ = one_update(fresh, gradient, params, data)
        second, _ = one_update(fresh, gradient, params, other)
        assert norm(jax.tree.map(jnp.subtract, first, second)) > 0.1 * norm(first)
        chex.assert_trees_all_close(steps[0], first, rtol=1e-9)
        chex.assert_trees_all_close(steps[1], first, rtol=1e-9)
        chex.assert_trees_all_close(steps[2], second, rtol=1e-9)


@pytest.mark.parametrize(
    "solve", [natural.Dense(), natural.LowRank(), natural.ConjugateGradient()]
)
def test_momentum_keeps_what_the_metric_says_little_of(solve, key, x64):
    params = random_ising(0, 4)
    data = exact.sample(key, ising.energy, params, 4, num_draws=30)
    transform = natural_gradient(ENERGIES, damping=0.1, momentum=0.9, solve=solve)
    first, second = (jax.tree.map(f, params) for f in (jnp.sin, jnp.cos))
    before, state = one_update(transform, first, params, data)
    after, _ = transform.update(second, state, params, data=data)
    metric = np.asarray(natural.metric(ENERGIES, params, data))
    shift = 0.1 * np.trace(metric) / 10
    right = ravel_pytree(second)[0] + 0.9 * shift * ravel_pytree(before)[0]
    truth = np.linalg.solve(metric + shift * np.eye(10), right)
    np.testing.assert_allclose(ravel_pytree(after)[0], truth, rtol=1e-4)


def test_it_stands_in_a_chain(key):
    params = random_ising(0, 4)
    data = exact.sample(key, ising.energy, params, 4, num_draws=100)
    gradient = jax.tree.map(jnp.sin, params)
    step, _ = one_update(natural_gradient(ENERGIES), gradient, params, data)
    chain = optax.chain(
        natural_gradient(ENERGIES),
        optax.clip_by_global_norm(0.1),
        optax.trace(0.9),
        optax.scale_by_learning_rate(optax.linear_schedule(1.0, 0.0, 2)),
    )
    state = chain.init(params)
    update = jax.jit(chain.update)
    for rate, kept in ((1.0, 1.0), (0.5, 1.9)):
        found, state = update(gradient, state, params, data=data)
        assert norm(found) == pytest.approx(0.1 * rate * kept, rel=1e-4)
        along = -ravel_pytree(found)[0] @ ravel_pytree(step)[0]
        along = along / norm(found) / norm(step)
        assert along == pytest.approx(1, rel=1e-5)
    report = state[0].report
    assert report.rank == 10
    assert report.condition > 1


def test_many_fits_at_once(key):
    params = random_ising(0, 3, scale=0.5)
    data = jax.vmap(
        lambda key: exact.sample(key, ising.energy, params, 3, num_draws=200)
    )(jax.random.split(key, 3))
    optimizer = optax.chain(natural_gradient(ENERGIES, every=3), optax.sgd(0.5))

    def run(rows):
        objective = MPF(ising.energy)
        return fit(
            key, objective, params, rows, optimizer=optimizer, steps_per_round=10
        ).params

    chex.assert_trees_all_close(
        jax.vmap(run)(data),
        jax.tree.map(lambda *p: jnp.stack(p), *map(run, data)),
        rtol=1e-3,
        atol=1e-4,
    )


def test_draws_of_the_model_give_its_metric(key):
    params = random_ising(1, 3)
    exactly = natural_gradient(
        ENERGIES, rows=natural.states_of(ising.energy), key=key, damping=0.1
    )
    drawn = natural_gradient(
        ENERGIES,
        rows=natural.draws_of(ising.energy, HeatBath(), num_steps=20),
        key=key,
        damping=0.1,
    )
    gradient = jax.tree.map(jnp.sin, params)
    rows = jnp.zeros((20_000, 3))
    truth, _ = one_update(exactly, gradient, params, rows)
    found, _ = jax.jit(lambda: one_update(drawn, gradient, params, rows))()
    error = norm(jax.tree.map(jnp.subtract, found, truth))
    assert error < 0.05 * norm(truth)


def test_relative_gradients_are_of_any_mixture(key, x64):
    """Steps are equivariant: with W B in place of W they are the step times B."""
    filters, mix = jax.random.normal(key, (2, 4, 4))
    gradient = jnp.sin(filters)
    transform = relative_gradient()
    step, _ = transform.update(gradient, transform.init(filters), filters)
    np.testing.assert_allclose(step, gradient @ filters.T @ filters)
    # In W B the gradient is the one in W times the inverse of B', from the right.
    turned = gradient @ jnp.linalg.inv(mix).T
    other, _ = transform.update(turned, transform.init(filters), filters @ mix)
    np.testing.assert_allclose(other, step @ mix, rtol=1e-9)


def test_a_relative_step_lowers_the_loss_of_ica(key):
    truth = experts.Params(jnp.eye(3) + 0.9, jnp.ones(3))
    x = experts.sample_laplace(key, truth, num_draws=2000)
    start = experts.Params(jnp.diag(jnp.array([1.0, 2.0, 0.5])), jnp.ones(3))
    objective = MaximumLikelihood(experts.laplace, log_z=experts.laplace_log_z)
    optimizer = optax.chain(relative_gradient(), optax.sgd(0.1))
    found = fit(key, objective, start, x, optimizer=optimizer, steps_per_round=50)
    assert np.all(np.diff(found.losses[:10]) < 0)
    energies = jax.vmap(experts.laplace, (None, 0))(truth, x)
    assert found.losses[-1] < energies.mean() + experts.laplace_log_z(truth) + 0.05


def test_a_few_rows_stand_for_all_by_their_weights(key):
    params = random_ising(0, 3)
    x = exact.states(3)
    gradient = jax.tree.map(jnp.sin, params)
    weights = jnp.array([0.0, 1, 0, 1, 0, 1, 0, 1])
    few = natural_gradient(ENERGIES, num_rows=4)
    found, _ = jax.jit(lambda: one_update(few, gradient, params, Data(x, weights)))()
    truth, _ = one_update(natural_gradient(ENERGIES), gradient, params, x[1::2])
    chex.assert_trees_all_close(found, truth, rtol=1e-5)
    # Places are found without overflow.
    many = jnp.arange(1e6)[:, None]
    taken = transform_module._thinned(Data(many), 50_000).x[:, 0]
    np.testing.assert_array_equal(taken, np.arange(50_000) * 20)


def test_damping_may_follow_a_schedule(key):
    params = random_ising(0, 3)
    x = exact.states(3)
    gradient = jax.tree.map(jnp.sin, params)
    falling = natural_gradient(ENERGIES, damping=optax.linear_schedule(1.0, 0.0, 2))
    state = falling.init(params)
    for damping in (1.0, 0.5):
        found, state = falling.update(gradient, state, params, data=x)
        fixed = natural_gradient(ENERGIES, damping=damping)
        truth, _ = one_update(fixed, gradient, params, x)
        chex.assert_trees_all_close(found, truth, rtol=1e-5)


def test_fits_in_batches_and_of_mixed_precision(key, x64):
    params = jax.tree.map(lambda p: p.astype(np.float32), random_ising(0, 3))
    data = exact.sample(key, ising.energy, params, 3, num_draws=200).astype(float)
    optimizer = optax.chain(natural_gradient(ENERGIES), optax.sgd(0.1))
    run = partial(
        fit, key, MPF(ising.energy), params, optimizer=optimizer, batch_size=50
    )
    found = run(data, num_rounds=2, steps_per_round=4)
    assert found.params.bias.dtype == np.float32
    assert found.losses[-1] < found.losses[0] + 0.1
    assert natural.metric(ENERGIES, params, data).dtype == np.float32
    hidden = Data(data, mask=data > -1).mask.at[0, 0].set(False)
    with pytest.raises(ValueError, match="complete rows"):
        run(Data(data, mask=hidden), num_rounds=2, steps_per_round=4)


def test_bad_input_is_refused_in_a_sentence(key):
    params = random_ising(0, 4)
    x = exact.states(4)
    gradient = jax.tree.map(jnp.sin, params)
    for match, options in {
        "every": dict(every=0),
        "num_rows must be": dict(num_rows=0),
        "momentum must be from 0": dict(momentum=1.0),
        "with momentum, .* got Robust": dict(momentum=0.5, damping=natural.Robust()),
        "key must be given": dict(rows=natural.states_of(ising.energy)),
        "which keeps no inverse": dict(solve=natural.ConjugateGradient(), every=2),
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
    with pytest.raises(ValueError, match="10 parameters from 3 rows is singular"):
        one_update(natural_gradient(ENERGIES, damping=0.0), gradient, params, x[:3])
    with pytest.raises(ValueError, match="at most the 16 rows, got 17"):
        one_update(natural_gradient(ENERGIES, num_rows=17), gradient, params, x)
    transform = natural_gradient(ENERGIES)
    with pytest.raises(ValueError, match="needs parameters and rows"):
        transform.update(gradient, transform.init(params), params)
    with pytest.raises(ValueError, match="a tree like the parameters"):
        one_update(transform, gradient.bias, params, x)
    with pytest.raises(ValueError, match="square matrices, got shape"):
        relative_gradient().update(jnp.ones((2, 3)), (), jnp.ones((2, 3)))
    with pytest.raises(ValueError, match="needs the parameters"):
        relative_gradient().update(jnp.ones((2, 2)), ())
    by_hand = optax.chain(natural_gradient(lambda p, d: ENERGIES(p, d)), optax.sgd(1.0))
    with pytest.raises(ValueError, match="if fit has a chart, got Given"):
        fit(
            key,
            MPF(ising.energy),
            params,
            x,
            optimizer=by_hand,
            chart=ising.centred(x),
        )
