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
    Checkpoint,
    ContrastiveDivergence,
    Data,
    GroupL1,
    MaximumLikelihood,
    NoiseContrast,
    PersistentDivergence,
    PersistentMPF,
    PseudoLikelihood,
    ScoreMatching,
    annealing,
    bases,
    ising,
    samplers,
)
from probjax.connectivity import (
    AllFlips,
    BallSteps,
    BitFlips,
    BlockChanges,
    CubeSteps,
    GaussianSteps,
    Hamiltonian,
    Joined,
    Listed,
    Proposal,
    RandomFlips,
    SiteChanges,
)
from probjax.connectivity.flips import OneFlip
from probjax.data import Blocks, FixedFlips, GreyLevels, IndependentFlips
from probjax.fitting import charts
from probjax.objectives import (
    ContinuousPseudoLikelihood,
    Corrupted,
    MinimumKLContraction,
    MinimumVelocity,
    NodeLikelihood,
    RatioMatching,
    ScoreMatchingBySteps,
    SlicedScoreMatching,
    Sparse,
)
from probjax.potential import potential
from probjax.random import split_array
from probjax.trees import as_array


def joint(params, x, a):
    return ising.energy(params, a) + 9 * jnp.sum((x - a) ** 2)


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
    PersistentMPF(ising.energy, sampler=samplers.DiscreteLangevin(0.5)),
    PersistentDivergence(ising.energy, samplers.GibbsWithGradients(), 5),
    NodeLikelihood(ising.energy, 2),
    MinimumKLContraction(ising.energy, blocks=((0, 1), (2, 3))),
    Corrupted(MPF(ising.energy), FixedFlips(1)),
    Corrupted(PseudoLikelihood(ising.energy), IndependentFlips(0.3)),
    Corrupted(MPF(ising.energy), GreyLevels()),
    NoiseContrast(ising.energy, bases.Bernoulli(4, 0.3), num_noise=2),
    Sparse(MPF(ising.energy), log_odds, target=0.2, strength=0.1),
    Sparse(
        ContrastiveDivergence(ising.energy, samplers.HeatBath()),
        log_odds,
        target=as_array([0.1, 0.2, 0.3]),
        strength=1,
    ),
]
CONTINUOUS = [
    ScoreMatching(ising.energy),
    SlicedScoreMatching(ising.energy),
    ScoreMatchingBySteps(ising.energy, GaussianSteps(0.1)),
    MinimumVelocity(ising.energy, as_array([1.0, 2, 0.5, 1])),
    ContinuousPseudoLikelihood(ising.energy, lower=-5.0, upper=5.0, num_points=4),
    PersistentMPF(ising.energy, sampler=samplers.HMC(0.1), num_particles=5),
    EM(joint, base=bases.Gaussian(4), sampler=samplers.HMC(0.1), num_chains=2),
]
BASES = [
    bases.Bernoulli(4),
    bases.Gaussian(4, 0.5, as_array(np.ones(4))),
    bases.Laplace(4, scale=2.0),
    bases.StudentT(4, 3.0),
    bases.Exponential(4, 0.5),
    bases.Categorical(4, 3, as_array(np.arange(3.0))),
]
WAYS = [annealing.Geometric(), annealing.Straight(random_ising(0, 4))]
WAYS.append(annealing.Pilot(target=0.8))
SPARED = ising.Params(as_array(np.zeros(4)), as_array(np.ones(6)))
PENALTIES = [L1(1), L2(0.5), GroupL1(2), L1(1.0, weights=SPARED)]
FREE = ising.Params(True, as_array([True, False, True, True, False, True]))
CHARTS = [
    ising.centred(as_array([[0, 1, 1, 1], [0, 1, 0, 0]])),
    charts.Frozen(random_ising(1, 4), FREE),
    charts.Positive(ising.Params(as_array([False, True, False, False]), False)),
    charts.Affine(0.5, ising.Params(2.0, as_array(-np.arange(1.0, 7.0)))),
]
SAMPLERS = [
    samplers.HeatBath(),
    samplers.HeatBath(3, samplers.random_sites),
    samplers.ColourGibbs(as_array(np.eye(4))),
    samplers.Metropolis(BitFlips(), num_moves=3),
    samplers.GibbsWithGradients(3, num_moves=2, balance=samplers.barker),
    samplers.GibbsWithGradients(),
    samplers.DiscreteLangevin(0.3, metric=as_array([0.1, 1.0, 2.0, 1.0])),
    samplers.DiscreteLangevin(0.3, num_states=3, balance=samplers.square_root),
    ising.SwendsenWang(),
    ising.Wolff(),
    samplers.Tempered(samplers.HeatBath(), as_array([1.0, 0.5, 0.2])),
]
DYNAMICS = [
    samplers.HMC(0.1, flip=samplers.reduced_flip, metric=as_array(np.ones(4))),
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
    if isinstance(leaf, bool):
        return not leaf
    made = 0.5 * np.asarray(leaf) + 0.2
    return as_array(made) if isinstance(leaf, jax.Array) else float(made)


@pytest.mark.parametrize("recipe", RECIPES, ids=name)
def test_recipe_is_a_pytree_that_equals_itself_rebuilt(recipe):
    leaves, form = jax.tree.flatten(recipe)
    rebuilt = jax.tree.unflatten(form, leaves)
    assert rebuilt == recipe
    if leaves:
        assert jax.tree.map(another, recipe) != recipe
    # As programs are given it, and give it back.
    forms = []
    jax.eval_shape(lambda traced: forms.append(jax.tree.structure(traced)), recipe)
    assert forms == [jax.tree.structure(jax.tree.map(as_array, recipe))] == [form]


@jax.jit
def compared(connectivity, key, model, x):
    moves = connectivity.draw(key, model, x)
    near = connectivity.states(x, moves)
    generic = model(x) - jax.vmap(model)(near.x) + near.log_ratio
    return near, connectivity.gaps(model, x, moves), generic


def kinds(tree):
    return {leaf.dtype for leaf in jax.tree.leaves(tree)}


@pytest.mark.parametrize("connectivity", CONNECTIVITIES, ids=name)
def test_connectivity_keeps_its_contract(connectivity, x64, key):
    """Where 64 bits are allowed: in 32 by its numbers, in 64 by its kinds alone."""

    def given(dtype):
        params = jax.tree.map(lambda leaf: as_array(leaf, dtype), random_ising(0, 4))
        x = np.asarray(connectivity.prepare(as_array([[0, 1, 1, 0]], dtype)))[0]
        return connectivity, key, potential(ising.energy, params), as_array(x)

    neighbours, gaps, generic = compared(*given(np.float32))
    gaps = jax.tree.map(np.ravel, gaps)
    count = len(gaps.gap)
    chex.assert_shape([neighbours.x], (count, 4))
    chex.assert_shape([neighbours.log_ratio, neighbours.weight, *gaps], (count,))
    assert kinds((neighbours, gaps)) == {np.dtype(np.float32)}
    chex.assert_trees_all_close(gaps.gap, generic, rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(gaps.weight, neighbours.weight)
    wide = jax.eval_shape(compared, *given(np.float64))
    assert kinds(wide) == {np.dtype(np.float64)}


@jax.jit
def evaluated(objective, key, params, data):
    context = objective.init(key, params, data)
    again = objective.refresh(key, params, data, context)
    rows = jax.vmap(objective.row, (None, 0, 0))(params, data.x, again.rows)
    weights = jnp.arange(1.0, 8.0, dtype=rows.dtype)
    whole = objective.reduce(rows, weights)
    parts = jnp.stack(
        [
            objective.reduce(rows[:3], weights[:3]),
            objective.reduce(rows[3:], weights[3:]),
        ]
    )
    sums = jnp.stack([weights[:3].sum(), weights[3:].sum()])
    rest = objective.rest(params, context.shared)
    return context, again, rows, (whole, objective.reduce(parts, sums)), rest


@pytest.mark.parametrize("objective", [*OBJECTIVES, *CONTINUOUS], ids=name)
def test_objective_keeps_its_contract(objective, x64, key):
    """Where 64 bits are allowed: in 32 by its numbers, in 64 by its kinds alone."""
    generator = np.random.default_rng(0)
    reals, bits = generator.normal(size=(7, 4)), generator.binomial(1, 0.5, (7, 4))

    def given(dtype):
        params = jax.tree.map(lambda leaf: as_array(leaf, dtype), random_ising(0, 4))
        if isinstance(objective, NoiseContrast):
            params = objective.start(params)
        data = Data(as_array(reals if objective in CONTINUOUS else bits, dtype))
        return objective, key, params, objective.prepare(params, data)

    context, again, rows, (whole, joined), rest = evaluated(*given(np.float32))
    chex.assert_trees_all_equal_shapes_and_dtypes(context, again)
    for leaf in jax.tree.leaves(context.rows):
        assert len(leaf) == 7
    chex.assert_shape(rows, (7,))
    assert rows.dtype == np.float32
    np.testing.assert_allclose(joined, whole, rtol=1e-5, atol=1e-6)
    chex.assert_shape(rest, ())
    context, again, rows, *_ = jax.eval_shape(evaluated, *given(np.float64))
    chex.assert_trees_all_equal_shapes_and_dtypes(context, again)
    assert rows.dtype == np.float64


@pytest.mark.parametrize("sampler", [*SAMPLERS, *DYNAMICS], ids=name)
def test_sampler_keeps_its_contract(sampler, key):
    """The state keeps its form, exposes x, and stays in its space."""
    model = potential(ising.energy, random_ising(0, 4))
    rows = np.array([[0, 1, 1, 0], [1, 1, 0, 0]])
    x = sampler.prepare(model, as_array(rows, float if sampler in DYNAMICS else int))

    @jax.jit
    def begun_and_moved(keys, x):
        start = jax.vmap(lambda x: sampler.init(key, model, x))(x)
        return start, jax.vmap(sampler.step, (0, None, 0))(keys, model, start)

    start, (state, info) = begun_and_moved(split_array(key, 2), x)
    chex.assert_trees_all_equal(start.x, x)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, start)
    chex.assert_shape(info.accept, (2,))
    accept = np.asarray(info.accept)
    assert np.all((accept >= 0) & (accept <= 1))
    if sampler not in DYNAMICS:
        assert set(np.unique(state.x)) <= {0, 1, 2}


@pytest.mark.parametrize("penalty", PENALTIES, ids=name)
def test_prox_minimises_its_definition(penalty):
    params = random_ising(1, 4, scale=2.0)

    def definition(point):
        pairs = zip(jax.tree.leaves(point), jax.tree.leaves(params), strict=True)
        return sum(jnp.sum((p - q) ** 2) for p, q in pairs) / 2 + 0.3 * penalty.value(
            point
        )

    @jax.jit
    def lowest_and_nearby(nudges):
        near = penalty.prox(params, 0.3)
        nearby = jax.vmap(lambda nudge: definition(jax.tree.map(jnp.add, near, nudge)))
        return definition(near), nearby(nudges)

    generator = np.random.default_rng(0)
    nudges = [0.01 * generator.normal(size=(50, size)) for size in (4, 6)]
    lowest, nearby = lowest_and_nearby(ising.Params(*nudges))
    assert np.all(np.asarray(nearby) > np.asarray(lowest))


@pytest.mark.parametrize("penalty", [L1, L2, GroupL1])
def test_negative_strengths_are_refused(penalty):
    with pytest.raises(
        ValueError, match="strength must be 0 or above and finite, got -1.0"
    ):
        penalty(-1)
    with pytest.raises(ValueError, match="strength must be 0 or above and finite"):
        penalty(as_array(np.nan))
    with pytest.raises(ValueError, match="weights must be 0 or above and finite"):
        penalty(1.0, weights=ising.Params(0.0, as_array(-np.ones(6))))


@pytest.mark.parametrize("chart", CHARTS, ids=name)
def test_chart_goes_there_and_back(chart):
    params = random_ising(1, 4)
    back = jax.jit(lambda params: chart.inverse(chart.forward(params)))(params)
    chex.assert_trees_all_close(back, params, rtol=1e-5, atol=1e-6)
