"""Tables of couplings with names and standard errors."""

import builtins

import numpy as np
import pandas
import pytest

from probjax import ising
from probjax.fitting.uncertainty import Uncertainty

NAMES = ["a", "b", "c"]
COUPLINGS = np.array([-0.5, 1.0, 0.25], np.float32)
PARAMS = ising.Params(np.full(3, 9, np.float32), COUPLINGS)


def bars(*stderr):
    """Error bars of the biases, which do not matter, and of the couplings given."""
    variances = np.array([1.0, 1, 1, *stderr]) ** 2
    return Uncertainty(PARAMS, np.diag(variances), loose=np.zeros((6, 1)))


def test_couplings_are_those_of_fields_and_the_strongest_come_first():
    found = ising.coupling_table(PARAMS, names=NAMES)
    pairs = list(zip(found.first, found.second, strict=True))
    assert pairs == [("a", "c"), ("a", "b"), ("b", "c")]
    np.testing.assert_array_equal(found.coupling, [-2, 1, -0.5])
    fields = np.asarray(ising.to_fields(PARAMS).coupling)
    np.testing.assert_array_equal(found.coupling, fields[[0, 0, 1], [2, 1, 2]])
    assert found.stderr is None
    assert found.z is None


@pytest.mark.parametrize(("spins", "factor"), [(False, 2.0), (True, 0.5)])
def test_with_error_bars_the_surest_come_first(spins, factor):
    found = ising.coupling_table(
        PARAMS, uncertainty=bars(0.125, 1.0, 0.125), spins=spins
    )
    np.testing.assert_array_equal(found.first, [0, 1, 0])
    np.testing.assert_array_equal(found.second, [1, 2, 2])
    np.testing.assert_allclose(found.z, [4, -2, -1], rtol=1e-5)
    stderr = factor * np.array([0.125, 0.125, 1.0])
    np.testing.assert_allclose(found.stderr, stderr, rtol=1e-5)
    fields = np.asarray(ising.to_fields(PARAMS, spins=spins).coupling)
    np.testing.assert_allclose(found.coupling, fields[[0, 1, 0], [1, 2, 2]])


def test_couplings_that_are_not_determined_come_last():
    loose = np.zeros((6, 1))
    loose[4] = 1
    uncertain = bars(0.5, 0, 0)._replace(loose=loose)
    found = ising.coupling_table(PARAMS, uncertainty=uncertain, names=NAMES)
    assert found.second[0] == "b"
    # The coupling of a and c is undetermined, that of b and c has no error.
    np.testing.assert_array_equal(found.stderr[1:], [np.inf, 0])
    np.testing.assert_array_equal(found.z[1:], [0, np.nan])
    assert "inf" in found.describe()


def test_only_the_edges_are_listed():
    params = ising.Params(np.zeros(3), np.array([1.0]), edges=((0, 2),))
    found = ising.coupling_table(params, names=NAMES)
    assert (found.first[0], found.second[0], len(found.coupling)) == ("a", "c", 1)


def test_a_table_prints_few_lines_and_becomes_a_data_frame():
    found = ising.coupling_table(PARAMS, uncertainty=bars(0.1, 0.1, 0.1), names=NAMES)
    assert len(found.describe(2).splitlines()) == 5
    assert "... and 1 more" in found.describe(2)
    assert repr(found) == f"CouplingTable: {found.describe()}"
    frame = found.to_pandas()
    assert list(frame.columns) == ["first", "second", "coupling", "stderr", "z"]
    pandas.testing.assert_series_equal(
        frame["coupling"], pandas.Series(found.coupling, name="coupling")
    )
    plain = ising.coupling_table(PARAMS).to_pandas()
    assert list(plain.columns) == ["first", "second", "coupling"]


def test_without_pandas_the_error_names_it(monkeypatch):
    original = builtins.__import__

    def without_pandas(name, *args, **kwargs):
        if name == "pandas":
            raise ImportError
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(ImportError, match="pip install pandas"):
        ising.coupling_table(PARAMS).to_pandas()


def test_names_and_error_bars_must_fit_the_parameters():
    with pytest.raises(ValueError, match="names must have 3 entries, got 2"):
        ising.coupling_table(PARAMS, names=["a", "b"])
    other = ising.Params(np.zeros(2), np.zeros(1))
    with pytest.raises(ValueError, match="with 1 couplings, got 3 standard errors"):
        ising.coupling_table(other, uncertainty=bars(1, 1, 1))
