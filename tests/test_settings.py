"""Every driver at its smallest size, under the settings of jax that users change.

The numbers are those without the setting. Rank promotion is not among the settings,
because the whole suite forbids it (`conftest.py`). Fits use `optax.sgd`, because
`optax.adam` itself does not allow strict promotion.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import random_ising

import probjax as pj
from probjax import annealing, exact, fitting, ising, natural, objectives, samplers

pytestmark = [
    pytest.mark.platforms,
    pytest.mark.filterwarnings("ignore::probjax.fitting.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::probjax.fitting.UnboundedWarning"),
]

SETTINGS = {
    "x64": partial(jax.enable_x64, True),
    "debug_nans": partial(jax.debug_nans, True),
    "strict promotion": partial(jax.numpy_dtype_promotion, "strict"),
    "disable_jit": jax.disable_jit,
}
RNG = np.random.default_rng(0)
BITS = RNG.binomial(1, 0.4, (12, 3)).astype(np.float32)
REALS = RNG.normal(size=(6, 2)).astype(np.float32)
MASK = RNG.random(BITS.shape) < 0.9
OBJECTIVE = pj.MPF(ising.energy)
SCORES = natural.energy_scores(ising.energy)
SHORT = dict(steps_per_round=3)
HMC = pj.HMC(0.2)


def bowl(scale, x):
    return scale * jnp.sum(x**2)


def joint(scale, x, a):
    return scale * jnp.sum((x - a) ** 2) + jnp.sum(a**2) / 2


def start():
    return random_ising(0, 3)


def fit(objective, data=BITS, **options):
    return pj.fit(jax.random.key(0), objective, start(), data, **(SHORT | options))


def uncertainty(key):
    found = fit(OBJECTIVE, penalty=pj.L2(0.1))
    return pj.uncertainty(OBJECTIVE, found, BITS, penalty=pj.L2(0.1))


def ais(key, **options):
    options = dict(sampler=pj.HeatBath(), num_particles=12, num_steps=4) | options
    return pj.ais(key, ising.energy, start(), pj.Bernoulli(3), **options)


def likelihoods(key):
    options = dict(sampler=pj.HeatBath(), num_steps=4, pilot=None)
    base = pj.Bernoulli(3)
    bracket = pj.sandwich(key, ising.energy, start(), base, BITS, **options)
    both = [
        pj.log_likelihood(ising.energy, start(), BITS, annealed)
        for annealed in (bracket, bracket.forward)
    ]
    return bracket, both, annealing.compare(*both)


def em(key):
    objective = pj.EM(joint, base=pj.Gaussian(2), sampler=HMC)
    options = dict(num_rounds=2, steps_per_round=1, optimizer=optax.sgd(0.01))
    return pj.fit(key, objective, jnp.ones(()), REALS, **options)


def marginal(key):
    options = dict(sampler=HMC, num_particles=4, num_steps=3)
    base = pj.Gaussian(2)
    return pj.marginal_log_likelihood(key, joint, 1.0, base, REALS[:2], **options)


DRIVERS = {
    "fit": lambda key: fit(OBJECTIVE, penalty=pj.L2(0.1)),
    "fit with L1": lambda key: fit(OBJECTIVE, penalty=pj.L1(0.01)),
    "fit with a chart": lambda key: fit(OBJECTIVE, chart=ising.centred(BITS)),
    "fit of likelihood": lambda key: fit(pj.MaximumLikelihood(ising.energy)),
    "fit with optax": lambda key: fit(OBJECTIVE, optimizer=optax.sgd(0.01)),
    "fit of batches": lambda key: fit(
        OBJECTIVE, optimizer=optax.sgd(0.01), batch_size=4, num_rounds=2
    ),
    "fit of masked data": lambda key: fit(
        pj.PseudoLikelihood(ising.energy), pj.Data(BITS, mask=MASK), num_rounds=2
    ),
    "fit of particles": lambda key: fit(
        pj.PersistentDivergence(ising.energy, pj.HeatBath(), 4),
        optimizer=optax.sgd(0.01),
    ),
    "fit of persistent MPF": lambda key: fit(
        pj.PersistentMPF(ising.energy, sampler=pj.HeatBath()), num_rounds=2
    ),
    "fit by natural gradient": lambda key: fit(
        OBJECTIVE,
        optimizer=optax.chain(natural.natural_gradient(SCORES), optax.scale(-0.1)),
    ),
    "loss": lambda key: pj.loss(key, OBJECTIVE, start(), BITS),
    "uncertainty": uncertainty,
    "fit_path": lambda key: fitting.fit_path(
        key, OBJECTIVE, start(), BITS, penalty=pj.L1(1.0), num_strengths=2, **SHORT
    ),
    "cross_validate": lambda key: fitting.cross_validate(
        key, OBJECTIVE, start(), BITS, penalty=pj.L2(1.0), strengths=[0.1], num_folds=2
    ),
    "fit_nodes": lambda key: fitting.fit_nodes(
        key, objectives.LogRISE, ising.energy, start(), BITS, **SHORT
    ),
    "fit_whitened": lambda key: natural.fit_whitened(
        key, OBJECTIVE, start(), BITS, SCORES, penalty=pj.L2(0.1), **SHORT
    ),
    "sample by heat bath": lambda key: pj.sample(
        key, ising.energy, start(), BITS, sampler=pj.HeatBath(), num_draws=2
    ),
    "sample by HMC": lambda key: pj.sample(
        key, bowl, 1.0, REALS, sampler=HMC, num_draws=2
    ),
    "sample by tempering": lambda key: pj.sample(
        key,
        ising.energy,
        start(),
        BITS,
        sampler=samplers.Tempered(pj.HeatBath(), (1.0, 0.5)),
        num_draws=2,
    ),
    "sample_mean": lambda key: pj.sample_mean(
        key,
        ising.energy,
        start(),
        BITS,
        sampler=pj.HeatBath(),
        statistic=jnp.asarray,
        num_draws=2,
    ),
    "tune": lambda key: samplers.tune(
        key, bowl, 1.0, REALS, sampler=HMC, num_steps=320
    ),
    "ais": ais,
    "ais without a pilot": partial(ais, pilot=None),
    "ais with resampling": partial(
        ais, pilot=None, resample_below=0.9, num_particles=20
    ),
    "ais by HMC": lambda key: pj.ais(
        key, bowl, 1.0, pj.Gaussian(2), sampler=HMC, num_particles=12, num_steps=4
    ),
    "likelihoods": likelihoods,
    "marginal_log_likelihood": marginal,
    "fit by EM": em,
    "goodness": lambda key: pj.goodness.third_moments(BITS, np.stack([BITS, BITS])),
    "exact": lambda key: (
        exact.log_z(ising.energy, start(), 3),
        exact.sample(key, ising.energy, start(), 3, num_draws=4),
    ),
    "mean_field": lambda key: ising.mean_field(BITS),
}
# Programs of thousands of steps, of which each operation would run by itself.
TOO_LONG_WITHOUT_JIT = {
    "tune",
    "ais",
    "ais by HMC",
    "cross_validate",
    "marginal_log_likelihood",
    "fit by EM",
}


@cache
def numbers(name):
    """Results of a driver without any setting."""
    return on_host(DRIVERS[name](jax.random.key(0)))


def on_host(found):
    leaves = jax.tree.leaves(found)
    return [np.asarray(leaf) for leaf in leaves if not is_key(leaf)]


def is_key(leaf):
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", DRIVERS)
def test_a_setting_changes_no_number(name, setting):
    if setting == "disable_jit" and name in TOO_LONG_WITHOUT_JIT:
        pytest.skip("too long without jit")
    with SETTINGS[setting]():
        found = on_host(DRIVERS[name](jax.random.key(0)))
    assert found
    if setting == "x64":  # random numbers depend on the dtype
        return
    for mine, expected in zip(found, numbers(name), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-3, atol=1e-3)
