"""What is saved, pickled or copied comes back as it was, or is refused."""

import copy
import pickle
from functools import cache, partial
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import random_ising
from test_recipes import RECIPES, name
from test_stored_names import NOT_STORED, records_and_recipes

import probjax
from probjax import (
    HMC,
    L1,
    L2,
    MPF,
    Bernoulli,
    Gaussian,
    HeatBath,
    Watch,
    ais,
    annealing,
    bases,
    data,
    diagnostics,
    exact,
    fit,
    fitting,
    gaussian_rbm,
    goodness,
    hopfield,
    ising,
    log_likelihood,
    models,
    natural,
    potts,
    rbm,
    sample,
    sample_mean,
    samplers,
    sandwich,
    storage,
    uncertainty,
)
from probjax.connectivity import BitFlips
from probjax.runs import stored_names
from probjax.trees import as_array

KEY = jax.random.key(0)
# Of 40 rows, in which every pair of sites has all of its four states.
BITS = np.random.default_rng(0).binomial(1, 0.4, (40, 4)).astype(np.float32)
PARAMS = random_ising(0, 4)
OBJECTIVE = MPF(ising.energy)


def stored(tree, folder):
    storage.save(folder / "tree.npz", tree)
    return storage.load(folder / "tree.npz")


TRIPS = {
    "pickle": lambda tree: pickle.loads(pickle.dumps(tree)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "flatten": lambda tree: jax.tree.unflatten(*jax.tree.flatten(tree)[::-1]),
}


def words(leaf):
    """An array of NumPy with the bits of a leaf."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)


def assert_same(found, given):
    """The same classes, shapes, dtypes and bits."""
    assert type(found) is type(given)
    assert jax.tree.structure(found) == jax.tree.structure(given)
    for pair in zip(jax.tree.leaves(found), jax.tree.leaves(given), strict=True):
        one, other = map(words, pair)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


def filled(kind):
    """A record with another array in each field."""
    dtypes = np.int32, np.float32, np.bool_, np.complex64
    fields = enumerate(kind._fields)
    return kind(*(np.full((i, 2), i, dtypes[i % 4]) for i, _ in fields))


def test_every_record_comes_back(tmp_path):
    kinds = [kind for kind in records_and_recipes() if issubclass(kind, tuple)]
    assert len(kinds) > 80
    for kind in kinds:
        given = filled(kind)
        for trip in TRIPS.values():
            assert_same(trip(given), given)
        if stored_names.location_of(kind) in NOT_STORED:
            with pytest.raises(ValueError, match="registered name"):
                stored(given, tmp_path)
        else:
            assert_same(stored(given, tmp_path), given)


@cache
def fitted():
    return fit(KEY, OBJECTIVE, PARAMS, BITS, penalty=L2(0.1))


@cache
def annealed():
    args = KEY, ising.energy, PARAMS, Bernoulli(4)
    return ais(*args, sampler=HeatBath(), num_particles=8, num_steps=4, pilot=None)


@cache
def drawn():
    args = KEY, ising.energy, PARAMS, BITS[:4]
    return sample(*args, sampler=HeatBath(), num_draws=5)


def last_progress():
    seen = []
    watch = Watch(seen.append, every=2)
    fit(KEY, OBJECTIVE, PARAMS, BITS, penalty=L2(0.1), watch=watch)
    return seen[-1]


def learned():
    return hopfield.storkey(BITS[:2])


RESULTS = {
    "Fit": fitted,
    "FitCheck": lambda: fitting.check_fit(
        KEY, ising.energy, PARAMS, BITS, num_chains=20, num_steps=4
    ),
    "Progress": last_progress,
    "Annealed": annealed,
    "Bracket": lambda: sandwich(
        *(KEY, ising.energy, PARAMS, Bernoulli(4), BITS[:8]),
        **{"sampler": HeatBath(), "num_steps": 4, "pilot": None},
    ),
    "Estimate": lambda: log_likelihood(ising.energy, PARAMS, BITS, annealed()),
    "Uncertainty": lambda: uncertainty(OBJECTIVE, fitted(), BITS, penalty=L2(0.1)),
    "RegularisationPath": lambda: fitting.fit_path(
        KEY, OBJECTIVE, PARAMS, BITS, penalty=L1(1.0), strengths=[1.0, 0.1]
    ),
    "Validation": lambda: fitting.cross_validate(
        *(KEY, OBJECTIVE, PARAMS, BITS),
        **{"penalty": L2(1.0), "strengths": [1.0, 0.1], "num_folds": 2},
    ),
    "Draws": drawn,
    "Means": lambda: sample_mean(
        *(KEY, ising.energy, PARAMS, BITS[:4]),
        **{"statistic": jnp.square, "sampler": HeatBath(), "num_draws": 5},
    ),
    "Verdict": lambda: diagnostics.summary(drawn().x),
    "Comparison": lambda: goodness.pair_frequencies(BITS, BITS[:20]),
    "Moments": lambda: exact.moments(ising.energy, PARAMS, 4),
    "Spectrum": lambda: exact.dynamics.spectrum(ising.energy, PARAMS, BitFlips(), 4),
    "Whitening": lambda: data.preprocessing.fit_whitening(BITS),
    "ColumnMoments": lambda: data.blocks.moments(data.blocks.from_array(BITS)),
    "Learned": learned,
    "Recall": lambda: hopfield.recall(learned().params, BITS),
}


@pytest.mark.parametrize("result", RESULTS)
def test_results_of_drivers_come_back(result, tmp_path):
    given = RESULTS[result]()
    assert type(given).__name__ == result
    for trip in (partial(stored, folder=tmp_path), *TRIPS.values()):
        assert_same(trip(given), given)
    # A loaded result is used as the first one.
    if hasattr(given, "describe"):
        assert stored(given, tmp_path).describe() == given.describe()


def test_a_tuned_sampler_is_pickled_but_not_saved(tmp_path):
    tuned = samplers.tuning.Tuned(HMC(0.1), as_array(BITS), as_array(np.float32(0.5)))
    for trip in TRIPS.values():
        assert_same(trip(tuned), tuned)
    with pytest.raises(ValueError, match="registered name, got a .*HMC; save"):
        storage.save(tmp_path / "tree.npz", tuned)


MACHINE = rbm.Params(*(as_array(np.ones(shape, "f4")) for shape in ((4, 2), 4, 2)))
MORE = [
    Watch(print, every=2),
    ising.Params(MACHINE.visible_bias, MACHINE.visible_bias[:1], [(0, 1)]),
    annealing.Ends(ising.energy, PARAMS, Bernoulli(4)),
    bases.Product((Gaussian(2), bases.Laplace(2))),
    fitting.AnyOf((fitting.GradientNorm(1e-3), fitting.GradientNorm(0.1))),
    rbm.BlockGibbs(),
    gaussian_rbm.GaussianBlockGibbs(),
    rbm.CentredRBM(MACHINE.visible_bias, MACHINE.hidden_bias),
    rbm.Growth(MACHINE.visible_bias),
    fitting.StandardErrors(0.1, rows=50.0),
    ising.UnitParams(MACHINE.visible_bias[0], MACHINE.visible_bias),
    gaussian_rbm.CentredGaussianRBM(MACHINE.visible_bias, MACHINE.hidden_bias),
    potts.CentredPotts(as_array(np.full((2, 3), 1 / 3, "f4"))),
    hopfield.AllStored(),
    potts.Params(as_array(np.ones((2, 3), "f4")), as_array(np.ones((1, 3, 3), "f4"))),
    probjax.interop.Blackjax(len, print, {"step_size": 0.5}),
    natural.Scores(ising.energy),
    natural.Given(ising.energy),
    natural.Metric(ising.energy),
    natural.WhitenedCoordinates(*(as_array(np.eye(2, dtype="f4")),) * 2, MACHINE),
    *(kind() for kind in (natural.Dense, natural.Diagonal, natural.BlockDiagonal)),
    *(kind() for kind in (natural.LowRank, natural.ConjugateGradient)),
    *(kind() for kind in (natural.PseudoInverse, natural.Robust)),
    natural.Ridge(0.5),
    models.population.Params(MACHINE.visible_bias, first=3),
    models.products.Params(MACHINE.visible_bias[:1], ((0, 2),)),
    models.projections.Params(
        MACHINE.visible_bias[:1], ((0, 2),), ((0.5, -1.0),), (1.0,)
    ),
    models.kinetic_ising.init(2, num_covariates=1),
    models.kinetic_ising.CentredKinetic(
        *(models.kinetic_ising.Inputs(MACHINE.visible_bias[None]),) * 2
    ),
    models.sums.ChartOfParts((fitting.charts.Positive(), None)),
]


@pytest.mark.parametrize("recipe", [*RECIPES, *MORE], ids=name)
def test_recipes_come_back_equal_and_compile_nothing(recipe, tmp_path):
    traced = []
    use = jax.jit(lambda recipe: traced.append(recipe))
    use(recipe)
    trips = list(TRIPS.values())
    if {stored_names.location_of(kind) for kind in parts(recipe)} & NOT_STORED:
        with pytest.raises(ValueError, match="registered name"):
            stored(recipe, tmp_path)
    else:
        trips.append(partial(stored, folder=tmp_path))
    for trip in trips:
        found = trip(recipe)
        assert type(found) is type(recipe)
        assert found == recipe
        use(found)
    assert len(traced) == 1


def parts(tree):
    """Classes of the records and recipes of a tree."""
    fields = stored_names.field_names(type(tree))
    if fields is None:
        children = tree if isinstance(tree, (tuple, list)) else ()
        return set().union(*map(parts, children))
    return {type(tree)}.union(*(parts(getattr(tree, each)) for each in fields))


def public(module, seen):
    """Records and recipes that the names of a package lead to."""
    seen.add(module)
    for value in [getattr(module, each) for each in dir(module) if each[0] != "_"]:
        if isinstance(value, ModuleType):
            if value.__name__.startswith("probjax") and value not in seen:
                yield from public(value, seen)
        elif isinstance(value, type) and stored_names.field_names(value) is not None:
            yield value


def test_every_public_recipe_is_tested():
    recipes = {kind for kind in public(probjax, set()) if not issubclass(kind, tuple)}
    assert recipes - parts([*RECIPES, *MORE]) == set(), "add them to MORE"


CALLS = []


def counted(params, x):
    CALLS.append(x)
    return ising.energy(params, x)


DRIVERS = {
    "fit": lambda given: fit(KEY, *given["fit"], BITS, **given["how"]),
    "sample": lambda given: sample(
        *(KEY, counted, PARAMS, BITS[:4]), sampler=given["sampler"], num_draws=5
    ),
    "ais": lambda given: ais(
        *(KEY, counted, PARAMS, given["base"]),
        **{"sampler": given["sampler"], "num_particles": 8, "num_steps": 4},
        pilot=None,
    ),
}


@pytest.mark.parametrize("driver", DRIVERS)
def test_drivers_trace_nothing_for_equal_objects(driver):
    """Nor do they give other numbers."""
    run = DRIVERS[driver]
    given = {
        "fit": (MPF(counted, connectivity=BitFlips()), PARAMS),
        "how": {"penalty": L2(0.1), "chart": ising.centred(BITS)},
        "sampler": HeatBath(),
        "base": Bernoulli(4),
    }
    first = run(given)
    CALLS.clear()
    run(given)
    # Checks of the energy may trace it, as often for every call.
    num_calls = len(CALLS)
    for trip in (TRIPS["pickle"], TRIPS["deepcopy"], TRIPS["flatten"]):
        CALLS.clear()
        assert_same(run(trip(given)), first)
        assert len(CALLS) == num_calls
