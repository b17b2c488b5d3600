"""What every recipe must do, whatever it is for."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import random_ising

from probjax import (
    EM,
    L1,
    L2,
    MPF,
    AllFlips,
    BallSteps,
    BitFlips,
    BlockChanges,
    Blocks,
    Checkpoint,
    ContinuousPseudoLikelihood,
    ContrastiveDivergence,
    Corrupted,
    CubeSteps,
    Data,
    FixedFlips,
    GaussianSteps,
    GreyLevels,
    GroupL1,
    Hamiltonian,
    IndependentFlips,
    Joined,
    Listed,
    MaximumLikelihood,
    MinimumKLContraction,
    MinimumVelocity,
    NodeLikelihood,
    NoiseContrast,
    PersistentDivergence,
    PersistentMPF,
    Proposal,
    PseudoLikelihood,
    RandomFlips,
    RatioMatching,
    ScoreMatching,
    ScoreMatchingBySteps,
    SiteChanges,
    SlicedScoreMatching,
    Sparse,
    annealing,
    charts,
    ising,
    potential,
    samplers,
)
from probjax.connectivity.flips import OneFlip


def joint(params, x, a):
    return ising.energy(params, a) + jnp.sum((x - a) ** 2) / 2


def rotations(x):
    return jnp.stack([jnp.roll(x, 1), jnp.roll(x, -1)])


def propose(key, args, x):
    return x + args * jax.random.normal(key, x.shape, x.dtype)


def log_density(args, x_new, x):
    return -jnp.sum((x_new - x) ** 2) / (2 * args**2)


def log_odds(params, x):
    return params.bias[:3] * x[1:]


SOME = BitFlips(), SiteChanges(2), GaussianSteps(0.5, num_draws=3)
CONNECTIVITIES = [
    *SOME,
    AllFlips(),
    BitFlips(radius=2),
    RandomFlips(2),
    OneFlip(2),
    BlockChanges(((0, 2), (1,), (3, 1, 2))),
    BlockChanges(((0, 1), (0, 2), (2, 3))),
    Hamiltonian(0.2, num_draws=3),
    CubeSteps(0.3),
    BallSteps(0.3),
    Listed(rotations),
    Proposal(propose, log_density, 0.7, num_draws=2),
    Joined(SOME),
]
OBJECTIVES = [
    *(MPF(ising.energy, connectivity=each) for each in (*SOME, Joined(SOME))),
    MPF(ising.energy, exclude_data=True),
    MPF(ising.energy, connectivity=RandomFlips(3), exclude_data=True),
    PseudoLikelihood(ising.energy),
    RatioMatching(ising.energy),
    MaximumLikelihood(ising.energy),
    ContrastiveDivergence(ising.energy, samplers.HeatBath()),
    PersistentDivergence(ising.energy, samplers.Metropolis(RandomFlips(1)), 5),
    PersistentMPF(ising.energy, sampler=samplers.HeatBath()),
    NodeLikelihood(ising.energy, 2),
    MinimumKLContraction(ising.energy, blocks=((0, 1), (2, 3))),
    Corrupted(MPF(ising.energy), FixedFlips(1)),
    Corrupted(PseudoLikelihood(ising.energy), IndependentFlips(0.3)),
    Corrupted(MPF(ising.energy), GreyLevels()),
    NoiseContrast(ising.energy, annealing.Bernoulli(4, 0.3), num_noise=2),
    Sparse(MPF(ising.energy), log_odds, target=0.2, strength=0.1),
    Sparse(
        ContrastiveDivergence(ising.energy, samplers.HeatBath()),
        log_odds,
        target=jnp.array([0.1, 0.2, 0.3]),
        strength=1,
    ),
]
CONTINUOUS = [
    ScoreMatching(ising.energy),
    SlicedScoreMatching(ising.energy),
    ScoreMatchingBySteps(ising.energy, GaussianSteps(0.1)),
    MinimumVelocity(ising.energy, jnp.array([1.0, 2, 0.5, 1])),
    ContinuousPseudoLikelihood(ising.energy, lower=-5.0, upper=5.0, num_points=4),
    PersistentMPF(ising.energy, sampler=samplers.HMC(0.1), num_particles=5),
    EM(joint, base=annealing.Gaussian(4), sampler=samplers.HMC(0.1), num_chains=2),
]
BASES = [
    annealing.Bernoulli(4),
    annealing.Gaussian(4, 0.5, jnp.ones(4)),
    annealing.Laplace(4, scale=2.0),
    annealing.StudentT(4, 3.0),
    annealing.Exponential(4, 0.5),
    annealing.Categorical(4, 3, jnp.arange(3.0)),
]
WAYS = [annealing.Geometric(), annealing.Straight(random_ising(0, 4))]
WAYS.append(annealing.Pilot(target=0.8))
SPARED = ising.couplings_only(random_ising(0, 4))
PENALTIES = [L1(1), L2(0.5), GroupL1(2), L1(1.0, weights=SPARED)]
FREE = ising.Params(True, jnp.array([True, False, True, True, False, True]))
CHARTS = [
    ising.centred(jnp.array([[0, 1, 1, 1], [0, 1, 0, 0]])),
    charts.Frozen(random_ising(1, 4), FREE),
    charts.Positive(ising.Params(jnp.array([False, True, False, False]), False)),
    charts.Affine(0.5, ising.Params(2.0, -jnp.arange(1.0, 7.0))),
]
SAMPLERS = [
    samplers.HeatBath(),
    samplers.HeatBath(3, samplers.random_sites),
    samplers.ColourGibbs(jnp.eye(4)),
    samplers.Metropolis(BitFlips(), num_moves=3),
    samplers.SwendsenWang(),
    samplers.Wolff(),
    samplers.Tempered(samplers.HeatBath(), jnp.array([1.0, 0.5, 0.2])),
]
DYNAMICS = [
    samplers.HMC(0.1, flip=samplers.reduced_flip, metric=jnp.ones(4)),
    samplers.HMC(0.1, bounds=samplers.Bounds(-9.0, 9.0), jitter=samplers.Jitter(0.2)),
    samplers.LookAheadHMC(0.1, momentum=samplers.Momentum(0.3, every=2)),
]
CHARTS.append(charts.Composed((CHARTS[1], CHARTS[0])))
RECIPES = [*CONNECTIVITIES, *OBJECTIVES, *CONTINUOUS, *PENALTIES, *CHARTS, *SAMPLERS]
RECIPES += [*BASES, *WAYS, *DYNAMICS]
RECIPES += [random_ising(0, 4), Blocks(list), Checkpoint("fit.npz", every=10)]


def name(recipe):
    return type(recipe).__name__


def another(leaf):
    return not leaf if isinstance(leaf, bool) else 0.5 * leaf + 0.2


@pytest.mark.parametrize("recipe", RECIPES, ids=name)
def test_recipe_is_a_pytree_that_equals_itself_rebuilt(recipe):
    leaves, form = jax.tree.flatten(recipe)
    rebuilt = jax.tree.unflatten(form, leaves)
    assert rebuilt == recipe
    if leaves:
        assert jax.tree.map(another, recipe) != recipe
    passed = jax.jit(lambda r: r)(recipe)
    assert jax.tree.structure(passed) == form


@jax.jit
def compared(connectivity, key, model, x):
    moves = connectivity.draw(key, model, x)
    near = connectivity.states(x, moves)
    generic = model(x) - jax.vmap(model)(near.x) + near.log_ratio
    return near, connectivity.gaps(model, x, moves), generic


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("connectivity", CONNECTIVITIES, ids=name)
def test_connectivity_keeps_its_contract(connectivity, dtype, x64, key):
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), random_ising(0, 4))
    model = potential(ising.energy, params)
    x = connectivity.prepare(jnp.array([[0, 1, 1, 0]], dtype))[0]
    neighbours, gaps, generic = compared(connectivity, key, model, x)
    gaps = jax.tree.map(jnp.ravel, gaps)
    count = len(gaps.gap)
    chex.assert_shape([neighbours.x], (count, 4))
    chex.assert_shape([neighbours.log_ratio, neighbours.weight, *gaps], (count,))
    assert {leaf.dtype for leaf in jax.tree.leaves((neighbours, gaps))} == {
        jnp.dtype(dtype)
    }
    chex.assert_trees_all_close(gaps.gap, generic, rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(gaps.weight, neighbours.weight)


def _bits(key, shape):
    return jax.random.bernoulli(key, 0.5, shape)


@jax.jit
def evaluated(objective, key, params, data):
    context = objective.init(key, params, data)
    again = objective.refresh(key, params, data, context)
    rows = jax.vmap(objective.row, (None, 0, 0))(params, data.x, again.rows)
    return context, again, rows


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("objective", [*OBJECTIVES, *CONTINUOUS], ids=name)
def test_objective_keeps_its_contract(objective, dtype, x64, key):
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), random_ising(0, 4))
    if isinstance(objective, NoiseContrast):
        params = objective.start(params)
    draw = jax.random.normal if objective in CONTINUOUS else _bits
    data = Data(draw(key, (7, 4)).astype(dtype))
    data = objective.prepare(params, data)
    context, again, rows = evaluated(objective, key, params, data)
    chex.assert_trees_all_equal_shapes_and_dtypes(context, again)
    for leaf in jax.tree.leaves(context.rows):
        assert len(leaf) == 7
    chex.assert_shape(rows, (7,))
    assert rows.dtype == dtype
    weights = jnp.arange(1.0, 8.0, dtype=dtype)
    whole = objective.reduce(rows, weights)
    parts = jnp.stack(
        [
            objective.reduce(rows[:3], weights[:3]),
            objective.reduce(rows[3:], weights[3:]),
        ]
    )
    sums = jnp.stack([weights[:3].sum(), weights[3:].sum()])
    chex.assert_trees_all_close(
        objective.reduce(parts, sums), whole, rtol=1e-5, atol=1e-6
    )
    chex.assert_shape(objective.rest(params, context.shared), ())


@pytest.mark.parametrize("sampler", [*SAMPLERS, *DYNAMICS], ids=name)
def test_sampler_keeps_its_contract(sampler, key):
    """The state keeps its form, exposes x, and stays in its space."""
    model = potential(ising.energy, random_ising(0, 4))
    rows = jnp.array([[0, 1, 1, 0], [1, 1, 0, 0]])
    x = sampler.prepare(model, rows.astype(float) if sampler in DYNAMICS else rows)
    start = jax.vmap(lambda x: sampler.init(key, model, x))(x)
    chex.assert_trees_all_equal(start.x, x)
    step = jax.jit(jax.vmap(sampler.step, (0, None, 0)))
    state, info = step(jax.random.split(key), model, start)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, start)
    chex.assert_shape(info.accept, (2,))
    assert jnp.all((info.accept >= 0) & (info.accept <= 1))
    if sampler not in DYNAMICS:
        assert set(np.unique(state.x)) <= {0, 1, 2}


@pytest.mark.parametrize("penalty", PENALTIES, ids=name)
def test_prox_minimises_its_definition(penalty, key):
    params = random_ising(1, 4, scale=2.0)
    near = penalty.prox(params, 0.3)

    def definition(point):
        pairs = zip(jax.tree.leaves(point), jax.tree.leaves(params), strict=True)
        return sum(jnp.sum((p - q) ** 2) for p, q in pairs) / 2 + 0.3 * penalty.value(
            point
        )

    lowest = definition(near)
    for seed in range(50):
        keys = jax.random.split(jax.random.key(seed), 2)
        nudge = ising.Params(
            0.01 * jax.random.normal(keys[0], (4,)),
            0.01 * jax.random.normal(keys[1], (6,)),
        )
        assert definition(jax.tree.map(jnp.add, near, nudge)) > lowest


@pytest.mark.parametrize("penalty", [L1, L2, GroupL1])
def test_negative_strengths_are_refused(penalty):
    with pytest.raises(ValueError, match="strength must not be negative, got -1.0"):
        penalty(-1)
    with pytest.raises(ValueError, match="strength must not be negative"):
        penalty(jnp.array(jnp.nan))
    with pytest.raises(ValueError, match="weights must not be negative"):
        penalty(1.0, weights=ising.Params(0.0, -jnp.ones(6)))


@pytest.mark.parametrize("chart", CHARTS, ids=name)
def test_chart_goes_there_and_back(chart):
    params = random_ising(1, 4)
    back = chart.inverse(chart.forward(params))
    chex.assert_trees_all_close(back, params, rtol=1e-5, atol=1e-6)
