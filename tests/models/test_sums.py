"""Sums of energies, and the terms that are made to be added: population, products,
projections."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from small_models import all_states, log_probs_of, matrix_of, plain_energy, random_ising

import probjax as pj
from probjax import Data, ising, potts
from probjax.models import population, products, projections, sums
from probjax.potential import closed_forms, potential
from probjax.trees import as_array

SIZE = 4
STATES = all_states(SIZE).astype(np.float32)
SUBSETS = ((0, 1, 2), (1, 3), (0, 2, 3), (2,))


def normal(shape, seed):
    values = np.random.default_rng(seed).normal(size=shape)
    return as_array(values.astype(jnp.result_type(float)))


def population_params(first=1, last=SIZE, seed=0):
    return population.Params(normal(last - first + 1, seed), first)


def product_params(seed=1):
    return products.Params(normal(len(SUBSETS), seed), SUBSETS)


def projection_params(seed=2):
    drawn = projections.init(jax.random.key(seed), SIZE, num_projections=6, num_units=3)
    return projections.Params(
        normal(7, seed),
        (*drawn.subsets, (1,)),
        (*drawn.weights, (2.0,)),
        (*(0.3 * drawn.thresholds[0],) * 6, 1.0),
    )


def by_definition(name, params, x):
    """Energy of one state, in plain Python."""
    x = np.asarray(x, float)
    if name == "population":
        count = int(x.sum()) - params.first
        values = np.asarray(params.values, float)
        return 0.0 if count < 0 else values[min(count, len(values) - 1)]
    coupling = np.asarray(params.coupling, float)
    if name == "products":
        return sum(
            c for c, s in zip(coupling, params.subsets, strict=True) if x[list(s)].all()
        )
    parts = zip(
        coupling, params.subsets, params.weights, params.thresholds, strict=True
    )
    return sum(c for c, s, w, t in parts if np.dot(w, x[list(s)]) > t)


TERMS = {
    "population": (population.energy, population_params(first=2, last=3)),
    "products": (products.energy, product_params()),
    "projections": (projections.energy, projection_params()),
}


def fully_plain(energy):
    """The same energy without closed forms."""

    def plain(params, x):
        return energy(params, x)

    return plain


K_PAIRWISE = sums.add(ising.energy, population.energy)
EVERYTHING = sums.add(
    ising.energy, population.energy, products.energy, projections.energy, plain_energy
)


def everything_params():
    terms = [params for _, params in TERMS.values()]
    return random_ising(0, SIZE), *terms, random_ising(1, SIZE)


CASES = {name: (energy, params) for name, (energy, params) in TERMS.items()} | {
    "population alone": (population.energy, population_params()),
    "sum": (EVERYTHING, everything_params()),
    "sum of plain energies": (
        sums.add(plain_energy, plain_energy),
        (random_ising(0, SIZE), random_ising(1, SIZE)),
    ),
}


@pytest.mark.parametrize("name", TERMS)
def test_energies_follow_their_definitions(name):
    energy, params = TERMS[name]
    found = jax.vmap(energy, (None, 0))(params, STATES)
    expected = [by_definition(name, params, x) for x in STATES]
    assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert len(set(np.round(expected, 4))) > 2


@pytest.mark.parametrize("name", CASES)
def test_gaps_equal_the_generic_path(name):
    energy, params = CASES[name]
    closed, generic = potential(energy, params), potential(fully_plain(energy), params)

    def all_gaps(x):
        sites = jnp.arange(SIZE)
        return [
            (model.flip_gaps(x), model.mirror_gap(x), model.site_gaps(x, 2))
            + (jax.vmap(lambda n, gap=model.flip_gap(): gap(x, n))(sites),)
            for model in (closed, generic)
        ]

    found, expected = jax.jit(jax.vmap(all_gaps))(STATES)
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_objectives_equal_the_generic_path(name, key):
    energy, params = CASES[name]
    data = Data(STATES, np.linspace(0.5, 1.5, len(STATES)))
    gradients = [
        jax.grad(pj.loss, 2)(key, pj.MPF(each), params, data)
        for each in (energy, fully_plain(energy))
    ]
    for one, other in zip(*map(jax.tree.leaves, gradients), strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_sum_has_the_closed_forms_that_its_parts_have():
    forms = set(closed_forms(K_PAIRWISE))
    assert forms >= {"flip_gaps", "flip_gap", "mirror_gap", "chart", "couplings"}
    assert not {"site_gaps", "bit_block"} & forms
    assert "bit_block" in closed_forms(sums.add(ising.energy, ising.energy))
    assert not closed_forms(sums.add(plain_energy))
    assert {"site_gaps", "site_gap"} <= set(
        closed_forms(sums.add(potts.energy, potts.energy))
    )
    assert sums.add(ising.energy, population.energy) == K_PAIRWISE
    assert hash(K_PAIRWISE) == hash(sums.add(ising.energy, population.energy))


def test_sites_of_letters_add():
    params = potts.init(jax.random.key(0), 3, num_states=3, scale=1.0)
    both = sums.add(potts.energy, potts.energy)
    x = as_array(np.array([2.0, 0.0, 1.0], np.float32))
    twice, once = potential(both, (params, params)), potential(potts.energy, params)
    assert_allclose(twice.site_gaps(x, 3), 2 * once.site_gaps(x, 3), rtol=1e-5)
    assert_allclose(twice.site_gap(3)(x, 1), 2 * once.site_gap(3)(x, 1), rtol=1e-5)


def exact_fit(key, energy, start, data, **options):
    """Fit of maximum likelihood, by enumeration."""
    stop = pj.fitting.GradientNorm(1e-5)
    objective = pj.MaximumLikelihood(energy)
    return pj.fit(key, objective, start, data, stop=stop, **options).params


def counted(energy, params, count=4000):
    log_p = pj.exact.log_probs(energy, params, SIZE)
    return Data(STATES, count * np.exp(np.asarray(log_p)))


def test_k_pairwise_finds_the_truth_in_its_gauge(key):
    # In the gauge V(0) = V(1) = V(2) = 0 all parameters are determined.
    truth = random_ising(3, SIZE, 0.5), population_params(first=3, seed=4)
    data = counted(K_PAIRWISE, truth)
    start = ising.init(key, SIZE), population.init(SIZE, first=3)
    for objective in (pj.MaximumLikelihood, pj.PseudoLikelihood, pj.MPF):
        stop = pj.fitting.GradientNorm(1e-6)
        found = pj.fit(key, objective(K_PAIRWISE), start, data, stop=stop).params
        for one, other in zip(*map(jax.tree.leaves, (found, truth)), strict=True):
            assert_allclose(one, other, atol=5e-3)


def test_the_gauge_removes_nothing(key):
    # A linear and a quadratic part of V are biases and couplings.
    counts = np.arange(1.0, SIZE + 1)
    linear, quadratic = 0.7, -0.3
    extra = population.Params(as_array(linear * counts + quadratic * counts**2))
    given = random_ising(5, SIZE, 0.5)
    log_p = pj.exact.log_probs(K_PAIRWISE, (given, extra), SIZE)
    matrix = matrix_of(given) + quadratic + linear * np.eye(SIZE)
    same = ising.from_matrix(matrix)
    assert_allclose(log_p, log_probs_of(same), atol=1e-5)


def test_k_synchrony_matches_the_distribution_of_counts(key):
    generator = np.random.default_rng(0)
    weights = generator.random(len(STATES))
    data = Data(STATES, 4000 * weights / weights.sum())
    synchrony = sums.add(ising.energy, population.energy)
    start = ising.init(key, SIZE, edges=()), population.init(SIZE, first=2)
    fitted = exact_fit(key, synchrony, start, data)
    p = np.exp(pj.exact.log_probs(synchrony, fitted, SIZE))
    counts = STATES.sum(1).astype(int)
    observed = np.bincount(counts, weights / weights.sum())
    assert_allclose(np.bincount(counts, p), observed, atol=1e-4)
    assert_allclose(p @ STATES, weights @ STATES / weights.sum(), atol=1e-4)
    assert fitted[0].coupling.size == 0


def test_triplets_and_projections_match_their_means(key):
    generator = np.random.default_rng(1)
    weights = generator.random(len(STATES))
    data = Data(STATES, 4000 * weights / weights.sum())
    start = (
        ising.init(key, SIZE),
        products.init(products.triplets(SIZE)),
    )
    fitted = exact_fit(key, sums.add(ising.energy, products.energy), start, data)
    p = np.exp(
        pj.exact.log_probs(sums.add(ising.energy, products.energy), fitted, SIZE)
    )
    i, j, k = np.array(products.triplets(SIZE)).T
    third = STATES[:, i] * STATES[:, j] * STATES[:, k]
    assert_allclose(p @ third, weights @ third / weights.sum(), atol=1e-4)
    drawn = projections.init(key, SIZE, num_projections=8, num_units=2, threshold=0.2)
    h = np.asarray(jax.vmap(projections.features, (None, 0))(drawn, STATES))
    fitted = exact_fit(key, projections.energy, drawn, data, penalty=pj.L2(1e-9))
    p = np.exp(pj.exact.log_probs(projections.energy, fitted, SIZE))
    assert_allclose(p @ h, weights @ h / weights.sum(), atol=1e-4)


@pytest.mark.parametrize("name", TERMS)
def test_charts_scale_features_by_their_deviation(name):
    energy, params = TERMS[name]
    weights = np.linspace(1, 3, len(STATES))
    data = Data(STATES, weights)
    chart = closed_forms(energy)["chart"](params, data)
    gradients = jax.vmap(jax.grad(energy), (None, 0))(params, STATES)
    features = jax.tree.leaves(gradients)[0]
    share = weights / weights.sum()
    features = np.asarray(features, float)
    variance = share @ features**2 - (share @ features) ** 2
    scale = jax.tree.leaves(chart.scales(params))[0]
    assert_allclose(
        scale, 1 / np.sqrt(np.maximum(variance, 1 / weights.sum())), rtol=1e-4
    )


def test_the_chart_of_a_sum_is_a_bijection_that_penalties_can_use(key):
    params = everything_params()
    data = Data(STATES)
    chart = closed_forms(EVERYTHING)["chart"](params, data)
    again = chart.inverse(chart.forward(params))
    for one, other in zip(*map(jax.tree.leaves, (again, params)), strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    factors = chart.scales(params)
    assert factors[0].bias == 0.0
    assert factors[4].coupling == 1.0
    weights = closed_forms(EVERYTHING)["couplings"](params)
    assert [weights[0].bias, weights[1].values, weights[2].coupling] == [0, 0, 1]
    start = ising.init(key, SIZE), products.init(products.triplets(SIZE))
    energy = sums.add(ising.energy, products.energy)
    sparse = pj.fit(key, pj.PseudoLikelihood(energy), start, data, penalty=pj.L1(0.5))
    assert not np.asarray(sparse.params[1].coupling).any()


def test_estimates_without_a_finite_value_are_reported():
    rows = Data(np.array([[1.0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]]))
    report = closed_forms(sums.add(population.energy, products.energy))["unbounded"]
    params = population.init(SIZE), products.init([(0, 1), (1, 2), (2, 3)])
    assert report(params, rows) == (
        "2 of 4 numbers of active units never occur (such as 4), so their values have "
        "no finite estimate; try last=2; 2 of 3 subsets of units are never on together "
        "(such as units 1, 2), so their couplings have no finite estimate"
    )
    energy = sums.add(population.energy, products.energy, plain_energy)
    entries = closed_forms(energy)["unbounded_entries"]
    found = entries((*params, random_ising(0, SIZE)), rows)
    assert found[0].values.tolist() == [False, False, True, True]
    assert found[1].coupling.tolist() == [False, True, True]
    assert not found[2].coupling.any()
    assert population.unbounded(population.init(SIZE, last=2), rows) == ""
    weighted = rows._replace(weights=np.array([0.0, 1, 1]))
    assert "try last=1" in population.unbounded(population.init(SIZE, last=2), weighted)
    three = population.unbounded(population.init(SIZE, last=3), rows)
    assert three.endswith("try last=2")
    drawn = projections.Params(np.zeros(2), ((0,), (2,)), ((1.0,), (1.0,)), (0.5, 0.5))
    assert "1 of 2 projections never change (such as number 1)" in (
        projections.unbounded(drawn, rows)
    )


def test_projections_are_drawn_from_the_key():
    drawn = projections.init(jax.random.key(0), 30, num_projections=50, num_units=4)
    again = projections.init(jax.random.key(0), 30, num_projections=50, num_units=4)
    other = projections.init(jax.random.key(1), 30, num_projections=50, num_units=4)
    assert drawn == again
    assert drawn.subsets != other.subsets
    weights = np.array(drawn.weights)
    assert abs(weights.std() - 1) < 0.25
    assert all(len(set(units)) == 4 for units in drawn.subsets)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sums.add(), "at least one, got"),
        (lambda: sums.add(ising.energy, 3), "energies must be functions"),
        (lambda: K_PAIRWISE(ising.init(jax.random.key(0), 4), STATES[0]), "got Params"),
        (
            lambda: K_PAIRWISE((1, 2, 3), STATES[0]),
            "tuple of the 2 parts of the sum, got 3",
        ),
        (lambda: population.init(4, first=3, last=2), "last must be from 3"),
        (
            lambda: population.init(4, last=5),
            "last must be from 1, which is first, to 4",
        ),
        (lambda: population.init(4, first=0), "first must be an integer of at least 1"),
        (lambda: population.energy(population.init(5), STATES[0]), "values up to 4"),
        (lambda: products.init([]), "at least one unit each"),
        (lambda: products.init([()]), "at least one unit each"),
        (lambda: products.init([(0, 0)]), "units of a subset must be distinct"),
        (lambda: products.init([(-1, 0)]), "units must be numbered from 0"),
        (lambda: products.init([(0, 1), (1, 0)]), r"\(0, 1\) more than once"),
        (
            lambda: products.energy(products.init([(0, 9)]), STATES[0]),
            "the 10 units of",
        ),
        (lambda: products.triplets(2), "size must be an integer of at least 3"),
        (
            lambda: projections.init(
                jax.random.key(0), 4, num_projections=1, num_units=5
            ),
            "must not exceed the 4 units",
        ),
    ],
)
def test_wrong_terms_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_terms_fit_and_sample_with_strict_settings(key):
    terms = sums.add(
        ising.energy, population.energy, products.energy, projections.energy
    )
    start = (
        ising.init(key, SIZE),
        population.init(SIZE, first=3),
        products.init(products.triplets(SIZE)),
        projections.init(key, SIZE, num_projections=3, num_units=2),
    )
    with jax.numpy_dtype_promotion("strict"), jax.debug_nans(True):
        objective = pj.PseudoLikelihood(terms)
        found = pj.fit(key, objective, start, STATES, penalty=pj.L2(0.1)).params
        options = dict(sampler=pj.HeatBath(), num_draws=2)
        draws = pj.sample(key, terms, found, STATES[:4], **options)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    assert set(np.unique(draws.x)) == {0, 1}
