"""The same numbers on 1 device, on 8, and in 2 processes with 2 devices each."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import Data
from probjax.devices import spread

SCRIPT = Path(__file__).with_name("on_devices.py")


def start(num_devices, *arguments):
    # Nothing here is worth optimising: compiling is most of what it costs.
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    flags += " --xla_backend_optimization_level=0"
    path = os.pathsep.join([str(SCRIPT.parents[1]), str(SCRIPT.parent)])
    env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": path}
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    address = f"localhost:{free_port()}"
    started = [
        start(1, folder / "1.npz"),
        start(8, folder / "8.npz"),
        start(2, folder / "2x2.npz", address, 2, 0),
        start(2, folder / "2x2.npz", address, 2, 1),
    ]
    try:
        for process in started:
            _, said = process.communicate(timeout=600)
            assert process.returncode == 0, said
    finally:
        for process in started:
            process.kill()
    return {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")}


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


@pytest.mark.parametrize("name", ["bits", "means", "log_z", "reverse", "log_p"])
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


def test_rows_that_do_not_divide_are_refused_or_weigh_nothing(monkeypatch):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
    data = spread(Data(np.arange(3.0)[:, None]), mesh)
    assert data.weights is None
    np.testing.assert_array_equal(data.x[:, 0], jnp.arange(3.0))
