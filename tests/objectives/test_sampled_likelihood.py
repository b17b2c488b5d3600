"""Maximum likelihood by sampling, against exact maximum likelihood."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import (
    all_states,
    drawn_from,
    flat_ising,
    flat_of,
    log_probs_of,
    matrix_of,
    plain_energy,
    random_ising,
)

from probjax import (
    HMC,
    L1,
    L2,
    Checkpoint,
    HeatBath,
    MaximumLikelihood,
    Sampler,
    Watch,
    exact,
    fit,
    ising,
    potts,
    rbm,
    recipe,
)
from probjax.data import blocks
from probjax.data.rows import unique_rows
from probjax.fitting import uncertainty
from probjax.fitting.result import ConvergenceWarning
from probjax.fitting.stochastic import FIRST_STAGE
from probjax.forwarding import ForwardingSampler
from probjax.potential import potential
from probjax.samplers import ColourGibbs, Tempered
from probjax.samplers.gibbs import GibbsState, colours
from probjax.trees import as_array
from probjax.types import Info

SIZE, ROWS = 5, 4000
PENALTY = L2(1e-4)
SAMPLED = MaximumLikelihood(ising.energy, sampler=HeatBath())
EXACT = MaximumLikelihood(ising.energy)


def rows():
    return drawn_from(0, random_ising(3, SIZE, scale=0.6), ROWS)


def standard_errors(params, others, x):
    """Distance between two Ising models as a root mean square of standard errors."""
    difference = matrix_of(params) - matrix_of(others)
    energies = np.sum(x @ difference * x, axis=1)
    return np.sqrt(len(x) * energies.var() / (SIZE * (SIZE + 1) / 2))


@pytest.fixture(scope="module")
def best():
    return fit(jax.random.key(0), EXACT, flat_ising(SIZE), rows(), penalty=PENALTY)


@pytest.fixture(scope="module")
def found():
    args = SAMPLED, flat_ising(SIZE), rows()
    return fit(jax.random.key(1), *args, penalty=PENALTY)


def test_the_fit_ends_near_the_exact_maximum_and_reports_how_near(found, best):
    assert found.converged
    assert found.distance < 0.3
    assert standard_errors(found.params, best.params, rows()) < 0.3


def test_the_moments_are_those_of_the_data(found):
    chances, states, x = np.exp(log_probs_of(found.params)), all_states(SIZE), rows()
    moments = np.einsum("s,si,sj->ij", chances, states, states)
    error = np.sqrt(moments * (1 - moments) / ROWS)
    assert np.sqrt(np.mean(((moments - x.T @ x / ROWS) / error) ** 2)) < 0.3


def test_weights_are_counts_and_blocks_are_rows(best):
    data, start = unique_rows(rows()), flat_ising(SIZE)
    of_counts = fit(jax.random.key(2), SAMPLED, start, data, penalty=PENALTY)
    stored = blocks.from_array(rows(), rows_per_block=1500)
    of_blocks = fit(jax.random.key(2), SAMPLED, start, stored, penalty=PENALTY)
    for other in (of_counts, of_blocks):
        assert other.converged
        assert standard_errors(other.params, best.params, rows()) < 0.3


def test_a_fit_from_a_bad_start_comes_to_the_same_maximum(best):
    far = ising.Params(as_array(np.full(SIZE, -4.0)), best.params.coupling + 1)
    other = fit(jax.random.key(3), SAMPLED, far, rows(), penalty=PENALTY)
    assert other.converged
    assert standard_errors(other.params, best.params, rows()) < 0.3


def test_a_fit_that_was_stopped_continues_from_its_checkpoint(found, tmp_path):
    def run(callback=None):
        watch = Watch(callback, every=100, checkpoint=Checkpoint(tmp_path / "a.npz"))
        args = SAMPLED, flat_ising(SIZE), rows()
        return fit(jax.random.key(1), *args, penalty=PENALTY, watch=watch)

    stopped = run(lambda progress: progress.step >= 200)
    assert len(stopped.losses) == 200
    assert not stopped.converged
    again = run()
    np.testing.assert_array_equal(flat_of(again.params), flat_of(found.params))


def test_steps_that_run_out_are_reported_with_the_distance_that_is_left(best):
    args = jax.random.key(1), SAMPLED, flat_ising(SIZE), rows()
    message = r"after 20 steps the parameters are .* standard errors from .*num_chains"
    with pytest.warns(ConvergenceWarning, match=message):
        short = fit(*args, penalty=PENALTY, steps_per_round=20)
    assert len(short.losses) == 20
    distance = standard_errors(short.params, best.params, rows())
    assert distance > 1
    assert 0.7 * distance < short.distance < 1.5 * distance


@recipe
class Still(Sampler):
    """Sampler that never moves."""

    def init(self, key, potential, x):
        return GibbsState(x)

    def step(self, key, potential, state):
        return state, Info(as_array(1.0))


def test_chains_that_do_not_move_do_not_converge():
    objective = MaximumLikelihood(ising.energy, sampler=Still())
    args = jax.random.key(1), objective, flat_ising(SIZE), rows()
    with pytest.warns(ConvergenceWarning, match="hardly moved .* mixes faster"):
        still = fit(*args, steps_per_round=FIRST_STAGE)
    assert not still.converged
    assert np.isinf(still.distance)


@recipe
class Lazy(ForwardingSampler):
    """Sampler that moves in few of its steps."""

    sampler: Sampler
    chance: float

    def step(self, key, potential, state):
        move_key, chance_key = jax.random.split(key)
        moved, info = self.sampler.step(move_key, potential, state)
        moves = jax.random.uniform(chance_key) < self.chance
        return jax.tree.map(lambda a, b: jnp.where(moves, a, b), moved, state), info


@pytest.mark.statistics
@pytest.mark.filterwarnings("ignore:fit has not converged")
def test_slow_chains_get_holds_that_are_long_enough(best):
    objective = MaximumLikelihood(ising.energy, sampler=Lazy(HeatBath(), 0.01))
    args = jax.random.key(1), objective, flat_ising(SIZE), rows()
    slow = fit(*args, penalty=PENALTY)
    distance = standard_errors(slow.params, best.params, rows())
    assert distance < 2
    assert slow.distance < 2


def test_error_bars_are_those_of_the_exact_likelihood(found, best):
    sampled = flat_of(uncertainty(SAMPLED, found, rows()).stderr)
    exactly = flat_of(uncertainty(EXACT, best, rows()).stderr)
    np.testing.assert_allclose(sampled, exactly, rtol=0.1)


def test_letters_and_an_optimizer():
    params = jax.jit(lambda key: potts.init(key, 4, 3, scale=0.8))(jax.random.key(0))
    x = np.asarray(
        exact.sample(
            jax.random.key(1), potts.energy, params, 4, num_draws=2000, num_states=3
        )
    )
    flat = jax.tree.map(lambda leaf: as_array(np.zeros(leaf.shape)), params)
    objective = MaximumLikelihood(potts.energy, sampler=HeatBath(3))
    args = jax.random.key(2), objective, flat, x
    found = fit(*args, penalty=PENALTY)
    assert found.converged
    options = {"optimizer": optax.adam(optax.linear_schedule(0.1, 0.0, 1000))}
    other = fit(*args, penalty=PENALTY, **options, steps_per_round=1000)
    best = fit(
        jax.random.key(3),
        MaximumLikelihood(potts.energy, num_states=3),
        *args[2:],
        penalty=PENALTY,
    )
    energies = jax.jit(jax.vmap(potts.energy, (None, 0)))
    for fitted in (found, other):
        difference = energies(fitted.params, x) - energies(best.params, x)
        assert 2000 * np.var(difference) < 0.3**2 * 66


def test_a_machine_learns_by_minibatches(key):
    """Its energy is not linear in the parameters."""
    x = drawn_from(1, random_ising(4, 6, scale=1.2), 1000)
    start = jax.jit(lambda key: rbm.init(key, 6, 2))(key)
    objective = MaximumLikelihood(rbm.energy, sampler=rbm.BlockGibbs())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        args = {"batch_size": 200, "steps_per_round": 1500}
        found = fit(key, objective, start, x, **args).params
        best = fit(key, MaximumLikelihood(rbm.energy, rbm.log_z), start, x).params
    score = jax.jit(
        lambda params: (
            jax.vmap(rbm.energy, (None, 0))(params, x).mean() + rbm.log_z(params)
        )
    )
    assert score(found) < score(best) + 0.25 * (score(start) - score(best))


def gaussian(precision, x):
    return x @ (precision + precision.T) @ x / 4


def test_a_user_s_own_energy_of_reals_learns_by_hamiltonian_chains(key):
    generator = np.random.default_rng(0)
    factor = np.tril(generator.normal(size=(3, 3))) + 2 * np.eye(3)
    x = generator.normal(size=(2000, 3)) @ np.linalg.inv(factor)
    objective = MaximumLikelihood(gaussian, sampler=HMC(0.2, num_steps=4))
    found = fit(key, objective, as_array(np.eye(3, dtype=np.float32)), x)
    assert found.converged
    precision = np.linalg.inv(x.T @ x / len(x))
    estimate = np.asarray(found.params + found.params.T) / 2
    error = np.outer(precision.diagonal(), precision.diagonal()) + precision**2
    z = (estimate - precision) / np.sqrt(error / len(x))
    assert np.sqrt(np.mean(z**2)) < 0.5


@pytest.mark.parametrize(
    ("sampler", "energy"),
    [
        (HeatBath(), ising.energy),
        (HeatBath(), plain_energy),
        (ColourGibbs(colours([(0, 1), (2, 3)], 4)), ising.energy),
    ],
    ids=["closed forms", "plain", "colours"],
)
def test_the_gradient_of_the_mean_gap_vanishes_over_the_model(sampler, energy, x64):
    params = jax.tree.map(lambda leaf: as_array(leaf, float), random_ising(0, 4))

    def gap(params, x):
        return sampler.mean_gap(potential(energy, params), x)

    slopes = jax.jit(jax.vmap(jax.grad(gap), (None, 0)))(params, all_states(4) * 1.0)
    chances = np.exp(log_probs_of(params))
    for slope in jax.tree.leaves(slopes):
        assert np.abs(chances @ np.asarray(slope)).max() < 1e-12
        assert np.abs(slope).max() > 1e-3


def test_the_gradient_uses_the_conditional_probabilities_of_all_sites():
    """The mean of p_i for biases; a share of p_i x_j and x_i p_j for couplings."""
    params, x = random_ising(0, 4), drawn_from(1, random_ising(0, 4), 4000)
    data = SAMPLED.prepare(params, unique_rows(x))
    objective = MaximumLikelihood(ising.energy, sampler=HeatBath(), num_chains=400)
    context = jax.jit(objective.init)(jax.random.key(0), params, data)
    states = np.asarray(context.shared.particles.x)
    share = context.shared.share
    slope = jax.jit(jax.grad(objective.rest))(params, context.shared)
    matrix = matrix_of(params)
    field = np.diag(matrix) + 2 * (states @ (matrix - np.diag(np.diag(matrix))))
    on = 1 / (1 + np.exp(field))
    first, second = np.triu_indices(4, 1)
    change = on - states
    bias = (states + np.asarray(share.bias) * change).mean(0)
    moved = change[:, first] * states[:, second] + states[:, first] * change[:, second]
    pairs = states[:, first] * states[:, second]
    coupling = 2 * (pairs + np.asarray(share.coupling) * moved).mean(0)
    np.testing.assert_allclose(-slope.bias, bias, rtol=1e-4)
    np.testing.assert_allclose(-slope.coupling, coupling, rtol=1e-4)
    spread = (pairs + np.asarray(share.coupling) * moved).var(0) / pairs.var(0)
    assert spread.max() < 0.7


def test_bad_arguments_are_refused(key):
    with pytest.raises(ValueError, match="multiple of 20, got 50; try 60"):
        MaximumLikelihood(ising.energy, sampler=HeatBath(), num_chains=50)
    with pytest.raises(ValueError, match="log_z and sampler exclude each other"):
        MaximumLikelihood(rbm.energy, rbm.log_z, sampler=HeatBath())
    with pytest.raises(ValueError, match="penalty must be smooth .* sampling"):
        fit(key, SAMPLED, flat_ising(2), all_states(2) * 1.0, penalty=L1(0.1))
    tempered = Tempered(HeatBath(), np.array([1.0, 0.5]))
    objective = MaximumLikelihood(ising.energy, sampler=tempered)
    with pytest.raises(ValueError, match="sampler must be resumable"):
        fit(key, objective, flat_ising(2), all_states(2) * 1.0)
