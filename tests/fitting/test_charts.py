import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import all_states, flat_ising, matrix_of, random_ising
from test_contract import traces

from probjax import L1, L2, Data, PseudoLikelihood, fit, ising, potts, recipe
from probjax.fitting import AnyOf, GradientNorm, StoppingRule
from probjax.fitting.charts import Affine, Composed, Frozen, Positive
from probjax.trees import as_array

SIZE = 4
ADAM = optax.adam(0.5)
# Its decay pulls at coordinates that have no gradient too.
ADAMW = optax.adamw(0.05, weight_decay=1e-3)
SCALE_ONLY = {"scale": True, "shift": False}
BASIS = matrix_of(random_ising(3, SIZE, scale=0.5))
TREE = {
    "scale": (as_array([0.5, 2.0, 3.0]), as_array(4.0)),
    "shift": as_array(-np.ones(2)),
}


@jax.jit
def forward(chart, params):
    return chart.forward(params)


@jax.jit
def inverse(chart, coordinates):
    return chart.inverse(coordinates)


def energy(params, x):
    return params["scale"] * (x @ BASIS @ x) + params["shift"] @ x


def truth(scale):
    return {"scale": as_array(scale), "shift": as_array(np.linspace(-1, 1, SIZE))}


def everything_drawn_from(params):
    """All states with the probabilities of a model, so that its fit is the truth."""
    x = all_states(SIZE)
    scale, shift = np.asarray(params["scale"]), np.asarray(params["shift"])
    odds = np.exp(-scale * np.sum(x @ BASIS * x, 1) - x @ shift)
    return Data(x, odds / odds.sum())


@pytest.mark.parametrize(
    ("where", "logarithms"),
    [
        (True, [True, True, True, True]),
        ((as_array([True, False, True]), True), [True, False, True, True]),
        ((np.array([False, False, True]), False), [False, False, True, False]),
    ],
    ids=["subtree", "entries", "numpy"],
)
def test_positive_entries_are_exponentials_of_their_coordinates(where, logarithms):
    chart = Positive({"scale": where, "shift": False})
    coordinates = forward(chart, TREE)
    chex.assert_trees_all_close(inverse(chart, coordinates), TREE, rtol=1e-6)
    entries = np.array([0.5, 2.0, 3.0, 4.0])
    expected = np.where(logarithms, np.log(entries), entries)
    found = np.append(*coordinates["scale"])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(coordinates["shift"], TREE["shift"])


def test_affine_coordinates_are_shifted_and_scaled_entries():
    chart = Affine(shift={"scale": (0.5, 1.0), "shift": 0.0}, scale=-2.0)
    coordinates = forward(chart, TREE)
    expected = {"scale": ([0.0, -0.75, -1.25], -1.5), "shift": [0.5, 0.5]}
    for found, known in zip(
        jax.tree.leaves(coordinates),
        (*expected["scale"], expected["shift"]),
        strict=True,
    ):
        np.testing.assert_allclose(found, known)
    chex.assert_trees_all_close(inverse(chart, coordinates), TREE, rtol=1e-6)
    lengths = as_array([1.0, 2.0, 4.0])
    chart = Affine(scale={"scale": (lengths, 1.0), "shift": 1.0})
    np.testing.assert_allclose(forward(chart, TREE)["scale"][0], [0.5, 1, 0.75])
    chex.assert_trees_all_equal(forward(Affine(), TREE), TREE)


def test_affine_before_positive_keeps_entries_beyond_a_number():
    chart = Composed((Affine(1.5, -1.0), Positive()))
    points = np.array([-80.0, -1.0, 3.0])
    below = np.asarray(inverse(chart, points))
    np.testing.assert_allclose(below, 1.5 - np.exp(points), rtol=1e-6)
    assert below.max() <= 1.5
    with pytest.raises(ValueError, match="must be above zero .*, got -0.5"):
        chart.forward(as_array([1.0, 2.0]))


def test_frozen_entries_are_values_both_ways():
    values = jax.tree.map(lambda leaf: as_array(10 + np.asarray(leaf)), TREE)
    free = {"scale": (as_array([True, False, False]), False), "shift": True}
    chart = Frozen(values, free)
    expected = {"scale": (as_array([0.5, 12, 13]), as_array(14.0)), "shift": -1.0}
    for there in (forward(chart, TREE), inverse(chart, TREE)):
        chex.assert_trees_all_equal(there["scale"], expected["scale"])
        np.testing.assert_array_equal(there["shift"], expected["shift"])
    chex.assert_trees_all_equal(inverse(Frozen(values, False), TREE), values)
    chex.assert_trees_all_equal(inverse(Frozen(values, True), TREE), TREE)


def test_composed_charts_undo_each_other_in_turn():
    double = Frozen(
        jax.tree.map(lambda leaf: as_array(2 * np.asarray(leaf)), TREE),
        {"scale": False, "shift": True},
    )
    log = Positive(SCALE_ONLY)
    coordinates = forward(Composed((double, log)), TREE)
    np.testing.assert_allclose(coordinates["scale"][1], np.log(8.0), rtol=1e-6)
    back = inverse(Composed((double, log)), coordinates)
    chex.assert_trees_all_close(back, forward(double, TREE), rtol=1e-6)
    # The other way round the frozen value is a logarithm.
    back = inverse(Composed((log, double)), coordinates)
    np.testing.assert_allclose(back["scale"][1], np.exp(8.0), rtol=1e-6)


def test_gradients_are_finite_where_a_logarithm_would_have_none():
    chart = Positive(as_array([True, False, False]))
    entries, huge = np.array([2.0, 0.0, -1.0]), np.array([0.0, 1000.0, -1.0])

    def slope(map):
        return jax.jit(jax.grad(lambda entries: map(entries).sum()))

    np.testing.assert_allclose(slope(chart.forward)(entries), [0.5, 1, 1])
    np.testing.assert_allclose(slope(chart.inverse)(huge), [1, 1, 1])


def test_a_frozen_fit_is_the_fit_of_the_free_parameters_alone(x64, key):
    generator = np.random.default_rng(0)
    x = np.arange(2**SIZE)[:, None] >> np.arange(SIZE) & 1
    weights = generator.uniform(size=2**SIZE)
    data = Data(x, weights)
    values = ising.Params(
        *map(as_array, (generator.normal(size=4), np.linspace(-1, 1, 6)))
    )
    free = np.array([True, False, True, True, False, True])
    chart = Frozen(values, ising.Params(bias=False, coupling=free))

    def reduced(free_couplings, x):
        coupling = values.coupling.at[np.flatnonzero(free)].set(free_couplings)
        return ising.energy(ising.Params(values.bias, coupling), x)

    objective = PseudoLikelihood(ising.energy)
    start = flat_ising(SIZE)
    found = fit(key, objective, start, data, chart=chart)
    alone = fit(key, PseudoLikelihood(reduced), as_array(np.zeros(4)), data)
    assert found.converged
    np.testing.assert_array_equal(found.params.bias, values.bias)
    coupling = np.asarray(found.params.coupling)
    np.testing.assert_array_equal(coupling[~free], np.asarray(values.coupling)[~free])
    np.testing.assert_allclose(coupling[free], alone.params, atol=1e-7)
    np.testing.assert_allclose(found.losses, alone.losses, rtol=1e-12)

    @jax.jit
    @jax.grad
    def slope_of(params):
        losses = jax.vmap(lambda x: objective.row(params, x, ()))(x.astype(float))
        return weights @ losses / weights.sum()

    slope = jax.tree.map(np.abs, slope_of(found.params))
    largest = slope.coupling[free].max()
    np.testing.assert_allclose(found.gradient_norm, largest, atol=1e-12)
    assert slope.coupling[~free].min() > 1e-3
    assert slope.bias.min() > 1e-3


def test_a_positive_scale_reaches_the_truth_and_never_zero(key):
    data = everything_drawn_from(truth(0.2))
    start = {"scale": as_array(3.0), "shift": as_array(np.zeros(SIZE))}
    options = dict(optimizer=ADAM, steps_per_round=300, stop=RULE)
    objective = PseudoLikelihood(energy)
    # Steps of adam this long lead a scale without a chart below zero.
    assert len(fit(key, objective, start, data, **options).losses) < 300
    chart = Positive(SCALE_ONLY)
    found = fit(key, objective, start, data, chart=chart, **options)
    assert found.converged
    chex.assert_trees_all_close(found.params, truth(0.2), atol=1e-3)


@recipe
class ScaleIsNotPositive(StoppingRule):
    def is_met(self, progress, data):
        return progress.params["scale"] <= 0


RULE = AnyOf((ScaleIsNotPositive(), GradientNorm()))


def test_composed_charts_fit_without_compiling_again(monkeypatch, key):
    traces(monkeypatch, 1)
    start = {"scale": as_array(0.5), "shift": as_array(np.zeros(SIZE))}
    log = Positive(SCALE_ONLY)
    for scale, held in ((0.3, 1), (2.0, 3)):
        goal = truth(scale)
        free = {"scale": True, "shift": as_array(np.arange(SIZE) >= held)}
        chart = Composed((Frozen(goal, free), log))
        data = everything_drawn_from(goal)
        found = fit(key, PseudoLikelihood(energy), start, data, chart=chart)
        assert found.converged
        chex.assert_trees_all_close(found.params, goal, atol=1e-3)
        np.testing.assert_array_equal(
            np.asarray(found.params["shift"])[:held],
            np.asarray(goal["shift"])[:held],
        )


def test_named_optimizers_leave_frozen_entries_alone_under_vmap(key):
    each = [truth(scale) for scale in (0.3, 1.0, 2.0)]
    goals = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
    all_data = map(everything_drawn_from, each)
    data = jax.tree.map(lambda *leaves: np.stack(leaves).astype(float), *all_data)
    start = {"scale": as_array(0.5), "shift": as_array(np.zeros(SIZE))}

    def one(goal, data):
        chart = Composed((Frozen(goal, SCALE_ONLY), Positive(SCALE_ONLY)))
        options = dict(optimizer=ADAMW, steps_per_round=300, chart=chart)
        return fit(key, PseudoLikelihood(energy), start, data, **options).params

    found = jax.jit(jax.vmap(one))(goals, data)
    np.testing.assert_array_equal(found["shift"], goals["shift"])
    np.testing.assert_allclose(found["scale"], goals["scale"], atol=1e-2)


def test_starts_that_are_not_positive_are_refused(key):
    data = everything_drawn_from(truth(1.0))
    with pytest.raises(ValueError, match="must be above zero .*, got -0.5"):
        fit(
            key,
            PseudoLikelihood(energy),
            {"scale": as_array(-0.5), "shift": as_array(np.zeros(SIZE))},
            data,
            chart=Positive(SCALE_ONLY),
        )
    held = Frozen(as_array(np.zeros(2)), False)
    with pytest.raises(ValueError, match="must be above zero .*, got 0.0"):
        Composed((held, Positive())).forward(as_array(np.ones(2)))
    assert forward(Positive(), np.zeros(2)).tolist() == [-np.inf] * 2


@pytest.mark.parametrize(
    ("chart", "message"),
    [
        (Frozen({"scale": 1.0}, True), "values must be a tree like params"),
        (
            Frozen(TREE | {"shift": np.ones(3)}, True),
            r"got .*'shift': \(3,\)",
        ),
        (Frozen(TREE, {"scale": True}), "free must be a tree like params or a prefix"),
        (Frozen(TREE, 1.0), r"free must hold .* for a leaf of shape \(3,\), got float"),
        (
            Positive({"scale": True, "shift": as_array(np.ones(1, bool))}),
            r"bool of shape \(1,\)",
        ),
        (
            Positive(as_array(1)),
            "where must hold one boolean or an array",
        ),
        (Affine({"scale": 1.0}), "shift must be a tree like params or a prefix"),
        (Affine(True), "shift must hold one number or an array .* got bool"),
        (
            Affine(scale={"scale": 1.0, "shift": as_array(np.ones(1))}),
            r"scale must hold .* for a leaf of shape \(2,\), got float32 of shape \(1,",
        ),
    ],
)
def test_trees_that_do_not_fit_are_refused(chart, message):
    with pytest.raises(ValueError, match=message):
        chart.forward(TREE)


@pytest.mark.parametrize("scale", [0.0, np.inf, {"scale": 1.0, "shift": np.nan}])
def test_scales_that_lead_nowhere_are_refused(scale):
    with pytest.raises(ValueError, match="scale must be finite and not zero"):
        Affine(scale=scale)


def family_of_letters():
    """Rows of four kinds; at each site each kind has few letters of 20."""
    generator = np.random.default_rng(0)
    kind, sites, letters = generator.integers(0, 4, 1000), 8, 20
    frequency = generator.dirichlet(np.full(letters, 0.1), size=(4, sites))
    above = generator.random((1000, sites, 1)) > frequency[kind].cumsum(-1)
    return above.sum(-1).clip(0, letters - 1).astype(np.float32)


START = jax.tree.map(jnp.zeros_like, potts.init(jax.random.key(0), 8, 20))


@pytest.mark.parametrize(
    ("penalty", "share"),
    [(L2(0.01, weights=potts.couplings_only(START)), 0.6), (L1(0.01), 1.3)],
    ids=["L2", "L1"],
)
def test_scales_with_the_penalty_save_steps_and_keep_the_minimum(penalty, share, key):
    x = family_of_letters()
    args = key, PseudoLikelihood(potts.energy, num_states=20), START, x
    options = {"penalty": penalty, "stop": GradientNorm(1e-5)}
    found = fit(*args, **options)
    centred = potts.data_chart(START, Data(jnp.asarray(x)))
    unscaled = fit(*args, chart=centred, **options)
    assert len(found.losses) < share * len(unscaled.losses)
    values = [
        float(each.loss + found.penalty.value(each.params))
        for each in (found, unscaled)
    ]
    assert abs(values[0] - values[1]) < 1e-4
