import itertools
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import (
    all_states,
    cubic_energy,
    cubic_params,
    matrix_of,
    plain_energy,
    random_ising,
)

from probjax import MPF, Data, PseudoLikelihood, exact, ising
from probjax.connectivity import (
    AllFlips,
    BitFlips,
    GaussianSteps,
    Joined,
    Listed,
    Proposal,
    RandomFlips,
    SiteChanges,
)
from probjax.objectives import flow
from probjax.objectives.reduce import log_mean_exp, log_sum_exp
from probjax.potential import potential
from probjax.trees import as_array, weighted_mean
from probjax.types import Context

SIZE = 5
MODELS = [
    (ising.energy, random_ising(0, SIZE)),
    (plain_energy, random_ising(1, SIZE, edges=[(0, 1), (1, 4)])),
    (cubic_energy, cubic_params(0, SIZE)),
]
BOTH = Joined((BitFlips(), AllFlips()))


def rotations(x):
    return jnp.stack([jnp.roll(x, 1), jnp.roll(x, -1), x[::-1]])


MANY = Joined((Listed(rotations), SiteChanges(2)))


def loss(objective, params, data, key=None):
    key = jax.random.key(0) if key is None else key
    data = objective.prepare(params, data)
    context = objective.init(key, params, data)
    rows = jax.vmap(objective.row, (None, 0, 0))(params, data.x, context.rows)
    return objective.reduce(rows, data.weights)


def population(energy, params):
    """Every state, weighted by its probability: infinite data from the model."""
    x = all_states(SIZE).astype(float)
    return Data(x, jax.nn.softmax(-jax.vmap(energy, (None, 0))(params, x)))


def doubled(params):
    return jax.tree.map(lambda leaf: as_array(np.asarray(leaf, float)), params)


def largest(tree):
    return max(np.abs(leaf).max() for leaf in jax.tree.leaves(tree))


@partial(jax.jit, static_argnums=1)
def slope_on_its_population(objective, energy, params, elsewhere):
    data = jax.lax.stop_gradient(population(energy, params))
    return jax.grad(loss, argnums=1)(objective, elsewhere, data)


@pytest.mark.parametrize("model", MODELS, ids=["ising", "edges", "cubic"])
@pytest.mark.parametrize(
    "objective",
    [
        lambda energy: MPF(energy),
        lambda energy: MPF(energy, connectivity=AllFlips()),
        lambda energy: MPF(energy, connectivity=BOTH),
        lambda energy: MPF(energy, connectivity=BitFlips(radius=2)),
        lambda energy: MPF(energy, connectivity=MANY),
        lambda energy: PseudoLikelihood(energy),
    ],
    ids=["flips", "mirror", "both", "radius 2", "many", "pseudolikelihood"],
)
def test_gradient_vanishes_at_the_true_parameters(objective, model, x64):
    energy, params = model
    params = doubled(params)
    gradient = partial(slope_on_its_population, objective(energy), energy, params)
    assert largest(gradient(params)) < 1e-6
    elsewhere = jax.tree.map(lambda leaf: 1.1 * np.asarray(leaf), params)
    assert largest(gradient(elsewhere)) > 1e-3


def test_gradient_carries_the_half_of_the_exponent(x64):
    energy, params = MODELS[0]
    rows = all_states(SIZE)[::3].astype(float)

    @jax.jit
    def stated(params):
        gaps = jax.vmap(lambda x: ising.flip_gaps(params, x))(rows)
        slopes = jax.vmap(lambda x: jax.jacobian(ising.flip_gaps)(params, x))(rows)
        rate = jnp.exp(gaps / 2) / len(rows)
        return jax.tree.map(lambda s: 0.5 * jnp.tensordot(rate, s, 2), slopes)

    params = doubled(params)
    key = jax.random.key(0)
    found = jax.jit(jax.grad(lambda p: flow(key, energy, p, rows)))(params)
    chex.assert_trees_all_close(found, stated(params), rtol=1e-10)


def test_flow_is_the_thesis_sum_over_rows_and_flips(key):
    """K of the appendix is a sum over rows; ours is their mean."""
    params = random_ising(2, SIZE)
    matrix = matrix_of(params)
    rows = np.random.default_rng(0).binomial(1, 0.4, (20, SIZE)).astype(float)
    single = np.exp((2 * rows - 1) * (rows @ matrix) - np.diag(matrix) / 2).sum()
    found = flow(key, ising.energy, params, rows)
    np.testing.assert_allclose(20 * np.asarray(found), single, rtol=1e-5)

    quadratic = np.einsum("ri,ij,rj->r", rows, matrix, rows)
    mirrored = np.einsum("ri,ij,rj->r", 1 - rows, matrix, 1 - rows)
    both = single + np.exp((quadratic - mirrored) / 2).sum()
    found = flow(key, ising.energy, params, rows, connectivity=BOTH)
    np.testing.assert_allclose(20 * np.asarray(found), both, rtol=1e-5)


def test_flow_is_the_rate_at_which_probability_leaves_the_data(key):
    """With data on one state, K is minus the diagonal of the flow matrix there."""
    params = random_ising(2, SIZE)
    gamma = np.asarray(exact.dynamics.flow_matrix(ising.energy, params, BOTH, SIZE))
    for number in (0, 11, 30):
        x = all_states(SIZE)[number][None]
        found = flow(key, ising.energy, params, x, connectivity=BOTH)
        np.testing.assert_allclose(found, -gamma[number, number], rtol=1e-5)


def test_flow_and_its_logarithm_are_convex_for_linear_energies(x64, key):
    def unravel(flat):
        return ising.Params(flat[:4], flat[4:])

    @jax.jit
    @jax.vmap
    def curvatures(seed):
        keys = jax.random.split(jax.random.key(seed))
        rows = jax.random.bernoulli(keys[0], 0.5, (6, 4)).astype(float)
        point = jax.random.normal(keys[1], (10,))
        both = jax.hessian(lambda p: _both(flow(key, ising.energy, unravel(p), rows)))
        return jnp.linalg.eigvalsh(both(point))

    values = np.asarray(curvatures(np.arange(5)))
    assert values.shape == (5, 2, 10)
    assert np.all(values[..., 0] > -1e-12 * values[..., -1])
    assert np.all(values[..., -1] > 0)


def _both(value):
    return jnp.stack([value, jnp.log(value)])


def test_repeated_rows_equal_weights(key):
    params = random_ising(2, SIZE)
    rows = np.random.default_rng(0).binomial(1, 0.4, (6, SIZE)).astype(float)
    counts = np.array([1, 3, 2, 1, 5, 1])
    repeated = np.repeat(rows, counts, axis=0)
    weighted = Data(rows, counts.astype(float))
    np.testing.assert_allclose(
        flow(key, ising.energy, params, weighted),
        flow(key, ising.energy, params, repeated),
        rtol=1e-5,
    )


def test_log_flow_is_finite_where_the_flow_overflows(key):
    params = random_ising(0, SIZE, scale=400.0)
    data = Data(all_states(SIZE).astype(float), np.ones(2**SIZE))
    assert np.isinf(flow(key, ising.energy, params, data))
    value, gradient = jax.jit(jax.value_and_grad(loss, argnums=1))(
        MPF(ising.energy), params, data
    )
    assert np.isfinite(value)
    assert np.isfinite(largest(gradient))


def test_sampled_neighbours_are_averaged_not_summed(key):
    """A constant energy has flow 1 whatever the number of draws."""

    def constant(params, x):
        return params * 0.0

    for count in (1, 7):
        steps = GaussianSteps(0.3, num_draws=count)
        found = flow(key, constant, as_array(1.0), np.zeros((4, 2)), connectivity=steps)
        np.testing.assert_allclose(found, 1.0, rtol=1e-6)


def chances(x):
    """Of each bit to be flipped: they depend on the state."""
    return jax.nn.softmax(jnp.arange(SIZE) * (x - 0.3) + x[0])


def flip_one(key, args, x):
    bit = jax.random.categorical(key, jnp.log(chances(x)))
    return x.at[bit].set(1 - x[bit])


def right(args, x_new, x):
    return jnp.log(chances(x) @ jnp.abs(x_new - x))


def dropped(args, x_new, x):
    return jnp.zeros(())


def reversed_(args, x_new, x):
    return right(args, x, x_new)


def mean_flow(connectivity, params, moves, shares):
    """K under exact weights, `moves` being all that can be drawn, and their chances."""
    model = potential(ising.energy, params)

    def of_row(x):
        return shares(x) @ jnp.exp(connectivity.gaps(model, x, moves(x)).gap / 2)

    data = population(ising.energy, jax.lax.stop_gradient(params))
    return data.weights @ jax.vmap(of_row)(data.x)


def evenly(count):
    return lambda x: jnp.full(count, 1 / count)


@pytest.mark.parametrize(
    ("density", "vanishes"), [(right, True), (dropped, False), (reversed_, False)]
)
def test_only_the_right_ratio_of_proposals_is_consistent(density, vanishes, x64):
    """Every draw weighted by its chance, which is what drawing does on average."""
    params = doubled(MODELS[0][1])
    proposal = Proposal(flip_one, density, num_draws=SIZE)
    slope = jax.jit(jax.grad(partial(mean_flow, proposal)), static_argnums=(1, 2))
    gradient = slope(params, lambda x: BitFlips().states(x, ()).x, chances)
    assert (largest(gradient) < 1e-6) == vanishes


def test_random_flips_are_consistent_on_average(x64):
    params = doubled(MODELS[0][1])
    pairs = np.array(list(itertools.combinations(range(SIZE), 2)))
    slope = jax.jit(
        jax.grad(partial(mean_flow, RandomFlips(10, 2))), static_argnums=(1, 2)
    )
    assert largest(slope(params, lambda x: pairs, evenly(10))) < 1e-6


def test_proposals_draw_what_they_say(key):
    """The share of draws that flip each bit is its chance."""
    x = as_array(all_states(SIZE)[11].astype(float))
    proposal = Proposal(flip_one, right, num_draws=20_000)
    draws, chance = jax.jit(lambda x: (proposal.draw(key, None, x), chances(x)))(x)
    draws, chance, x = map(np.asarray, (draws, chance, x))
    turned = np.abs(draws - x).mean(0)
    error = np.sqrt(chance * (1 - chance) / 20_000)
    assert np.all(np.abs(turned - chance) < 5 * error)


def test_sampled_flow_has_its_minimum_at_the_truth_of_a_gaussian(key):
    """At the truth, the mean gradient is zero to within its standard error."""
    steps = GaussianSteps(0.5, num_draws=4)
    objective = MPF(gaussian, connectivity=steps)
    truth = np.array([0.7, 0.3])
    normals = np.random.default_rng(0).normal(size=(40_000, 1))
    x = truth[0] + np.exp(-truth[1] / 2) * normals

    @jax.jit
    def z_score(params, x):
        context = objective.refresh(key, truth, Data(x), Context((), ()))

        def rate(params, x, moves):
            return jnp.exp(objective.row(params, x, moves))

        slopes = jax.vmap(jax.grad(rate), (None, 0, 0))(params, x, context.rows)
        return slopes.mean(0) / slopes.std(0) * jnp.sqrt(len(x))

    assert np.abs(z_score(truth, x)).max() < 5
    assert np.abs(z_score(truth + 0.1, x)).min() > 5


def gaussian(params, x):
    return jnp.exp(params[1]) * jnp.sum((x - params[0]) ** 2) / 2


def test_reductions_ignore_what_has_no_weight():
    values = as_array([1.0, 2.0, 1e30])
    weights, none = as_array([1.0, 3.0, 0.0]), as_array(np.zeros(3))
    found = {}
    for reduce in (weighted_mean, log_mean_exp):
        both = jax.jit(jax.value_and_grad(reduce))
        found[reduce] = both(values, weights), both(values, none)
    np.testing.assert_allclose(found[weighted_mean][0][0], 1.75)
    expected = np.log((np.exp(1) + 3 * np.exp(2)) / 4)
    np.testing.assert_allclose(found[log_mean_exp][0][0], expected, rtol=1e-6)
    for (_, slope), (value, gradient) in found.values():
        assert np.isfinite(slope).all()
        assert float(value) == 0
        assert not np.asarray(gradient).any()
    assert float(jax.jit(log_sum_exp)(values, none)) == -np.inf
