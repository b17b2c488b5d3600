"""Legacy keys, which are arrays of two words, give the numbers of typed keys."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import drawn_from, random_ising

from probjax import (
    EM,
    HMC,
    L2,
    MPF,
    Bernoulli,
    Data,
    DenoisingScoreMatching,
    Gaussian,
    HeatBath,
    LookAheadHMC,
    NoiseContrast,
    PersistentMPF,
    PseudoLikelihood,
    ais_until,
    bases,
    cross_validate,
    exact,
    fit,
    hopfield,
    ising,
    linear,
    loss,
    potts,
    rbm,
    sample,
    samplers,
    sandwich,
)
from probjax.connectivity import GaussianSteps, RandomFlips
from probjax.data import FixedFlips, GreyLevels, IndependentFlips
from probjax.fitting import fit_nodes
from probjax.objectives import (
    Corrupted,
    HutchinsonScoreMatching,
    NodeLikelihood,
    SlicedScoreMatching,
    flow,
)

SIZE = 4
EDGES = ((0, 1), (1, 2), (2, 3), (0, 3))
PARAMS = random_ising(0, SIZE, scale=0.5)
ON_EDGES = random_ising(0, SIZE, scale=0.5, edges=EDGES)
ROWS = drawn_from(1, PARAMS, 60)
REALS = np.random.default_rng(0).normal(size=(60, SIZE)).astype(np.float32)
OBSERVED = np.random.default_rng(0).uniform(size=ROWS.shape) < 0.8
MACHINE = rbm.init(jax.random.key(0), SIZE, 3)
ROUNDS = dict(optimizer=optax.sgd(0.1), num_rounds=2, steps_per_round=2)
ANNEAL = dict(sampler=HeatBath(), num_steps=5)
DICTIONARY = linear.init(jax.random.key(1), SIZE, 2, noise=0.5)


def bowl(scale, x):
    return scale * jnp.sum(x**2) / 2


def chains(sampler, energy=ising.energy, params=PARAMS, x=ROWS[:5]):
    options = dict(sampler=sampler, num_draws=3, num_warmup=2)
    return lambda key: sample(key, energy, params, x, **options).x


def descended(objective, params=PARAMS, data=ROWS, **options):
    return lambda key: fit(key, objective, params, data, **(ROUNDS | options)).params


def contrasted(key):
    objective = NoiseContrast(ising.energy, Bernoulli(SIZE))
    return loss(key, objective, objective.start(PARAMS), ROWS)


def continuous(objective):
    return lambda key: loss(key, objective, 1.0, REALS)


def annealed_until(key):
    options = dict(sampler=HeatBath(), num_particles=20, num_steps=5, stderr=0.5)
    return ais_until(key, ising.energy, PARAMS, Bernoulli(SIZE), **options).log_z


def bracket(key):
    found = sandwich(key, ising.energy, PARAMS, Bernoulli(SIZE), ROWS, **ANNEAL)
    return found.lower, found.upper


def folds(key):
    options = dict(penalty=L2(1.0), strengths=[0.1], num_folds=2)
    objective = PseudoLikelihood(ising.energy)
    return cross_validate(key, objective, PARAMS, ROWS, **options).scores


def missing_nodes(key):
    data = Data(ROWS, mask=OBSERVED)
    options = dict(penalty=L2(0.01), num_rounds=2)
    return fit_nodes(key, NodeLikelihood, ising.energy, PARAMS, data, **options).params


CALLS = {
    "ising": lambda key: ising.init(key, SIZE),
    "potts": lambda key: potts.init(key, SIZE, 3),
    "rbm": lambda key: rbm.init(key, SIZE, 3),
    "bases": lambda key: (
        Bernoulli(SIZE).sample(key),
        Gaussian(SIZE).sample(key),
        bases.Laplace(SIZE).sample(key),
        bases.Categorical(SIZE, 3).sample(key),
    ),
    "corruption": lambda key: (
        FixedFlips(1)(key, ROWS),
        IndependentFlips(0.1)(key, ROWS),
        GreyLevels()(key, ROWS / 2),
    ),
    "exact draws": lambda key: exact.sample(
        key, ising.energy, PARAMS, SIZE, num_draws=5
    ),
    "heat bath": chains(HeatBath()),
    "colours": chains(
        samplers.ColourGibbs(samplers.colours(EDGES, SIZE)), params=ON_EDGES
    ),
    "clusters": chains(ising.SwendsenWang()),
    "block Gibbs": chains(rbm.BlockGibbs(), rbm.energy, MACHINE),
    "tempering": chains(samplers.Tempered(HeatBath(), 0.5 ** np.arange(3))),
    "HMC": chains(HMC(0.3), bowl, 1.0, REALS[:5]),
    "look ahead": chains(LookAheadHMC(0.3, num_steps=2), bowl, 1.0, REALS[:5]),
    "ais until": annealed_until,
    "sandwich": bracket,
    "flow": lambda key: flow(
        key, ising.energy, PARAMS, ROWS, connectivity=RandomFlips(2)
    ),
    "noise contrast": contrasted,
    "Gaussian steps": continuous(MPF(bowl, connectivity=GaussianSteps(0.5))),
    "denoising": continuous(DenoisingScoreMatching(bowl, scale=0.3)),
    "Hutchinson": continuous(HutchinsonScoreMatching(bowl)),
    "slices": continuous(SlicedScoreMatching(bowl)),
    "batches": descended(MPF(ising.energy), batch_size=20),
    "missing entries": descended(
        PseudoLikelihood(ising.energy), data=Data(ROWS, mask=OBSERVED)
    ),
    "corrupted rows": descended(
        Corrupted(PseudoLikelihood(ising.energy), FixedFlips(1))
    ),
    "persistent flow": descended(
        PersistentMPF(ising.energy, sampler=HeatBath(), num_particles=10)
    ),
    "EM": descended(
        EM(linear.gaussian, base=Gaussian(2), sampler=HMC(0.3)), DICTIONARY, REALS
    ),
    "folds": folds,
    "missing entries of nodes": missing_nodes,
    "memories": lambda key: hopfield.recovery(
        key, hopfield.from_ising(PARAMS), ROWS[:3], [1]
    ),
}


# One of each kind of driver; the others compile two long programs each.
QUICK = {"ising", "potts", "rbm", "bases", "corruption", "exact draws", "heat bath"}
QUICK |= {
    "Gaussian steps",
    "Hutchinson",
    "slices",
    "flow",
    "noise contrast",
    "denoising",
    "batches",
    "memories",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.statistics] * (name not in QUICK))
        for name in CALLS
    ],
)
def test_legacy_keys_give_the_numbers_of_typed_keys(name):
    typed, legacy = (
        CALLS[name](key) for key in (jax.random.key(3), jax.random.PRNGKey(3))
    )
    chex.assert_trees_all_equal(legacy, typed)
