"""Interfaces: minimal classes work everywhere, and nothing is looked up by name."""

import ast
import inspect
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import all_states, log_probs_of, random_ising

import probjax
from probjax import (
    EM,
    HMC,
    L1,
    MPF,
    Base,
    Bernoulli,
    Chart,
    Connectivity,
    ContrastiveDivergence,
    Data,
    Gaussian,
    HeatBath,
    Metropolis,
    NoiseContrast,
    Objective,
    Penalty,
    PersistentDivergence,
    PersistentMPF,
    Sampler,
    ScoreMatching,
    ais,
    ais_until,
    annealing,
    bases,
    cross_validate,
    fit,
    fit_path,
    interop,
    ising,
    loss,
    marginal_log_likelihood,
    recipe,
    sample,
    sample_mean,
    samplers,
    sandwich,
)
from probjax.annealing import reverse_ais
from probjax.connectivity import AllFlips, BitFlips, Joined
from probjax.data import FixedFlips, blocks
from probjax.data.corruption import Corruption
from probjax.fitting import StoppingRule, charts, uncertainty
from probjax.fitting.optimisers import DescentMethod
from probjax.forwarding import ForwardingObjective, ForwardingSampler
from probjax.natural import (
    Regulariser,
    Structure,
    draws_of,
    energy_scores,
    fit_whitened,
)
from probjax.natural.factors import Factor
from probjax.natural.operators import MetricOperator
from probjax.objectives import Corrupted, Sparse
from probjax.trees import as_array
from probjax.types import Context, Info, Neighbours

PACKAGE = Path(probjax.__file__).parent
INTERFACES = (Base, Chart, Connectivity, Objective, Penalty, Sampler, StoppingRule)
INTERFACES += (annealing.Path, Corruption, DescentMethod)
INTERFACES += (Regulariser, Structure, Factor, MetricOperator)
# Where names are computed by necessity: fields of recipes, files, digests, and what
# other libraries return.
COMPUTED = {"recipe.py", "storage.py", "stored_names.py", "digest.py", "contents.py"}
COMPUTED |= {"interop.py"}


def members(interface):
    own = {*vars(interface), *inspect.get_annotations(interface)}
    return {name for name in own if not name.startswith("_")}


def lookups(source):
    """Calls of `getattr` and `hasattr`: the name looked up, None if it is computed."""
    for node in ast.walk(ast.parse(source)):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if called and node.func.id in ("getattr", "hasattr"):
            name = node.args[1]
            yield node.lineno, name.value if isinstance(name, ast.Constant) else None


def test_no_member_of_an_interface_is_looked_up_by_name():
    known = set().union(*map(members, INTERFACES))
    assert {"target_acceptance", "of_mean", "prox", "num_letters", "shift"} <= known
    found = []
    for path in PACKAGE.rglob("*.py"):
        for line, name in lookups(path.read_text()):
            if name in known or (name is None and path.name not in COMPUTED):
                found.append(f"{path.relative_to(PACKAGE)}:{line} {name}")
    assert found == []


def test_lookups_are_seen():
    assert list(lookups("getattr(x, 'domain')\nhasattr(x, name)")) == [
        (1, "domain"),
        (2, None),
    ]


@pytest.mark.parametrize("forwarding", [ForwardingObjective, ForwardingSampler])
def test_forwarding_classes_delegate_every_member(forwarding):
    (interface,) = forwarding.__bases__
    (within,) = inspect.get_annotations(forwarding)
    assert members(interface) == members(forwarding) - {within}


# Minimal classes: the required members alone.


class Where(NamedTuple):
    x: jax.Array


@recipe
class Walk(Sampler):
    """A random walk with a fixed step."""

    step_size: float = 1.0

    def init(self, key, potential, x):
        return Where(x)

    def step(self, key, potential, state):
        walk_key, accept_key = jax.random.split(key)
        there = state.x + self.step_size * jax.random.normal(walk_key, state.x.shape)
        fall = potential(state.x) - potential(there)
        accept = jnp.log(jax.random.uniform(accept_key)) < fall
        x = jnp.where(accept, there, state.x)
        return Where(x), Info(accept.astype(x.dtype))


@recipe
class AdaptedWalk(Sampler):
    """A random walk that declares an acceptance, and nothing else, to be adapted."""

    step_size: float = 1.0

    @property
    def target_acceptance(self):
        return 0.4

    def init(self, key, potential, x):
        return Where(x)

    def step(self, key, potential, state):
        return Walk(self.step_size).step(key, potential, state)


@recipe
class Turns(Sampler):
    """Flips of single random bits, by Metropolis."""

    def init(self, key, potential, x):
        return Where(x)

    def step(self, key, potential, state):
        bit_key, accept_key = jax.random.split(key)
        bit = jax.random.randint(bit_key, (), 0, state.x.size)
        there = state.x.at[bit].set(1 - state.x[bit])
        fall = potential(state.x) - potential(there)
        accept = jnp.log(jax.random.uniform(accept_key)) < fall
        x = jnp.where(accept, there, state.x)
        return Where(x), Info(accept.astype(x.dtype))


@recipe
class SquaredDistance(Objective):
    def prepare(self, params, data):
        return data

    def row(self, params, x, context):
        return jnp.sum((x - params) ** 2)


@recipe
class Neighbouring(Connectivity):
    """The first bit flipped."""

    def prepare(self, x):
        return x.astype(float)

    def states(self, x, moves):
        near = x.at[0].set(1 - x[0])[None]
        return Neighbours(near, jnp.zeros(1), jnp.ones(1))


@recipe
class Uniform(Base):
    """Independent fair bits."""

    size: int = probjax.static(default=3)

    @property
    def log_z(self):
        return self.size * jnp.log(2.0)

    def sample(self, key):
        return jax.random.bernoulli(key, 0.5, (self.size,)).astype(float)

    def energy(self, x):
        return 0.0 * jnp.sum(x)


@recipe
class Normal(Base):
    """Two standard normal numbers."""

    @property
    def log_z(self):
        return jnp.log(2 * jnp.pi)

    def sample(self, key):
        return jax.random.normal(key, (2,))

    def energy(self, x):
        return jnp.sum(x**2) / 2


@recipe
class Quartic(Penalty):
    def value(self, params):
        return sum(jnp.sum(leaf**4) for leaf in jax.tree.leaves(params))


@recipe
class Doubled(Chart):
    def forward(self, params):
        return jax.tree.map(lambda leaf: 2 * leaf, params)

    def inverse(self, coordinates):
        return jax.tree.map(lambda leaf: leaf / 2, coordinates)


@recipe
class FewSteps(StoppingRule):
    def is_met(self, progress, data):
        return progress.step >= 2


@recipe
class Squared(annealing.Path):
    def potential(self, ends, beta):
        return annealing.Geometric().potential(ends, beta**2)


KEY = jax.random.key(20120501)
PARAMS = random_ising(0, 3, scale=0.5)
BITS = np.array([[0, 0, 1], [1, 0, 1], [0, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0]])
ROUNDS = dict(num_rounds=3, steps_per_round=1, optimizer=optax.sgd(0.1))
# The energy of the first state, all zeros, is 0.
LOG_Z = -log_probs_of(PARAMS)[0]


def quadratic(precision, x):
    return precision * jnp.sum(x**2) / 2


def joint(params, x, a):
    return jnp.sum((x - params * a) ** 2) / 2 + jnp.sum(a**2) / 2


QUADRATIC_LOG_Z = np.log(2 * np.pi / 4.0)
# As many rows as particles, so that all drivers share their programs.
REALS = np.random.default_rng(0).normal(size=(64, 2)) / 2
TO_QUADRATIC = KEY, quadratic, 4.0, Gaussian(2)


def agrees(found, log_z, slack=0.0):
    return abs(float(found.log_z) - log_z) < 5 * float(found.stderr) + slack


of_reals = pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(Walk(), id="fixed"),
        pytest.param(AdaptedWalk(), id="adapted", marks=pytest.mark.statistics),
    ],
)


@of_reals
def test_a_minimal_sampler_of_reals_works_in_every_driver(sampler):
    few = dict(sampler=sampler, num_draws=3)
    draws = sample(KEY, quadratic, 4.0, REALS, num_warmup=2, **few)
    more = sample(KEY, quadratic, 4.0, draws, **few)
    assert int(more.step) == 8
    means = sample_mean(KEY, quadratic, 4.0, REALS, statistic=jnp.sum, **few)
    assert np.isfinite(means.stderr)
    run = dict(sampler=sampler, num_steps=50)
    found = ais(*TO_QUADRATIC, num_particles=64, **run)
    assert agrees(found, QUADRATIC_LOG_Z, slack=0.02)
    both = sandwich(*TO_QUADRATIC, REALS, **run)
    assert both.lower < QUADRATIC_LOG_Z < both.upper
    assert np.isfinite(reverse_ais(*TO_QUADRATIC, REALS, **run).log_z)
    until = ais_until(*TO_QUADRATIC, stderr=0.5, num_particles=64, **run)
    assert until.stderr < 0.5
    tempered = samplers.Tempered(sampler, as_array(0.5 ** np.arange(3)))
    # What is fixed was found by a pilot run above already.
    pilot = None if sampler.target_acceptance is None else annealing.Pilot()
    run = dict(num_particles=20, num_steps=5, pilot=pilot)
    assert ais(*TO_QUADRATIC, sampler=tempered, **run).ess > 1
    rows = marginal_log_likelihood(
        KEY, joint, 1.0, Normal(), REALS, sampler=sampler, **run
    )
    assert np.isfinite(rows.value)


@of_reals
def test_a_minimal_sampler_of_reals_works_in_every_objective(sampler):
    for objective, start in (
        (EM(joint, base=Normal(), sampler=sampler, num_moves=2), 1.0),
        (ContrastiveDivergence(quadratic, sampler), 4.0),
        (PersistentDivergence(quadratic, sampler, 20), 4.0),
        (PersistentMPF(quadratic, sampler=sampler), 4.0),
    ):
        found = fit(KEY, objective, start, REALS, **ROUNDS).params
        assert np.isfinite(found)
        assert float(found) != start
    algorithm = interop.to_blackjax(sampler, quadratic, 4.0)
    state = jax.jit(algorithm.init)(np.ones(2), KEY)
    assert jax.jit(algorithm.step)(KEY, state)[0].x.shape == (2,)
    metric = jax.jit(draws_of(quadratic, sampler, num_steps=2))
    assert metric(KEY, 4.0, Data(REALS)).x.shape == REALS.shape


def test_only_samplers_with_a_target_acceptance_are_adapted():
    """And a `step_size` by itself changes nothing."""
    run = dict(num_particles=64, num_steps=50)
    fixed, adapted = (
        ais(*TO_QUADRATIC, sampler=s, **run) for s in (Walk(9.0), AdaptedWalk(9.0))
    )
    assert fixed.schedule.knots is None
    assert 0.1 < np.exp(np.asarray(adapted.schedule.log_step)[-1]) < 5
    x = np.zeros((64, 2))
    found = samplers.tune(KEY, quadratic, 4.0, x, sampler=AdaptedWalk(9.0))
    np.testing.assert_allclose(found.accept, 0.4, atol=0.1)
    with pytest.raises(ValueError, match="sampler must have a target_acceptance"):
        samplers.tune(KEY, quadratic, 4.0, x, sampler=Walk(9.0))
    objective = PersistentMPF(quadratic, sampler=Walk(9.0))
    shared = fit(KEY, objective, 4.0, x + 1, **ROUNDS).context.shared
    assert shared.step_size is None


def test_a_minimal_sampler_of_bits_is_right():
    args = KEY, ising.energy, PARAMS
    found = ais(*args, Uniform(), sampler=Turns(), num_particles=1000, num_steps=50)
    assert agrees(found, LOG_Z)
    draws = sample(*args, BITS, sampler=Turns(), num_draws=4000, num_warmup=20)
    truth = np.exp(log_probs_of(PARAMS)) @ all_states(3)
    np.testing.assert_allclose(np.asarray(draws.x).mean((0, 1)), truth, atol=0.03)


def test_a_minimal_objective_works_in_every_driver():
    x = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 8.0]])
    objective, start = SquaredDistance(), np.zeros(2)
    found = fit(KEY, objective, start, x)
    np.testing.assert_allclose(found.params, x.mean(0), rtol=1e-4)
    assert loss(KEY, objective, found.params, x) == found.loss
    by_batches = fit(KEY, objective, start, x, batch_size=2, **ROUNDS)
    assert np.isfinite(by_batches.loss)
    source = blocks.from_array(x, rows_per_block=2)
    read = fit(KEY, objective, start, source)
    np.testing.assert_allclose(read.params, found.params, rtol=1e-4)
    assert uncertainty(objective, found, x).stderr.shape == (2,)
    path = fit_path(KEY, objective, start, x, penalty=L1(1.0), num_strengths=3)
    assert path.num_nonzero[-1] == 2
    options = dict(penalty=L1(1.0), strengths=[1.0, 0.1], num_folds=2)
    assert cross_validate(KEY, objective, start, x, **options).best in (0, 1)
    white = fit_whitened(KEY, objective, start, x, energy_scores(apart))
    np.testing.assert_allclose(white.params, found.params, rtol=1e-3)
    odds = Sparse(objective, minus, target=0.5, strength=0.1)
    assert np.isfinite(fit(KEY, odds, start, x).loss)
    noisy = Corrupted(objective, FixedFlips(1))
    options = dict(num_rounds=2, steps_per_round=2)
    assert np.isfinite(fit(KEY, noisy, np.zeros(3), BITS, **options).loss)


def apart(params, x):
    return jnp.sum((x - params) ** 2) / 2


def minus(params, x):
    return x - params


def test_wrappers_hide_nothing():
    """What an objective says of itself is said by what is around it."""
    inner = MPF(ising.energy, exclude_data=True)
    some = BITS[:3]
    for outer in (
        Corrupted(MPF(ising.energy, exclude_data=True), FixedFlips(1)),
        Sparse(inner, minus_first, target=0.5, strength=0.0),
    ):
        assert outer.couples_rows
    found = fit(KEY, inner, PARAMS, some, stop=FewSteps())
    noisy = Corrupted(inner, FixedFlips(1))
    fitted = found._replace(context=Context(((), ()), found.context.shared))
    with pytest.raises(ValueError, match="sum over rows .* with exclude_data"):
        uncertainty(noisy, fitted, some)
    never = np.array([[0, 1, 0], [0, 0, 1], [0, 1, 1]])
    sparse = Sparse(MPF(ising.energy), minus_first, target=0.5, strength=0.0)
    with pytest.warns(probjax.UnboundedWarning, match="1 of 3 units never change"):
        fit(KEY, sparse, PARAMS, never, steps_per_round=20, stop=Slack())


@recipe
class Slack(StoppingRule):
    """Met at once, and said to be met at a minimum alone."""

    @property
    def needs_minimum(self):
        return True

    def is_met(self, progress, data):
        return progress.step >= 1


def minus_first(params, x):
    return params.bias - x


def test_a_minimal_connectivity_works_wherever_one_is_taken():
    flow = MPF(ising.energy, connectivity=Neighbouring())
    found = fit(KEY, flow, PARAMS, BITS, penalty=probjax.L2(0.1))
    assert found.converged
    reference = MPF(ising.energy, connectivity=BitFlips())
    assert loss(KEY, flow, PARAMS, BITS) < loss(KEY, reference, PARAMS, BITS)
    joined = Joined((Neighbouring(), AllFlips()))
    assert np.isfinite(loss(KEY, MPF(ising.energy, connectivity=joined), PARAMS, BITS))
    walk = Metropolis(Neighbouring())
    draws = sample(KEY, ising.energy, PARAMS, BITS, sampler=walk, num_draws=5)
    np.testing.assert_array_equal(draws.x[:, -1, 1:], BITS[:, 1:])
    exclude = MPF(ising.energy, connectivity=Neighbouring(), exclude_data=True)
    assert np.isfinite(
        loss(KEY, exclude, PARAMS, BITS[:2] * 0 + [[0, 1, 1], [0, 0, 1]])
    )
    masked = Data(BITS, mask=np.ones_like(BITS, bool))
    with pytest.raises(ValueError, match="must be one of bits or letters"):
        fit(KEY, flow, PARAMS, masked, num_rounds=2)


def test_a_minimal_base_works_wherever_one_is_taken():
    args = KEY, ising.energy, PARAMS
    run = dict(sampler=HeatBath(), num_steps=20)
    found = ais(*args, Uniform(), num_particles=500, **run)
    assert agrees(found, LOG_Z)
    both = sandwich(*args, Uniform(), BITS, **run)
    assert np.isfinite(both.forward.log_z)
    product = bases.Product({"a": Uniform(2), "b": Uniform(1)})
    np.testing.assert_allclose(product.log_z, 3 * np.log(2), rtol=1e-6)
    x = np.random.default_rng(0).normal(size=(10, 2))
    noise = NoiseContrast(quadratic, Normal())
    assert np.isfinite(fit(KEY, noise, noise.start(1.0), x).loss)


def test_a_minimal_penalty_works_wherever_one_is_taken():
    x = np.array([[0.0, 1.0], [2.0, 3.0]])
    args = KEY, SquaredDistance(), np.zeros(2), x
    plain, found = fit(*args), fit(*args, penalty=Quartic())
    assert (np.abs(found.params) < np.abs(plain.params)).all()
    by_steps = fit(*args, penalty=Quartic(), **ROUNDS)
    assert np.isfinite(by_steps.loss)
    errors = uncertainty(SquaredDistance(), found, x, penalty=Quartic()).stderr
    assert np.asarray(errors).all()
    with pytest.raises(ValueError, match="penalty must have a strength to replace"):
        fit_path(*args, penalty=Quartic())
    with pytest.raises(ValueError, match="penalty must have a proximal map if it is"):
        fit(*args, penalty=Kinked())


@recipe
class Kinked(Penalty):
    @property
    def smooth(self):
        return False

    def value(self, params):
        return jnp.sum(jnp.abs(params))


def test_a_minimal_chart_works_wherever_one_is_taken():
    x = np.array([[0.0, 1.0], [2.0, 3.0]])
    args = KEY, SquaredDistance(), np.zeros(2), x
    found = fit(*args, chart=Doubled())
    np.testing.assert_allclose(found.params, x.mean(0), rtol=1e-4)
    twice = fit(*args, chart=charts.Composed((Doubled(), Doubled())))
    np.testing.assert_allclose(twice.params, x.mean(0), rtol=1e-4)
    errors = [
        uncertainty(SquaredDistance(), found, x, chart=c) for c in (None, Doubled())
    ]
    np.testing.assert_allclose(errors[0].stderr, errors[1].stderr, rtol=1e-4)


def test_a_minimal_stopping_rule_works_wherever_one_is_taken():
    x = np.array([[0.5, 1.0, 2.0], [2.0, 3.0, 0.1]])
    args = KEY, ScoreMatching(quadratic), 5.0, x
    assert len(fit(*args, stop=FewSteps()).losses) == 2
    path = fit_path(*args, penalty=L1(1.0), strengths=[0.1], stop=FewSteps())
    assert np.asarray(path.converged).all()


def test_a_minimal_path_works_wherever_one_is_taken():
    run = dict(num_steps=40, path=Squared())
    found = ais(*TO_QUADRATIC, num_particles=64, sampler=HMC(0.3), **run)
    assert agrees(found, QUADRATIC_LOG_Z, slack=0.02)
    both = sandwich(*TO_QUADRATIC, REALS, sampler=Walk(0.5), pilot=None, **run)
    assert agrees(both.forward, QUADRATIC_LOG_Z, slack=0.02)
    assert both.lower < QUADRATIC_LOG_Z < both.upper


# What does not inherit.


class Duck:
    """Has members of all kinds, and inherits from nothing."""

    log_z = smooth = step = prepare = value = forward = inverse = is_met = potential = 0


@recipe
class Plain(Sampler):
    def init(self, key, potential, x):
        return Where(x)

    def step(self, key, potential, state):
        return state, Info(jnp.ones(()))


class Bare(Sampler):
    def init(self, key, potential, x):
        return Where(x)

    def step(self, key, potential, state):
        return state, Info(jnp.ones(()))


ARGS = KEY, quadratic, 1.0
X = np.ones((3, 2))
ONE = dict(num_draws=1)
ANNEAL = dict(num_particles=2, num_steps=2)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("Objective", lambda d: fit(KEY, d, 1.0, X)),
        ("Objective", lambda d: loss(KEY, d, 1.0, X)),
        ("Penalty", lambda d: fit(KEY, SquaredDistance(), 1.0, X, penalty=d)),
        ("Chart", lambda d: fit(KEY, SquaredDistance(), 1.0, X, chart=d)),
        ("StoppingRule", lambda d: fit(KEY, SquaredDistance(), 1.0, X, stop=d)),
        ("Sampler", lambda d: sample(*ARGS, X, sampler=d, num_draws=1)),
        ("Sampler", lambda d: ais(*ARGS, Gaussian(2), sampler=d, **ANNEAL)),
        ("Sampler", lambda d: samplers.tune(*ARGS, X, sampler=d)),
        ("Base", lambda d: ais(*ARGS, d, sampler=HMC(0.1), **ANNEAL)),
        ("Path", lambda d: ais(*ARGS, Gaussian(2), sampler=HMC(0.1), path=d, **ANNEAL)),
        ("Connectivity", lambda d: loss(KEY, MPF(quadratic, connectivity=d), 1.0, X)),
        (
            "Connectivity",
            lambda d: sample(*ARGS, X, sampler=Metropolis(d), num_draws=1),
        ),
        ("Corruption", lambda d: loss(KEY, Corrupted(MPF(quadratic), d), 1.0, X)),
        ("Sampler", lambda d: loss(KEY, ContrastiveDivergence(quadratic, d), 1.0, X)),
        ("Base", lambda d: loss(KEY, NoiseContrast(quadratic, d), 1.0, X)),
    ],
)
def test_what_does_not_inherit_is_refused_in_one_sentence(name, call):
    with pytest.raises(ValueError, match=rf"must inherit from probjax\S*\.{name}, as"):
        call(Duck())
    with pytest.raises(ValueError, match=r"got the class Duck"):
        call(Duck)


def test_what_is_not_a_recipe_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="try @probjax.recipe on class Bare"):
        sample(*ARGS, X, sampler=Bare(), num_draws=1)
    assert sample(*ARGS, X, sampler=Plain(), num_draws=1).x.shape == (3, 1, 2)


def test_a_forgotten_member_is_named_at_once():
    @recipe
    class Half(Sampler):
        def init(self, key, potential, x):
            return Where(x)

    with pytest.raises(TypeError, match="abstract method '?step'?"):
        Half()


def test_a_field_does_not_take_the_default_of_the_interface():
    @recipe
    class Own(Sampler):
        step_size: float

        def init(self, key, potential, x):
            return Where(x)

        def step(self, key, potential, state):
            return state, Info(jnp.ones(()))

    with pytest.raises(TypeError, match="step_size"):
        Own()
    with pytest.raises(TypeError, match="domain must be a property"):

        @recipe
        class Wrong(Sampler):
            domain: str

            def init(self, key, potential, x):
                return Where(x)

            def step(self, key, potential, state):
                return state, Info(jnp.ones(()))


def test_a_base_and_a_sampler_of_other_states_are_refused():
    args = KEY, ising.energy, PARAMS
    with pytest.raises(ValueError, match="sampler must move bits, which Bernoulli"):
        ais(*args, Bernoulli(3), sampler=HMC(0.1), **ANNEAL)
    with pytest.raises(ValueError, match="sampler must move reals, which Gaussian"):
        ais(*args, Gaussian(3), sampler=HeatBath(), **ANNEAL)
    mixed = bases.Product({"a": Gaussian(2), "b": Bernoulli(1)})
    with pytest.raises(ValueError, match="sampler must move states of several kinds"):
        ais(KEY, quadratic, 1.0, mixed, sampler=HMC(0.1), **ANNEAL)
    with pytest.raises(ValueError, match="sampler must move bits, which Bernoulli"):
        ais(*args, Bernoulli(3), sampler=Walk(), **ANNEAL)


@recipe
class Odd(Sampler):
    """Reports a record of its own."""

    def init(self, key, potential, x):
        return Where(x)

    def step(self, key, potential, state):
        return state, Where(jnp.ones(()))


@recipe
class Boolean(Sampler):
    """Reports a boolean."""

    def init(self, key, potential, x):
        return Where(x)

    def step(self, key, potential, state):
        return state, Info(jnp.asarray(True))


def test_a_step_must_report_an_info():
    for call in (
        lambda: sample(*ARGS, X, sampler=Odd(), num_draws=1),
        lambda: ais(*ARGS, Gaussian(2), sampler=Odd(), **ANNEAL),
    ):
        with pytest.raises(ValueError, match="must return a probjax.types.Info, got"):
            call()
    draws = sample(*ARGS, X, sampler=Boolean(), num_draws=1)
    assert np.asarray(draws.info.accept).all()


def test_what_is_inside_must_inherit_too():
    ladder = np.array([1.0, 0.5])
    for name, call in (
        (
            "Sampler",
            lambda: sample(*ARGS, X, sampler=samplers.Tempered(Duck(), ladder), **ONE),
        ),
        (
            "Connectivity",
            lambda: sample(*ARGS, X, sampler=Metropolis(Joined((Duck(),))), **ONE),
        ),
        (
            "Chart",
            lambda: fit(
                KEY, SquaredDistance(), 1.0, X, chart=charts.Composed((Duck(),))
            ),
        ),
    ):
        with pytest.raises(ValueError, match=rf"must inherit from probjax\.{name}, as"):
            call()
    with pytest.raises(ValueError, match="rules must inherit from probjax"):
        probjax.fitting.AnyOf((Duck(),))
