"""The log-likelihood of a public RBM, from both sides.

CD25(500) of Salakhutdinov and Murray, 784 x 500 units, trained on binarised digits. Its
partition function cannot be summed: `machine_brackets` says how it is bounded.

Needs --data DIR with rbm_cd25_500.npz.

Reference: Salakhutdinov and Murray, "On the quantitative analysis of deep belief
networks", ICML 2008: log Z 451.28, test -86.34 nats.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table, timed
from benchmarks.machine_brackets import bracket
from probjax import log_likelihood, rbm

LOG_Z, TEST = 451.28, -86.34
NUM_PARTICLES = 500


class Machine(NamedTuple):
    """A trained RBM and the digits to judge it by."""

    params: rbm.Params
    test: jax.Array


def run(options: Options) -> Iterator[Table]:
    if options.data is None:
        raise SystemExit("rbm-logz needs --data DIR with rbm_cd25_500.npz")
    machine = load(options.data / "rbm_cd25_500.npz")
    yield bracketed(machine, 500 if options.quick else 7000)


def load(path) -> Machine:
    with np.load(path) as stored:
        params = rbm.Params(
            *(
                jnp.asarray(stored[name], jnp.float32)
                for name in ("weight", "visible_bias", "hidden_bias")
            )
        )
        test = np.unpackbits(stored["test_packed"], axis=1)
        return Machine(params, jnp.asarray(test, jnp.float32))


def bracketed(machine: Machine, num_steps: int) -> Table:
    found, seconds = timed(
        lambda: bracket(
            jax.random.key(0),
            machine.params,
            machine.test,
            num_particles=NUM_PARTICLES,
            num_steps=num_steps,
        )
    )
    test = log_likelihood(rbm.energy, machine.params, machine.test, found)
    forward, reverse = found.forward, found.reverse
    return Table(
        f"CD25(500): {NUM_PARTICLES} particles each way, {num_steps:,} distributions",
        ("quantity", "value", "lower", "upper", "published"),
        [
            ("log Z", found.log_z, found.lower, found.upper, LOG_Z),
            ("test log-likelihood", test.value, test.lower, test.upper, TEST),
            ("log Z, from the base", forward.log_z, forward.bound, "", ""),
            ("log Z, from the target", reverse.log_z, "", reverse.bound, ""),
        ],
        f"Seconds, compiling and all: {seconds:.0f} to draw and both ways. Interval: "
        f"{float(found.upper - found.lower):.2f} nats. ESS "
        f"{float(forward.ess):.0f} and {float(reverse.ess):.0f}. Of single directions "
        "the bounds are means of log weights. Targets: within .2 of the published "
        "figures, an interval below .5, under two minutes.",
    )
