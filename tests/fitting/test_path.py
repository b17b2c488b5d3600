import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import counted_states, flat_ising, random_ising
from test_contract import traces

import probjax.fitting.path
from probjax import L1, L2, MPF, Data, PseudoLikelihood, exact, fit, ising
from probjax.connectivity import BitFlips
from probjax.fitting import GradientNorm
from probjax.fitting.path import fit_path
from probjax.objectives.gaps import GapObjective
from probjax.objectives.penalty import GroupL1
from probjax.objectives.pseudolikelihood import log_conditionals
from probjax.trees import weighted_mean

SIZE = 6
DATA = counted_states(SIZE)
OBJECTIVE = PseudoLikelihood(ising.energy)


def tiny_conditionals(gaps):
    return 1e-4 * log_conditionals(gaps)


TINY = GapObjective(ising.energy, BitFlips(), tiny_conditionals, weighted_mean)


def start():
    return flat_ising(SIZE)


def sparse(strength=1.0):
    return L1(strength, weights=ising.Params(0.0, 1.0))


@pytest.fixture
def steps(monkeypatch):
    """The steps taken by each fit of a path, as they happen."""
    taken = []

    def counted(*args, **options):
        found = fit(*args, **options)
        taken.append(len(found.losses))
        return found

    monkeypatch.setattr(probjax.fitting.path, "fit", counted)
    return taken


def test_every_member_is_the_fit_at_its_strength(steps, x64, key):
    data = DATA
    strengths = np.geomspace(0.3, 0.003, 8)
    path = fit_path(
        key, OBJECTIVE, start(), data, penalty=sparse(7.0), strengths=strengths
    )
    np.testing.assert_array_equal(path.strengths, strengths)
    assert np.asarray(path.converged).all()
    losses, num_nonzero = np.asarray(path.losses), np.asarray(path.num_nonzero)
    cold_steps = 0
    for i, strength in enumerate(strengths):
        options = dict(penalty=sparse(strength), stop=GradientNorm())
        cold = fit(key, OBJECTIVE, start(), data, **options)
        cold_steps += len(cold.losses)
        member = path.at(i)
        chex.assert_trees_all_close(member, cold.params, atol=1e-6)
        zeros = np.asarray(cold.params.coupling) == 0
        np.testing.assert_array_equal(np.asarray(member.coupling) == 0, zeros)
        assert num_nonzero[i] == (~zeros).sum()
        np.testing.assert_allclose(losses[i], cold.loss, rtol=1e-10)
    assert sum(steps) < cold_steps
    # Of any path of minima: losses fall with the strength, and what it weighs rises.
    assert np.all(np.diff(losses) < 0)
    assert np.all(np.diff(np.abs(np.asarray(path.params.coupling)).sum(1)) > 0)
    assert num_nonzero[0] < num_nonzero[-1] == 15


def test_the_first_strength_is_where_all_parameters_just_vanish(key):
    path = fit_path(
        key,
        MPF(ising.energy),
        random_ising(1, SIZE),
        DATA,
        penalty=GroupL1(1.0, weights=ising.Params(0.0, 2.0)),
        num_strengths=4,
        smallest=0.9,
    )
    num_nonzero = np.asarray(path.num_nonzero)
    assert num_nonzero[0] == 0
    assert 0 < num_nonzero[1] < 5
    assert np.all(np.asarray(path.params.bias) != 0)
    expected = np.asarray(path.strengths)[0] * 0.9 ** (np.arange(4) / 3)
    np.testing.assert_allclose(path.strengths, expected, rtol=1e-6)


def test_a_path_is_one_program_and_a_repeated_one_compiles_nothing(monkeypatch, key):
    # One trace of the proximal descent, one of the look at the first gradient.
    traces(monkeypatch, 2)
    compiled = []

    def listen(event, duration_secs, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration_secs)

    def learn(seed, smallest):
        x = np.random.default_rng(seed).binomial(1, 0.4, (100, SIZE))
        few = dict(num_strengths=4, smallest=smallest)
        return fit_path(key, OBJECTIVE, start(), x, penalty=sparse(), **few)

    first = learn(0, 0.1)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        second = learn(1, 0.2)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == []
    assert float(first.strengths[0]) != float(second.strengths[0])
    for path in (first, second):
        num_nonzero = np.asarray(path.num_nonzero)
        assert num_nonzero[0] == 0 < num_nonzero[1]


def test_strengths_below_the_tolerance_of_a_fit_are_seen(key):
    """Of a loss that is tiny, the path is the path of the loss, tiny."""
    plain = fit_path(key, OBJECTIVE, start(), DATA, penalty=sparse(), num_strengths=4)
    tiny = fit_path(key, TINY, start(), DATA, penalty=sparse(), num_strengths=4)
    strengths = np.asarray(tiny.strengths)
    assert strengths[-1] < 1e-6
    np.testing.assert_allclose(1e4 * strengths, plain.strengths, rtol=1e-2)
    np.testing.assert_array_equal(tiny.num_nonzero, plain.num_nonzero)


def test_a_path_may_be_compiled(key):
    @jax.jit
    def losses(x):
        options = dict(penalty=sparse(), strengths=[0.1, 0.01])
        return fit_path(key, OBJECTIVE, start(), Data(x, DATA.weights), **options)

    found = losses(DATA.x.astype(float))
    alone = fit_path(
        key, OBJECTIVE, start(), DATA, penalty=sparse(), strengths=[0.1, 0.01]
    )
    np.testing.assert_allclose(found.losses, alone.losses, rtol=1e-5)
    with pytest.raises(IndexError, match="an index of the 2 strengths, got 2"):
        alone.at(2)


@pytest.mark.parametrize(
    "strengths", [[0.1, 0.2], [0.1, 0.1], [0.1, 0.0], [np.inf, 1], [0.1, np.nan], [], 1]
)
def test_strengths_that_do_not_fall_are_refused(strengths, key):
    with pytest.raises(
        ValueError, match="positive, finite and strictly decreasing, got"
    ):
        fit_path(
            key,
            OBJECTIVE,
            start(),
            DATA,
            penalty=sparse(),
            strengths=strengths,
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(penalty=L2(1)), "strengths must be given for a penalty that sets"),
        (dict(penalty=ising.centred), "penalty must inherit from probjax.Penalty"),
        (dict(num_strengths=0), "num_strengths must be an integer of at least 1"),
        (dict(smallest=1.0), "smallest must be between 0 and 1, got 1.0"),
    ],
)
def test_impossible_paths_are_refused(options, message, key):
    with pytest.raises(ValueError, match=message):
        fit_path(
            key,
            OBJECTIVE,
            start(),
            DATA,
            **(dict(penalty=sparse()) | options),
        )


@pytest.mark.slow
@pytest.mark.parametrize("objective", [PseudoLikelihood, MPF])
def test_some_strength_finds_exactly_the_edges_of_a_lattice(objective):
    """100 spins, 200 couplings of .3 to .5 in size and of either sign, 20,000 draws."""
    shape, keys = (10, 10), jax.random.split(jax.random.key(0), 3)
    first, second = np.array(exact.lattice.edges(shape, periodic=True)).T
    sizes = jax.random.uniform(keys[0], first.shape, minval=0.3, maxval=0.5)
    signed = sizes * jax.random.rademacher(keys[1], first.shape)
    half = jnp.zeros((100, 100)).at[first, second].set(signed)
    truth = ising.from_fields(half + half.T, jnp.zeros(100), spins=True)
    matrix = ising.coupling_matrix(truth)
    data = exact.lattice.sample(keys[2], matrix, shape, num_draws=20_000, periodic=True)
    begin = ising.from_matrix(jnp.zeros((100, 100)))
    path = fit_path(
        keys[0],
        objective(ising.energy),
        begin,
        data,
        penalty=L1(1.0, weights=ising.couplings_only(begin)),
        num_strengths=15,
        smallest=0.03,
    )
    assert path.converged.all()
    found, true = path.params.coupling != 0, truth.coupling != 0
    exactly = jnp.all(found == true[None], axis=1)
    assert exactly.any()
    assert jnp.all(path.num_nonzero[exactly] == 200)


def test_a_path_without_weights_leaves_biases_out(x64, key):
    path = fit_path(key, OBJECTIVE, start(), DATA, penalty=L1(1.0), num_strengths=4)
    given = fit_path(key, OBJECTIVE, start(), DATA, penalty=sparse(), num_strengths=4)
    np.testing.assert_allclose(path.strengths, given.strengths, rtol=1e-3)
    assert path.num_nonzero[0] == 0
    np.testing.assert_array_equal(path.num_nonzero, given.num_nonzero)
    assert np.all(np.asarray(path.params.bias) != 0)
