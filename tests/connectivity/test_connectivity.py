import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import cubic_energy, cubic_params, random_ising

from probjax import closed_form, ising
from probjax.connectivity import (
    AllFlips,
    BallSteps,
    BitFlips,
    CubeSteps,
    GaussianSteps,
    Joined,
    Listed,
    Proposal,
    RandomFlips,
    SiteChanges,
)
from probjax.interfaces import Connectivity
from probjax.potential import potential
from probjax.random import split_array
from probjax.states import binary

X = np.array([0.0, 1.0, 1.0], np.float32)
MODEL = potential(cubic_energy, cubic_params(0, 3))
KEY = jax.random.key(0)


def near(connectivity, x=X, key=KEY):
    """Neighbours as arrays of NumPy, by one program."""
    return run(
        lambda key, x: connectivity.states(x, drawn(connectivity, key, x)), key, x
    )


def drawn(connectivity, key, x):
    return connectivity.draw(key, MODEL, x)


def run(function, *args):
    return jax.tree.map(np.asarray, jax.jit(function)(*args))


def gaps_and_generic(connectivity, model, x):
    """By closed forms, where there are any, and by energies alone."""

    def both(key, model, x):
        moves = connectivity.draw(key, model, x)
        generic = Connectivity.gaps(connectivity, model, x, moves)
        return connectivity.gaps(model, x, moves).gap, generic.gap

    return run(both, KEY, model, x)


def test_bit_flips_are_the_states_one_bit_away():
    found = near(BitFlips())
    np.testing.assert_array_equal(found.x, [[1, 1, 1], [0, 0, 1], [0, 1, 0]])


def test_all_flips_is_the_opposite_state():
    np.testing.assert_array_equal(near(AllFlips()).x, [[1, 0, 0]])


def test_union_lists_the_neighbours_of_all_members(key):
    joined = Joined((AllFlips(), BitFlips()))
    found = near(joined, key=key)
    np.testing.assert_array_equal(found.x, [[1, 0, 0], [1, 1, 1], [0, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(found.weight, np.ones(4))


def test_sampled_members_of_a_union_keep_their_own_weights(key):
    joined = Joined((AllFlips(), GaussianSteps(1.0, num_draws=4)))
    found = run(lambda key: joined.gaps(MODEL, X, drawn(joined, key, X)), key)
    np.testing.assert_allclose(found.weight, [1, 0.25, 0.25, 0.25, 0.25])


def test_members_of_a_union_draw_independently(key):
    joined = Joined((GaussianSteps(1.0), GaussianSteps(1.0)))
    first, second = run(lambda key: drawn(joined, key, X), key)
    assert not np.any(first == second)


def test_flips_within_a_radius_are_all_states_that_near():
    for radius in (2, 3):
        found = near(BitFlips(radius=radius)).x.tolist()
        expected = [
            list(map(float, state))
            for state in itertools.product((0, 1), repeat=3)
            if 0 < np.abs(np.array(state) - X).sum() <= radius
        ]
        assert sorted(found) == sorted(expected)
        assert np.all(np.diff(np.abs(np.array(found) - X).sum(1)) >= 0)


@pytest.mark.parametrize("radius", [2, 3])
def test_gaps_of_several_flips_equal_the_generic_path(radius):
    """Closed forms of single flips make those of pairs."""
    flips, x = BitFlips(radius=radius), np.array([0.0, 1, 1, 0], np.float32)
    model = potential(ising.energy, random_ising(0, 4))
    np.testing.assert_allclose(*gaps_and_generic(flips, model, x), atol=1e-5)


@pytest.mark.parametrize(("num_draws", "num_bits"), [(3, 1), (2, 2), (5, 3)])
def test_random_flips_visit_every_set_of_bits_alike(num_draws, num_bits, key):
    flips, x = RandomFlips(num_draws, num_bits), np.array([0.0, 1, 1, 0, 1, 1])
    of_all = jax.vmap(lambda key: flips.states(x, flips.draw(key, None, x)))
    found = run(of_all, split_array(key, 6000))
    np.testing.assert_allclose(found.weight, 1 / num_draws)
    turned = np.abs(found.x - x)
    assert set(turned.sum(-1).ravel()) == {num_bits}
    codes = turned @ 2.0 ** np.arange(6)
    _, counts = np.unique(codes, return_counts=True)
    expected = codes.size / len(list(itertools.combinations(range(6), num_bits)))
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)
    if num_bits * num_draws <= 6:
        assert turned.sum(1).max() == 1


def test_random_flips_ask_a_closed_form_where_there_is_one():
    x = np.array([0.0, 1, 1, 0], np.float32)
    model = potential(ising.energy, random_ising(0, 4))
    np.testing.assert_allclose(*gaps_and_generic(RandomFlips(2), model, x), atol=1e-5)


def test_site_changes_are_all_other_letters_site_by_site():
    found = near(SiteChanges(3), np.array([0.0, 2.0], np.float32))
    others = found.x[found.weight == 1]
    np.testing.assert_array_equal(others, [[1, 2], [2, 2], [0, 0], [0, 1]])
    own = found.x[found.weight == 0]
    np.testing.assert_array_equal(own, [[0, 2], [0, 2]])


def test_site_changes_of_two_letters_are_bit_flips():
    sites, flips = run(
        lambda x: [each.gaps(MODEL, x, ()) for each in (SiteChanges(2), BitFlips())], X
    )
    np.testing.assert_allclose(sites.gap[sites.weight == 1], flips.gap, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "size"), [(GaussianSteps, 0.3), (CubeSteps, 0.3), (BallSteps, 0.3)]
)
def test_steps_have_the_shape_and_moment_asked_for(make, size, key):
    count = 20_000
    steps = make(size, num_draws=count)
    found = near(steps, key=key).x - X
    np.testing.assert_allclose(found[::2], -found[1::2], atol=1e-6)
    squares = found[::2] ** 2
    error = squares.std(0) / np.sqrt(count / 2)
    moment = run(steps.moment, X)
    assert np.all(np.abs(squares.mean(0) - moment) < 5 * error)
    order, limit = {CubeSteps: (np.inf, 0.15), BallSteps: (2, 0.3)}.get(make, (2, 2))
    furthest = np.linalg.norm(found, order, axis=1).max()
    assert 0.5 * limit < furthest <= limit + 1e-6


def test_an_odd_number_of_steps_is_drawn_too(key):
    steps = GaussianSteps(1.0, num_draws=3)
    assert run(lambda key: drawn(steps, key, X), key).shape == (3, 3)


def rotations(x):
    return jnp.stack([jnp.roll(x, 1), jnp.roll(x, -1)])


def one_way(x):
    return jnp.roll(x, 1)[None]


def not_as_often(x):
    """Twice one way, once the other."""
    return jnp.stack([jnp.roll(x, 1), jnp.roll(x, 1), jnp.roll(x, -1)])


def no_axis(x):
    return 1 - x


def test_a_function_may_list_the_neighbours():
    rows = np.array([[0.0, 1, 2], [3, 3, 4]], np.float32)
    rotate = Listed(rotations)
    prepared = np.asarray(rotate.prepare(rows))
    found = run(lambda x: rotate.gaps(MODEL, x, ()), prepared[0])
    turned = np.stack([np.roll(rows[0], 1), np.roll(rows[0], -1)])
    energies = run(jax.vmap(MODEL), np.stack([rows[0], *turned]))
    np.testing.assert_allclose(found.gap, energies[0] - energies[1:], rtol=1e-6)
    for wrong in (one_way, not_as_often):
        with pytest.raises(ValueError, match="neighbours must be mutual"):
            Listed(wrong).prepare(rows)
    with pytest.raises(ValueError, match=r"like those.*axis, got shape \(3,\)"):
        Listed(no_axis).prepare(rows)


def propose_near(key, spread, x):
    return x + jnp.exp(spread * x) * jax.random.normal(key, x.shape)


def log_density_near(spread, x_new, x):
    """Up to the constant of a normal."""
    return jnp.sum(-(((x_new - x) * jnp.exp(-spread * x)) ** 2) / 2 - spread * x)


def test_a_proposal_carries_the_ratio_of_its_densities(key):
    proposal = Proposal(propose_near, log_density_near, 0.4, num_draws=5)

    def found_and_expected(key, x):
        moves = proposal.draw(key, MODEL, x)
        near, gaps = proposal.states(x, moves), proposal.gaps(MODEL, x, moves)
        back = jax.vmap(lambda move: log_density_near(0.4, x, move))(moves)
        there = jax.vmap(lambda move: log_density_near(0.4, move, x))(moves)
        generic = MODEL(x) - jax.vmap(MODEL)(moves) + near.log_ratio
        return near, gaps, back - there, generic

    near, gaps, ratio, generic = run(found_and_expected, key, X)
    np.testing.assert_allclose(near.log_ratio, ratio, rtol=1e-5)
    np.testing.assert_allclose(near.weight, 0.2)
    np.testing.assert_allclose(gaps.gap, generic, rtol=1e-5)


def propose_upwards(key, args, x):
    return x + jax.random.exponential(key, x.shape)


def log_density_upwards(args, x_new, x):
    return jnp.sum(jnp.where(x_new >= x, x - x_new, -jnp.inf))


def propose_number(key, args, x):
    return x[0]


def propose_upwards_density(args, x_new, x):
    return x - x_new


def log_density_nowhere(args, x_new, x):
    return jnp.full((), -jnp.inf)


def test_a_proposal_without_a_way_back_is_refused():
    with pytest.raises(ValueError, match="a proposal must be reversible"):
        Proposal(propose_upwards, log_density_upwards).prepare(np.ones((3, 2)))
    with pytest.raises(ValueError, match="must be finite for every x_new"):
        Proposal(propose_upwards, log_density_nowhere).prepare(np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"log_density must return a scalar"):
        Proposal(propose_upwards, propose_upwards_density).prepare(np.ones((3, 2)))
    with pytest.raises(ValueError, match="propose's draws must be states like"):
        Proposal(propose_number, log_density_near, 0.4).prepare(np.ones((3, 2)))


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float64])
def test_bits_of_any_kind_become_floats(kind):
    rows = np.array([[0, 1], [1, 1]], kind)
    found = binary(rows)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, rows)


def test_other_values_are_refused():
    with pytest.raises(ValueError, match=r"0 or 1, got spins.*ising\.bits"):
        binary(np.array([[-1, 1]]))
    with pytest.raises(ValueError, match="0 or 1, got other whole.* SiteChanges"):
        BitFlips().prepare(np.array([[0, 2]]))
    with pytest.raises(ValueError, match="for continuous states try ScoreMatching"):
        BitFlips().prepare(np.array([[0.5, 2]]))
    with pytest.raises(ValueError, match="steps must be positive, got 0.0"):
        GaussianSteps(0)
    with pytest.raises(ValueError, match="num_draws must be an integer of at least 1"):
        GaussianSteps(1.0, num_draws=0)
    with pytest.raises(ValueError, match="radius must not exceed the 2 bits"):
        BitFlips(radius=3).prepare(np.array([[0, 1]]))
    with pytest.raises(ValueError, match="radius must be .* of at least 1, got 0"):
        BitFlips(radius=0)
    with pytest.raises(ValueError, match="num_draws must not exceed the 3 ways"):
        RandomFlips(4).prepare(np.array([[0, 1, 1]]))
    with pytest.raises(ValueError, match="num_bits must not exceed the 3 bits"):
        RandomFlips(1, 4).prepare(np.array([[0, 1, 1]]))


def test_letters_may_be_booleans():
    found = SiteChanges(2).prepare(np.array([[True, False]]))
    np.testing.assert_array_equal(found, [[1.0, 0.0]])


def test_letters_out_of_range_are_refused():
    site = SiteChanges(3)
    for wrong in (-1, 3):
        with pytest.raises(ValueError, match=f"letters must be 0 to 2 .*got {wrong}"):
            site.prepare(np.array([[0, wrong]]))
    with pytest.raises(ValueError, match="whole numbers"):
        site.prepare(np.array([[0.5, 1]]))
    with pytest.raises(ValueError, match=r"look one-hot.*potts\.letters"):
        site.prepare(np.eye(3)[[[0, 1], [2, 2]]])
    with pytest.raises(ValueError, match="num_states must be .* of at least 2, got 1"):
        SiteChanges(1)
    with pytest.raises(ValueError, match="2 sites with 3 letters, got"):
        SiteChanges(3).gaps(potential(too_few, None), np.zeros(2), ())


def no_gaps(params, x):
    return jnp.zeros((2, 2))


@closed_form(site_gaps=no_gaps)
def too_few(params, x):
    return 0.0 * x[0]


def test_a_union_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one Connectivity"):
        Joined(())


def test_traced_values_are_not_looked_at():
    assert jax.jit(lambda rows: binary(rows))(np.array([[3.0]])) == 3
