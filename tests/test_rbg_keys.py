"""Keys of `rbg` and `unsafe_rbg` are accepted by every driver.

Legacy keys are tested with `rbg` only: JAX does not compile again when its option
`jax_default_prng_impl` changes, so that a process can have one of the two.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_legacy_keys import ANNEAL, PARAMS, REALS, ROWS, bowl, descended
from test_legacy_keys import CALLS as LEGACY_CALLS

from probjax import (
    HMC,
    L2,
    MPF,
    Bernoulli,
    ContrastiveDivergence,
    HeatBath,
    PersistentDivergence,
    ais,
    fit,
    ising,
    marginal_log_likelihood,
    natural_gradient,
    random,
    sample,
    sample_mean,
)
from probjax.annealing import reverse_ais
from probjax.connectivity import RandomFlips
from probjax.fitting import check_fit, uncertainty
from probjax.natural import energy_scores
from probjax.samplers import tune

IMPLEMENTATIONS = "rbg", "unsafe_rbg"
MOVES = dict(sampler=HeatBath(), num_moves=1)
NATURAL = optax.chain(natural_gradient(energy_scores(ising.energy)), optax.sgd(0.1))


def annealed(key):
    options = dict(num_particles=20, resample_below=0.9, **ANNEAL)
    return ais(key, ising.energy, PARAMS, Bernoulli(4), **options).log_weights


def reversed_(key):
    return reverse_ais(
        key, ising.energy, PARAMS, Bernoulli(4), ROWS[:20], **ANNEAL
    ).log_weights


def noisy_bits(scale, x, bits):
    return scale * jnp.sum((x - bits) ** 2) / 2


def marginal(key):
    options = dict(num_particles=8, chunk_size=4, pilot=None, **ANNEAL)
    return marginal_log_likelihood(
        key, noisy_bits, 1.0, Bernoulli(4), REALS[:6], **options
    ).per_row


def means(key):
    options = dict(sampler=HeatBath(), num_draws=4, statistic=jnp.sum)
    return sample_mean(key, ising.energy, PARAMS, ROWS[:5], **options).mean


def bars(key):
    objective = MPF(ising.energy, connectivity=RandomFlips(2))
    found = fit(key, objective, PARAMS, ROWS, penalty=L2(0.1), num_rounds=1)
    return uncertainty(objective, found, ROWS).covariance


def checked(key):
    options = dict(sampler=HeatBath(), num_chains=20, num_steps=20)
    return check_fit(key, ising.energy, PARAMS, ROWS, **options).z


OTHERS = {
    "fit": descended(MPF(ising.energy)),
    "natural": descended(MPF(ising.energy), optimizer=NATURAL),
    "random flips": descended(MPF(ising.energy, connectivity=RandomFlips(2))),
    "persistent divergence": descended(
        PersistentDivergence(ising.energy, num_particles=10, **MOVES)
    ),
    "contrastive divergence": descended(ContrastiveDivergence(ising.energy, **MOVES)),
    "means": means,
    "tune": lambda key: (
        tune(key, bowl, 1.0, REALS[:8], sampler=HMC(0.3), num_steps=320).x
    ),
    "ais": annealed,
    "reverse ais": reversed_,
    "marginal": marginal,
    "error bars": bars,
    "check": checked,
}
CALLS = LEGACY_CALLS | OTHERS
# One of each kind of driver; the others compile long programs.
QUICK = {
    "bases",
    "corruption",
    "exact draws",
    "heat bath",
    "HMC",
    "sandwich",
    "random flips",
    "persistent divergence",
    "means",
    "tune",
    "ais",
    "marginal",
}


def finite(tree):
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def marked(names, quick):
    return [
        pytest.param(name, marks=[pytest.mark.statistics] * (name not in quick))
        for name in names
    ]


@pytest.mark.parametrize("name", marked(CALLS, QUICK))
def test_rbg_keys_are_accepted(name):
    assert finite(CALLS[name](jax.random.key(3, impl="rbg")))


@pytest.mark.parametrize("name", marked(CALLS, {"corruption", "heat bath"}))
def test_unsafe_rbg_keys_are_accepted(name):
    assert finite(CALLS[name](jax.random.key(3, impl="unsafe_rbg")))


@pytest.mark.parametrize("name", marked(CALLS, {"bases", "heat bath", "marginal"}))
def test_legacy_rbg_keys_give_the_numbers_of_typed_keys(name):
    with jax.default_prng_impl("rbg"):
        legacy = CALLS[name](jax.random.PRNGKey(3))
    typed = CALLS[name](jax.random.key(3, impl="rbg"))
    chex.assert_trees_all_equal(legacy, typed)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_numbers_of_a_batch_of_keys_are_independent(implementation):
    """JAX draws the numbers of all keys of a batch from the first of them."""

    @jax.jit
    def drawn(key):
        keys = random.split_array(key, 200)
        one = [random.normal(key, (200, 50)) for key in random.split(key, 2)]
        draw = jax.vmap(lambda key: random.normal(key, (50,), stream=1))
        return *one, draw(keys), draw(jax.vmap(random.fold_in, (0, None))(keys, 7))

    draws = drawn(jax.random.key(3, impl=implementation))
    flat = np.stack([np.asarray(part).ravel() for part in draws])
    assert np.abs(np.corrcoef(flat) - np.eye(4)).max() < 4 / np.sqrt(flat.shape[1])
    for part in draws:
        rows = np.corrcoef(part) - np.eye(200)
        assert np.abs(rows).max() < 6 / np.sqrt(50)


@pytest.mark.parametrize("default", ["threefry2x32", "rbg"])
def test_legacy_keys_of_another_implementation_are_refused(default):
    other = {"threefry2x32": "rbg", "rbg": "threefry2x32"}[default]
    key = jax.random.PRNGKey(0, impl=other)
    options = dict(sampler=HeatBath(), num_draws=1)
    with (
        jax.default_prng_impl(default),
        pytest.raises(ValueError, match=f"{default}.*; try a typed key"),
    ):
        sample(key, ising.energy, PARAMS, ROWS[:2], **options)


def test_several_keys_are_refused():
    keys = jax.random.split(jax.random.key(0), 3)
    with pytest.raises(ValueError, match=r"one random key, got keys of shape \(3,\)"):
        sample(keys, ising.energy, PARAMS, ROWS[:2], sampler=HeatBath(), num_draws=1)
