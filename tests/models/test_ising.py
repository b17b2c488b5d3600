import chex
import jax
import numpy as np
import pytest
from small_models import all_states, matrix_of, plain_energy, random_ising

from probjax import L2, Data, PseudoLikelihood, UnboundedWarning, exact, fit, ising
from probjax.potential import closed_forms, potential

SIZE = 6
STATES = all_states(SIZE).astype(np.float32)

energies_of = jax.jit(jax.vmap(ising.energy, (None, 0)))
coupling_matrix = jax.jit(ising.coupling_matrix)


def test_matrix_is_symmetric_and_comes_back():
    params = random_ising(0, SIZE)
    matrix = np.asarray(coupling_matrix(params))
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_array_equal(matrix, matrix_of(params))
    chex.assert_trees_all_equal(ising.from_matrix(matrix), params)


def test_energy_is_the_quadratic_form_with_pairs_counted_twice():
    params = random_ising(0, SIZE)
    bias, coupling = np.asarray(params.bias), np.asarray(params.coupling)
    expected = [
        sum(bias[i] * x[i] for i in range(SIZE))
        + 2 * sum(c * x[i] * x[j] for c, (i, j) in zip(coupling, pairs(), strict=True))
        for x in STATES
    ]
    found = energies_of(params, STATES)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def pairs():
    return [(i, j) for i in range(SIZE) for j in range(i + 1, SIZE)]


@jax.jit
def gaps_of(params, x):
    """By closed forms, and by energies."""
    return [
        [jax.vmap(getattr(potential(energy, params), name))(x) for name in GAPS]
        for energy in (ising.energy, plain_energy)
    ]


GAPS = ("flip_gaps", "mirror_gap")


@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])
def test_closed_forms_equal_the_generic_path(scale):
    params = random_ising(3, SIZE, scale=scale)
    forms = {"flip_gaps", "mirror_gap", "flip_gap", "unbounded"}
    assert forms <= set(closed_forms(ising.energy))
    assert not closed_forms(plain_energy)
    for left, right in zip(*gaps_of(params, STATES), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5 * scale)


def test_closed_forms_have_the_right_derivatives(x64):
    params = random_ising(3, SIZE)
    x, mix = STATES[37].astype(float), np.arange(1.0, SIZE + 1)

    @jax.jit
    def flips(bias, coupling):
        return mix @ ising.flip_gaps(ising.Params(bias, coupling), x)

    @jax.jit
    def mirror(bias, coupling):
        return ising.mirror_gap(ising.Params(bias, coupling), x)

    at = np.asarray(params.bias), np.asarray(params.coupling)
    for form in (flips, mirror):
        chex.assert_numerical_grads(form, at, order=1)


def test_edges_restrict_the_couplings():
    edges = [(4, 1), (0, 5)]
    params = random_ising(0, SIZE, edges=edges)
    whole = coupling_matrix(params)
    matrix = np.array(whole)
    assert tuple(params.edges) == ((1, 4), (0, 5))
    assert matrix[1, 4] == matrix[4, 1] == np.asarray(params.coupling)[0]
    np.fill_diagonal(matrix, 0)
    assert np.count_nonzero(matrix) == 4
    chex.assert_trees_all_equal(ising.from_matrix(whole, edges=edges), params)


@pytest.mark.parametrize("spins", [False, True])
def test_fields_and_couplings_are_the_same_model_up_to_their_constant(spins):
    params = random_ising(1, SIZE)
    to_fields = jax.jit(ising.to_fields, static_argnames="spins")
    coupling, field, constant = map(np.asarray, to_fields(params, spins=spins))
    np.testing.assert_array_equal(np.diagonal(coupling), 0)
    states = 2 * STATES - 1 if spins else STATES
    first, second = np.triu_indices(SIZE, 1)
    pairs = (states[:, first] * states[:, second]) @ coupling[first, second]
    expected = constant - pairs - states @ field
    found = energies_of(params, STATES)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    back = ising.from_fields(coupling, field, spins=spins)
    chex.assert_trees_all_close(back, params, rtol=1e-5, atol=1e-5)
    assert spins or constant == 0


def test_positive_couplings_excite():
    params = ising.from_fields(np.array([[0.0, 2.0], [2.0, 0.0]]), np.zeros(2))
    second = np.asarray(exact.moments(ising.energy, params, 2).second)
    weight = np.exp(2.0)
    np.testing.assert_allclose(second[0, 1], weight / (weight + 3), rtol=1e-5)


def test_fields_keep_the_edges():
    edges = ((1, 4), (0, 5))
    params = random_ising(2, SIZE, edges=edges)
    found = ising.to_fields(params)
    back = ising.from_fields(found.coupling, found.field, edges=edges)
    chex.assert_trees_all_close(back, params, rtol=1e-6)


def test_a_positive_field_turns_units_on_and_positive_couplings_align_them():
    params = ising.from_fields(np.zeros((2, 2)), np.array([1.0, -1.0]), spins=True)
    mean = exact.moments(ising.energy, params, 2).mean
    np.testing.assert_allclose(mean, 1 / (1 + np.exp([-2.0, 2.0])), rtol=1e-5)
    params = ising.from_fields(
        np.array([[0.0, 0.5], [0.5, 0.0]]), np.zeros(2), spins=True
    )
    second = np.asarray(exact.moments(ising.energy, params, 2).second)
    np.testing.assert_allclose(4 * second[0, 1] - 1, np.tanh(0.5), rtol=1e-5)


def test_bits_and_spins_are_inverse_also_for_unsigned_integers():
    bits = np.array([[0, 1, 1]], np.uint8)
    np.testing.assert_array_equal(ising.spins(bits), [[-1, 1, 1]])
    np.testing.assert_array_equal(ising.bits(ising.spins(bits)), bits)


def test_centred_coordinates_are_those_of_standardised_units():
    rows = np.random.default_rng(0).random((50, SIZE)) < 0.3
    weights = np.arange(50.0)
    chart = ising.centred(Data(rows, weights))
    params = random_ising(0, SIZE)
    inner = jax.tree.map(np.asarray, jax.jit(chart.forward)(params))
    upper = np.zeros((SIZE, SIZE))
    upper[np.triu_indices(SIZE, 1)] = inner.coupling
    y = (STATES - np.asarray(chart.mean)) / np.asarray(chart.scale)
    through = y @ inner.bias + np.sum(y @ upper * y, axis=1)
    direct = np.asarray(energies_of(params, STATES))
    np.testing.assert_allclose(direct - direct[0], through - through[0], atol=1e-4)
    np.testing.assert_allclose(chart.mean, np.average(rows, axis=0, weights=weights))


def test_a_silent_unit_has_the_scale_of_one_change_however_rows_are_written():
    for data in (np.zeros((25, 2)), Data(np.zeros((1, 2)), np.array([25.0]))):
        np.testing.assert_allclose(ising.centred(data).scale, 0.2)


def test_whole_numbers_make_floating_params():
    params = ising.from_matrix(np.array([[1, 2], [2, 3]]))
    assert params.coupling.dtype == params.bias.dtype == np.float32


def test_bad_input_is_refused_in_a_sentence(key):
    lopsided = np.array([[0.0, 1.0], [2.0, 0.0]])
    with pytest.raises(ValueError, match=r"symmetric, got J\[0, 1\]=1.0 and J\[1, 0\]"):
        ising.from_matrix(lopsided)
    with pytest.raises(ValueError, match="square matrix, got shape"):
        ising.from_matrix(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"outside edges, got J\[0, 2\]"):
        ising.from_matrix(np.ones((3, 3)), edges=[(0, 1), (1, 2)])
    with pytest.raises(ValueError, match=r"units of 0 to 2, got \(1, 3\)"):
        ising.init(key, 3, edges=[(1, 3)])
    with pytest.raises(ValueError, match=r"two different units.*got \(1, 1\)"):
        ising.init(key, 3, edges=[(1, 1)])
    with pytest.raises(ValueError, match=r"not repeat, got \(0, 1\)"):
        ising.init(key, 3, edges=[(0, 1), (1, 0)])
    with pytest.raises(ValueError, match="size must be at least 1"):
        ising.init(key, 0)
    with pytest.raises(ValueError, match="J must be finite"):
        ising.from_matrix(np.full((2, 2), np.nan))
    with pytest.raises(ValueError, match=r"entry of field, got shapes \(2, 2\) and"):
        ising.from_fields(np.zeros((2, 2)), np.zeros((2, 1)), spins=True)
    with pytest.raises(ValueError, match="the 2 units of the chart, got 3"):
        ising.centred(np.zeros((5, 2))).forward(random_ising(0, 3))
    with pytest.raises(ValueError, match="0 or 1"):
        ising.centred(np.array([[-1.0, 1.0]]))
    with pytest.raises(ValueError, match=r"each of 3 pairs, got shape \(2,\)"):
        ising.energy(ising.Params(np.zeros(3), np.zeros(2)), np.zeros(3))
    with pytest.raises(ValueError, match="coupling must have a diagonal of zeros"):
        ising.from_fields(np.eye(2), np.zeros(2), spins=True)
    with pytest.raises(ValueError, match="-1 or 1"):
        ising.bits(np.array([0.0, 1.0]))
    with pytest.raises(ValueError, match=r"3 units of params, got shape \(4,\)"):
        ising.energy(random_ising(0, 3), np.zeros(4))


def test_pairs_that_lack_a_joint_state_are_told():
    data = all_states(3)
    params = random_ising(0, 3)
    assert ising.unbounded(params, Data(data)) == ""
    never_on = data[(data[:, 0] == 0) | (data[:, 2] == 0)]
    told = ising.unbounded(params, Data(never_on))
    assert told.startswith("1 of 3 pairs of units lack one of their four joint states")
    assert "(units 0 and 2 are never both on)" in told
    weights = ((data[:, 1] == 1) | (data[:, 2] == 0)).astype(float)
    told = ising.unbounded(params, Data(data, weights))
    assert "(units 1 and 2 are never off and on)" in told
    chain = random_ising(0, 3, edges=[(0, 1), (1, 2)])
    assert ising.unbounded(chain, Data(never_on)) == ""
    told = ising.unbounded(chain, Data(data[data[:, 1] == 1]))
    assert told.startswith("1 of 3 units never change (unit 1 is always on)")
    # What was not observed was not seen.
    mask = np.ones(data.shape, bool)
    mask[-1] = [True, True, False]
    mask[5] = [True, False, False]
    assert "0 and 2 are never both on" in ising.unbounded(
        params, Data(data, None, mask)
    )


def test_fit_warns_of_what_has_no_finite_estimate_and_regularises(key):
    data = all_states(3)
    never_on = data[(data[:, 0] == 0) | (data[:, 2] == 0)]
    objective = PseudoLikelihood(ising.energy)
    start = ising.Params(np.zeros(3), np.zeros(3))
    with pytest.warns(UnboundedWarning, match="no finite estimate; try a penalty"):
        free = fit(key, objective, start, never_on)
    held = fit(key, objective, start, never_on, penalty=L2(1e-3))
    loose, tight = (np.asarray(each.params.coupling)[1] for each in (free, held))
    assert loose > 2 * tight > 1
