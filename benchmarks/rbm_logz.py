"""The log-likelihood of a public RBM, from both sides.

CD25(500) of Salakhutdinov and Murray, 784 x 500 units, trained on binarised digits. Its
partition function cannot be summed. Particles come from a machine without weights,
whose units are on as often as the digits ask for, by weights that grow and one block
Gibbs step a distribution; and they go back from draws of the machine, the ends of
chains that start from test digits. Those chains are a sampler's, not exact: what they
have not reached, the upper side does not see.

Needs --data DIR with rbm_cd25_500.npz.

Reference: Salakhutdinov and Murray, "On the quantitative analysis of deep belief
networks", ICML 2008: log Z 451.28, test -86.34 nats.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table
from probjax import Bernoulli, log_likelihood, rbm, sample, sandwich

LOG_Z, TEST = 451.28, -86.34
NUM_PARTICLES = 500


class Machine(NamedTuple):
    """A trained RBM with what belongs to it."""

    params: rbm.Params
    means: jax.Array
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
        means = jnp.asarray(stored["train_mean"])
        return Machine(params, means, jnp.asarray(test, jnp.float32))


def bracketed(machine: Machine, num_steps: int) -> Table:
    params = machine.params
    key = jax.random.key(0)
    draw_key, run_key = jax.random.split(key)
    # Pixels that were never on keep finite odds.
    means = jnp.clip(machine.means.astype(jnp.float32), 1e-3, 1 - 1e-3)
    odds = jax.scipy.special.logit(means)
    fields = machine.test @ params.weight + params.hidden_bias[None]
    hidden_odds = jax.scipy.special.logit(jax.nn.sigmoid(fields).mean(0))
    begun = time.perf_counter()
    draws = sample(
        draw_key,
        rbm.energy,
        params,
        machine.test[:: len(machine.test) // NUM_PARTICLES][:NUM_PARTICLES],
        sampler=rbm.BlockGibbs(),
        num_draws=1,
        num_warmup=num_steps // 4,
    )
    x = jax.block_until_ready(draws.x[:, 0])
    drawn = time.perf_counter()
    found = sandwich(
        run_key,
        rbm.energy,
        params,
        Bernoulli(len(odds), odds),
        x,
        sampler=rbm.BlockGibbs(),
        num_steps=num_steps,
        path=rbm.Growth(odds, hidden_odds),
    )
    test = log_likelihood(rbm.energy, params, machine.test, found)
    jax.block_until_ready(test)
    ended = time.perf_counter()
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
        f"Seconds, compiling and all: {drawn - begun:.0f} to draw, "
        f"{ended - drawn:.0f} both ways. Interval: "
        f"{float(found.upper - found.lower):.2f} nats. ESS "
        f"{float(forward.ess):.0f} and {float(reverse.ess):.0f}. Of single directions "
        "the bounds are means of log weights. Targets: within .2 of the published "
        "figures, an interval below .5, under two minutes.",
    )
