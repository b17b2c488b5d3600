"""The partition function of a restricted Boltzmann machine, from both sides.

Particles come from a machine without weights, whose units are on as often as the data
ask for, by weights that grow and one block Gibbs step a distribution; and they go back
from draws of the machine, the ends of chains that start from rows of data. Those chains
are a sampler's, not exact: what they have not reached, the upper side does not see.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import logit

from probjax import Bernoulli, rbm, sample, sandwich
from probjax.annealing import Bracket

# Units that were never on keep finite odds.
RARE = 1e-3


def bracket(
    key: jax.Array,
    params: rbm.Params,
    rows: jax.Array,
    *,
    num_particles: int,
    num_steps: int,
) -> Bracket:
    """Log Z by `num_steps` distributions each way, after a quarter as many to draw."""
    draw_key, run_key = jax.random.split(key)
    odds = logit(jnp.clip(rows.mean(0), RARE, 1 - RARE))
    active = jax.vmap(rbm.hidden_means, (None, 0))(params, rows).mean(0)
    draws = sample(
        draw_key,
        rbm.energy,
        params,
        rows[:: len(rows) // num_particles][:num_particles],
        sampler=rbm.BlockGibbs(),
        num_draws=1,
        num_warmup=num_steps // 4,
    )
    return sandwich(
        run_key,
        rbm.energy,
        params,
        Bernoulli(len(odds), odds),
        draws.x[:, 0],
        sampler=rbm.BlockGibbs(),
        num_steps=num_steps,
        path=rbm.Growth(odds, logit(jnp.clip(active, RARE, 1 - RARE))),
    )
