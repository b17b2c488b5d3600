"""Free energies and heat capacities at all temperatures, against enumeration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import all_states, random_ising

from probjax import Conditioned, HeatBath, Watch, ising, potts
from probjax.annealing import temperature_curve
from probjax.trees import as_array

TEMPERATURES = np.array([0.4, 0.7, 1.0, 1.5, 3.0])
NAMES = "log_z", "energy", "heat_capacity", "entropy"
SIZE = 6


def enumerated(energies, temperatures):
    """Exact values from the energies of all states, one row for each of `NAMES`."""
    terms = -energies[None] / temperatures[:, None]
    log_z = np.logaddexp.reduce(terms, axis=1)
    chances = np.exp(terms - log_z[:, None])
    mean = chances @ energies
    variance = chances @ energies**2 - mean**2
    entropy = -np.sum(chances * (terms - log_z[:, None]), axis=1)
    return np.stack([log_z, mean, variance / temperatures**2, entropy])


def z_of(curve, energies):
    exact = enumerated(energies, curve.temperatures)
    found = np.stack([getattr(curve, name) for name in NAMES])
    errors = np.stack([getattr(curve, f"{name}_stderr") for name in NAMES])
    return (found - exact) / errors


def energies_of(energy, params, states):
    return np.asarray(jax.jit(jax.vmap(energy, (None, 0)))(params, states), float)


def ising_curve(key, **settings):
    params = random_ising(0, SIZE)
    args = key, ising.energy, params, np.zeros((40, SIZE))
    settings = {"sampler": HeatBath(), "temperatures": TEMPERATURES} | settings
    return temperature_curve(*args, **settings)


@pytest.fixture(scope="module")
def curve():
    return ising_curve(jax.random.key(0))


def test_all_quantities_agree_with_enumeration(curve):
    states = all_states(SIZE).astype("f4")
    z = z_of(curve, energies_of(ising.energy, random_ising(0, SIZE), states))
    assert np.abs(z).max() < 4
    assert (curve.log_z_stderr < 0.05).all()
    assert (curve.heat_capacity_stderr < 0.1 * curve.heat_capacity).all()


def test_the_free_energy_is_energy_less_entropy(curve):
    expected = curve.energy - curve.temperatures * curve.entropy
    np.testing.assert_allclose(curve.free_energy, expected)


def test_the_ladder_ends_at_equal_probabilities_and_swaps_evenly(curve):
    assert curve.betas[0] == 1 / 0.4
    assert curve.betas[-1] == 0
    assert np.ptp(curve.swap_rates) < 0.2
    assert curve.swap_rates.min() > 0.4


def test_quantities_at_one_temperature_are_named(curve):
    found = curve.at(1.0)
    assert tuple(found) == NAMES
    assert found["entropy"].value == curve.entropy[2]
    assert found["entropy"].upper > found["entropy"].lower
    with pytest.raises(ValueError, match="one of the temperatures of this curve"):
        curve.at(1.1)
    assert "largest heat capacity" in curve.describe()


def test_letters_have_curves(key):
    params = jax.jit(lambda key: potts.init(key, 4, 3, scale=1.0))(key)
    x = np.zeros((40, 4))
    settings = {"sampler": HeatBath(3), "num_states": 3}
    curve = temperature_curve(
        key, potts.energy, params, x, temperatures=TEMPERATURES, **settings
    )
    states = all_states(4, 3).astype("f4")
    assert np.abs(z_of(curve, energies_of(potts.energy, params, states))).max() < 4


def test_a_callback_sees_the_draws_and_ends_the_run(key):
    seen = []

    def note(made):
        seen.append(made)
        return made >= 100

    curve = ising_curve(key, watch=Watch(note, every=50))
    assert seen == [50, 100]
    assert np.isfinite(curve.log_z).all()


def test_bad_arguments_are_refused(key):
    with pytest.raises(ValueError, match="temperatures must be finite and above 0"):
        ising_curve(key, temperatures=[1.0, 0.0])
    args = key, ising.energy, random_ising(0, SIZE)
    settings = {"sampler": HeatBath(), "temperatures": [1.0]}
    with pytest.raises(ValueError, match="at an infinite temperature"):
        temperature_curve(*args, np.full((4, SIZE), 0.5), **settings)
    inputs = Conditioned(np.zeros((4, SIZE)), np.zeros((4, 1)))
    with pytest.raises(ValueError, match="each row would have a curve of its own"):
        temperature_curve(*args, inputs, **settings)


@pytest.mark.statistics
def test_errors_are_those_of_repeated_runs():
    states = all_states(SIZE).astype("f4")
    energies = energies_of(ising.energy, random_ising(0, SIZE), states)
    runs = [
        z_of(ising_curve(jax.random.key(seed), num_draws=50), energies)
        for seed in range(300)
    ]
    squares = np.mean(np.square(runs), axis=0)
    # t with 19 degrees of freedom has a variance of 1.12, here known to .1.
    assert (squares > 0.7).all()
    assert (squares < 1.5).all()
    assert np.abs(np.mean(runs, axis=0)).max() < 0.25


@pytest.mark.statistics
def test_a_glass_with_a_barrier_is_crossed(key):
    """Single flips do not connect its two best states at low temperatures."""
    size = 12
    matrix = -np.ones((size, size)) + np.eye(size) * size
    params = ising.from_matrix(as_array(matrix))
    args = key, ising.energy, params, jnp.zeros((40, size))
    curve = temperature_curve(*args, sampler=HeatBath(), temperatures=TEMPERATURES)
    states = all_states(size).astype("f4")
    z = z_of(curve, energies_of(ising.energy, params, states))
    assert np.abs(z).max() < 4.5
