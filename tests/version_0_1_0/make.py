"""Write the files of this folder. It must run with version 0.1.0 of probjax.

    PYTHONPATH=FOLDER_OF_VERSION_0_1_0 python make.py

The numbers in those fields that users read are written to `expected.json`, too.
"""

import json
from operator import attrgetter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import probjax
from probjax import (
    HMC,
    L1,
    MPF,
    Checkpoint,
    Gaussian,
    HeatBath,
    ais,
    cli,
    fit,
    ising,
    rbm,
    sample,
    storage,
)
from probjax.annealing import Pilot

HERE = Path(__file__).parent
KEY = jax.random.key(0)
BITS = np.random.default_rng(0).integers(0, 2, (40, 3))


def quartic(params, x):
    return params * jnp.sum(x**4) / 4 + x[0] * x[1] / 2


def write_model():
    table = HERE / "table.csv"
    table.write_text("\n".join(",".join("ab"[bit] for bit in row) for row in BITS))
    assert cli.main(["fit", str(table), "--out", str(HERE / "model.npz")]) == 0
    table.unlink()
    return storage.load(HERE / "model.npz")


def write_checkpoint():
    start = ising.from_matrix(np.zeros((3, 3)))
    checkpoint = Checkpoint(HERE / "checkpoint.npz")
    fit(
        KEY,
        MPF(ising.energy),
        start,
        BITS,
        steps_per_round=20,
        checkpoint=checkpoint,
    )


def trees():
    start = ising.from_matrix(np.zeros((3, 3)))
    chains = dict(num_draws=2, num_warmup=3)
    hmc = dict(sampler=HMC(0.5), **chains)
    return {
        "fit": fit(KEY, MPF(ising.energy), start, BITS),
        "fit_l1": fit(KEY, MPF(ising.energy), start, BITS, penalty=L1(0.01)),
        "draws_hmc": sample(KEY, quartic, 1.0, jnp.zeros((2, 2)), **hmc),
        "draws_heat_bath": sample(
            KEY, ising.energy, start, BITS[:2], sampler=HeatBath(), **chains
        ),
        "annealed": ais(
            KEY,
            quartic,
            1.0,
            Gaussian(2),
            sampler=HMC(0.5),
            num_particles=8,
            num_steps=20,
            pilot=Pilot(),
        ),
        "rbm": rbm.init(KEY, 3, 2, data=BITS),
    }


FIELDS = {
    "model": "family params.bias params.coupling base.log_odds alphabet names",
    "fit": "params.bias params.coupling loss losses gradient_norm opt_state.point",
    "fit_l1": "params.bias params.coupling loss losses converged opt_state.point",
    "draws_hmc": "x info.accept info.energy state.x step",
    "draws_heat_bath": "x info.accept state.x step",
    "annealed": "log_z stderr bound ess log_weights x accept plan.betas plan.log_step "
    "plan.metric particles.log_weight particles.state.x",
    "rbm": "weight visible_bias hidden_bias",
}


def numbers(name, tree):
    """Values of some fields, by the paths that they have now."""
    fields = {path: attrgetter(path)(tree) for path in FIELDS[name].split()}
    return {
        path.replace("plan.", "schedule."): np.asarray(value).tolist()
        if hasattr(value, "dtype")
        else value
        for path, value in fields.items()
    }


if __name__ == "__main__":
    assert probjax.__version__ == "0.1.0"
    assert storage._FORMAT == "probjax 1"
    expected = {"model": numbers("model", write_model())}
    for name, tree in trees().items():
        storage.save(HERE / f"{name}.npz", tree)
        expected[name] = numbers(name, tree)
    write_checkpoint()
    (HERE / "expected.json").write_text(json.dumps(expected, indent=None) + "\n")
