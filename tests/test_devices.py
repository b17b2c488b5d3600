"""The same numbers on 1 device, on 8, and in 2 processes with 2 devices each."""

from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.launch import finish, launch
from probjax import Data
from probjax.devices import spread

pytestmark = pytest.mark.platforms

SCRIPT = str(Path(__file__).with_name("on_devices.py"))
# Nothing here is worth optimising: compiling is most of what it costs.
FAST = "--xla_backend_optimization_level=0"
RUNS = {"1": (1, 1), "8": (1, 8), "2x2": (2, 2)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    started = []
    for name, shape in RUNS.items():
        command = [SCRIPT, str(folder / f"{name}.npz")]
        started += launch(*shape, command, flags=FAST)
    finish(started)
    return {name: dict(np.load(folder / f"{name}.npz")) for name in RUNS}


@pytest.fixture(params=["8", "2x2"])
def both(request, runs):
    return runs["1"], runs[request.param]


def test_random_streams_are_the_same_to_the_bit(both):
    one, many = (run["streams"] for run in both)
    np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize("name", ["fit", "fit_loss", "error_bars", "batches"])
def test_fits_are_the_same_but_for_rounding(both, name):
    one, many = (run[name] for run in both)
    # A fit ends where its gradient is below 1e-5, not at the very minimum.
    rtol = 1e-4 if name in ("fit", "error_bars") else 1e-5
    np.testing.assert_allclose(one, many, rtol=rtol, atol=rtol)


def test_host_sees_all_rows(both):
    one, many = (run["counts"] for run in both)
    assert one.sum() == 994
    np.testing.assert_array_equal(one, many)


FIRST = ["bits", "reals", "momenta", "accept", "weights"]


@pytest.mark.parametrize("name", FIRST)
def test_draws_after_a_step_are_the_same(both, name):
    one, many = (run[f"first_{name}"] for run in both)
    assert len(one) == 192
    np.testing.assert_allclose(one, many, rtol=1e-6, atol=1e-6)


def test_rows_have_the_same_likelihood(both):
    one, many = (run["first_log_p"] for run in both)
    np.testing.assert_allclose(one, many, atol=1e-4)


LONG = ["bits", "rbg_bits", "unsafe_rbg_bits", "means", "log_z", "reverse", "log_p"]


@pytest.mark.parametrize("name", LONG)
def test_long_runs_agree_within_their_errors(both, name):
    (one, noise), (many, other) = (run[f"long_{name}"] for run in both)
    assert np.all(np.abs(one - many) < 5 * np.hypot(noise, other))


def test_each_device_holds_its_share_and_no_more(runs):
    for run in runs.values():
        shares = [run[name] for name in run if name.startswith("layout_")]
        assert len(shares) == 5
        np.testing.assert_array_equal(np.concatenate(shares), 1)


def test_chains_have_no_word_of_each_other(runs):
    for run in runs.values():
        np.testing.assert_array_equal(run["collectives"], 0)


def test_what_cannot_be_spread_is_refused_and_keys_can():
    with pytest.raises(ValueError, match=r"one length, got arrays of lengths \[2, 3\]"):
        spread((np.ones(2), np.ones(3)))
    keys = jax.random.split(jax.random.key(0), 4)
    assert np.all(spread(keys) == keys)
    np.testing.assert_array_equal(spread(Data(np.ones((2, 1)), [1, 2])).weights, [1, 2])


def test_blocks_are_fitted_on_many_devices(runs):
    one, many = (runs[name]["blocks"] for name in ("1", "8"))
    np.testing.assert_allclose(one, many, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", [".npz", ""], ids=["npz", "orbax"])
@pytest.mark.parametrize("job", ["fit", "ais"])
def test_runs_that_were_cut_go_on_where_they_were(runs, job, form):
    if not form:
        pytest.importorskip("orbax.checkpoint")
    for run in runs.values():
        assert run[f"lay_{job}{form}"].all()
        assert run[f"cut_{job}{form}"].all()


def test_one_device_changes_nothing():
    rows = np.arange(3.0)[:, None]
    data = spread(Data(rows))
    assert data.weights is None
    np.testing.assert_array_equal(data.x, rows)
