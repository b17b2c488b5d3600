"""A constant added to an energy changes log Z by as much, and nothing else.

The constant is a parameter, so that one program serves all its values. It is so large
that an exponential of an energy, with nothing subtracted, is 0 or infinite.
"""

import chex
import jax
import numpy as np
import optax
import pytest
from small_models import (
    cubic_energy,
    cubic_params,
    drawn_from,
    flat_ising,
    plain_energy,
    random_ising,
)

from probjax import (
    HMC,
    MPF,
    Bernoulli,
    ContrastiveDivergence,
    Gaussian,
    HeatBath,
    LookAheadHMC,
    MaximumLikelihood,
    Metropolis,
    NoiseContrast,
    PersistentDivergence,
    PersistentMPF,
    PseudoLikelihood,
    ScoreMatching,
    ais,
    exact,
    fit,
    log_likelihood,
    loss,
    marginal_log_likelihood,
    sample,
    sample_mean,
    samplers,
    sandwich,
    uncertainty,
)
from probjax.annealing import reverse_ais
from probjax.connectivity import BitFlips, RandomFlips, pairs
from probjax.objectives import (
    ContinuousPseudoLikelihood,
    MinimumKLContraction,
    RatioMatching,
)
from probjax.trees import as_array

pytestmark = pytest.mark.usefixtures("x64")

KEY = jax.random.key(4)
SIZE = 4
ROWS = drawn_from(1, random_ising(0, SIZE, scale=0.4), 100).astype(float)
CONSTANTS = (1000.0, -1000.0)
# Energies near 1000 are rounded by 1e-13; sums of many of them by somewhat more.
CLOSE = dict(rtol=1e-8, atol=1e-8)


def raised(params, x):
    params, constant = params
    return plain_energy(params, x) + constant


def raised_cubic(params, x):
    params, constant = params
    return cubic_energy(params, x) + (x @ x) ** 2 + constant


def bits(constant):
    return random_ising(0, SIZE), as_array(constant)


def reals(constant):
    return cubic_params(0, SIZE), as_array(constant)


def value(objective, params=bits, rows=ROWS):
    """A loss and its gradient."""

    def call(constant):
        def of_params(params):
            return loss(KEY, objective, params, rows)

        return (), jax.jit(jax.value_and_grad(of_params))(params(constant))

    return call


def fitted(objective):
    """The constant has no gradient, so that it stays, and no finite error."""

    def call(constant):
        start = flat_ising(SIZE), as_array(constant)
        found = fit(KEY, objective, start, ROWS)
        np.testing.assert_allclose(found.params[1], constant, atol=1e-9)
        error = uncertainty(objective, found, ROWS).stderr
        assert error[1] == np.inf
        return (), (found.params[0], found.loss, error[0])

    return call


def descended(objective):
    options = dict(optimizer=optax.sgd(0.1), num_rounds=3, steps_per_round=1)

    def call(constant):
        params = fit(KEY, objective, bits(constant), ROWS, **options).params
        return (), params[0]

    return call


def contrasted(constant):
    """Its log Z is a parameter."""
    objective = NoiseContrast(raised, Bernoulli(SIZE))
    start = objective.start(bits(constant))
    return (), loss(KEY, objective, start._replace(log_z=3.0 - constant), ROWS)


def chains(sampler, energy=raised, params=bits):
    options = dict(sampler=sampler, num_draws=20)

    def call(constant):
        return (), sample(KEY, energy, params(constant), ROWS[:10], **options).x

    return call


def means(constant):
    options = dict(sampler=HeatBath(), num_draws=20, statistic=np.sum)
    found = sample_mean(KEY, raised, bits(constant), ROWS[:10], **options)
    return (), (found.mean, found.stderr)


ANNEAL = dict(sampler=HeatBath(), num_steps=20)


def annealed(constant):
    base = Bernoulli(SIZE)
    found = ais(KEY, raised, bits(constant), base, num_particles=30, **ANNEAL)
    rest = found.x, found.stderr, found.ess, found.bound_stderr, found.schedule
    return (found.log_z, found.bound, found.log_weights + base.log_z), rest


def resampled(constant):
    options = dict(sampler=HMC(0.3), num_steps=20, resample_below=0.9)
    base = Gaussian(SIZE)
    found = ais(KEY, raised_cubic, reals(constant), base, num_particles=40, **options)
    return found.log_z, (found.x, found.stderr, found.ess)


def reversed_run(constant):
    options = ANNEAL | dict(pilot=None)
    found = reverse_ais(KEY, raised, bits(constant), Bernoulli(SIZE), ROWS, **options)
    return (found.log_z, found.bound), (found.x, found.stderr, found.ess)


def bracket(constant):
    """With the likelihood of the rows, which has the constant twice."""
    args = raised, bits(constant)
    found = sandwich(KEY, *args, Bernoulli(SIZE), ROWS, **ANNEAL)
    rest = found.stderr, log_likelihood(*args, ROWS, found)
    return (found.log_z, found.lower, found.upper), rest


def enumerated(constant):
    args = raised, bits(constant)
    rest = (
        exact.log_probs(*args, SIZE),
        exact.moments(*args, SIZE),
        exact.expectation(raised, np.sum, args[1], SIZE),
        exact.log_likelihood(*args, ROWS),
        exact.sample(KEY, *args, SIZE, num_draws=20),
        exact.dynamics.flow_matrix(*args, BitFlips(), SIZE),
    )
    return exact.log_z(*args, SIZE), rest


def joint(constant, x, a):
    return constant + (x[0] - a[0]) ** 4 + a @ a / 2


def marginal(constant):
    options = dict(sampler=HMC(0.5), num_particles=5, num_steps=5)
    args = KEY, joint, as_array(constant), Gaussian(2), ROWS
    found = marginal_log_likelihood(*args, **options)
    return (found.value, found.per_row), (found.stderr, found.row_stderr, found.ess)


# By name: the numbers that fall by the constant, and those that stay.
CALLS = {
    "enumeration": enumerated,
    "ais": annealed,
    "reverse ais": reversed_run,
    "sandwich": bracket,
    "resampling": resampled,
    "marginal likelihood": marginal,
    "heat bath": chains(HeatBath()),
    "Metropolis": chains(Metropolis(RandomFlips(1), num_moves=4)),
    "tempering": chains(samplers.Tempered(HeatBath(), 0.5 ** np.arange(3))),
    "HMC": chains(HMC(0.3, num_steps=3), raised_cubic, reals),
    "look ahead": chains(LookAheadHMC(0.3, num_steps=3), raised_cubic, reals),
    "means": means,
    "fit of the flow": fitted(MPF(raised)),
    "fit of pseudolikelihood": fitted(PseudoLikelihood(raised)),
    "likelihood": value(MaximumLikelihood(raised)),
    "ratio matching": value(RatioMatching(raised)),
    "contraction": value(MinimumKLContraction(raised, blocks=pairs(SIZE))),
    "score matching": value(ScoreMatching(raised_cubic), reals, ROWS - 0.3),
    "densities": value(
        ContinuousPseudoLikelihood(raised_cubic, lower=-3.0, upper=3.0),
        reals,
        ROWS - 0.3,
    ),
    "divergence": descended(ContrastiveDivergence(raised, HeatBath())),
    "persistent divergence": descended(
        PersistentDivergence(raised, HeatBath(), num_particles=20)
    ),
    "persistent flow": descended(
        PersistentMPF(raised, sampler=HeatBath(), num_particles=20)
    ),
    "noise contrast": contrasted,
}
# They take long to compile.
LONG = {"resampling", "marginal likelihood", "look ahead"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.statistics] * (n in LONG)) for n in CALLS],
)
def test_a_constant_changes_log_z_only(name):
    log_z, rest = CALLS[name](0.0)
    for constant in CONSTANTS:
        found_log_z, found = CALLS[name](constant)
        lowered = jax.tree.map(lambda leaf, c=constant: leaf - c, log_z)
        chex.assert_trees_all_close(found_log_z, lowered, **CLOSE)
        chex.assert_trees_all_close(found, rest, **CLOSE)
