"""Machines of 10 x 10 units learned from 1,000 rows, against exact likelihood.

`python -m benchmarks rbm-small` has the table, with more strengths and machines.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from probjax import L2, MPF, ContrastiveDivergence, MaximumLikelihood, exact, fit, rbm

pytestmark = pytest.mark.statistics

UNITS, ROWS, MACHINES = 10, 1000, 10
ADAM = optax.adam(optax.cosine_decay_schedule(0.05, 200))
NEWTON = {"steps_per_round": 100}
MOVES = {"optimizer": ADAM, "num_rounds": 200, "steps_per_round": 1}
CONTRAST = ContrastiveDivergence(rbm.energy, rbm.BlockGibbs())
# Each loss at strengths that suit its scale.
METHODS = {
    "likelihood": (MaximumLikelihood(rbm.energy, rbm.log_z), NEWTON, [1e-3]),
    "flow": (MPF(rbm.energy), NEWTON, [3e-4, 0.0]),
    "contrast": (CONTRAST, MOVES, [3e-4]),
}


def task(key):
    keys = jax.random.split(key, 5)
    weight = 1.5 * jax.random.normal(keys[0], (UNITS, UNITS))
    truth = rbm.Params(
        weight,
        jax.random.normal(keys[1], (UNITS,)) / 2 - weight.sum(1) / 2,
        jax.random.normal(keys[2], (UNITS,)) / 2 - weight.sum(0) / 2,
    )
    log_p = exact.log_probs(rbm.energy, truth, UNITS)
    x = exact.states(UNITS)[jax.random.categorical(keys[3], log_p, shape=(ROWS,))]
    return log_p, x, rbm.init(keys[4], UNITS, UNITS, scale=0.1, data=x)


def gap(learned, log_p):
    return exact.kl(log_p, exact.log_probs(rbm.energy, learned, UNITS))


@pytest.fixture(scope="module")
def gaps():
    """KL(truth || learned) of every method, machine by machine."""
    keys = jax.random.split(jax.random.key(0), MACHINES)
    tasks = jax.jit(jax.vmap(task))(keys)

    def all_of(objective, options, strengths):
        @jax.jit
        def learned(strength, *tasks):
            def one(given):
                key, log_p, x, start = given
                decay = L2(strength, weights=rbm.weights_only(start))
                found = fit(key, objective, start, x, penalty=decay, **options)
                return gap(found.params, log_p)

            return jax.lax.map(one, tasks)

        return np.stack([learned(strength, keys, *tasks) for strength in strengths])

    def independent(log_p, x, start):
        on = jnp.exp(log_p) @ exact.states(UNITS)
        blank = jax.tree.map(jnp.zeros_like, start)
        return gap(blank._replace(visible_bias=jnp.log(on) - jnp.log1p(-on)), log_p)

    found = {name: all_of(*method) for name, method in METHODS.items()}
    found["independent"] = np.asarray(jax.jit(jax.vmap(independent))(*tasks))
    return found


def z(difference):
    return difference.mean() / (difference.std(ddof=1) / np.sqrt(len(difference)))


def test_every_method_learns_most_of_what_there_is(gaps):
    """Even without weight decay, machine by machine."""
    for name in METHODS:
        assert np.all(gaps[name] < 0.4 * gaps["independent"]), name


def test_the_flow_needs_weight_decay(gaps):
    with_decay, without = gaps["flow"]
    assert z(without - with_decay) > 4
    assert without.mean() > 1.5 * with_decay.mean()


def test_with_weight_decay_the_flow_does_as_well_as_likelihood(gaps):
    """To hundredths of a nat a row; short contrastive divergence comes near too."""
    for name, most in (("flow", 0.02), ("contrast", 0.05)):
        apart = gaps[name][0] - gaps["likelihood"][0]
        assert abs(apart.mean()) < most, name
