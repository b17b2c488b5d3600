"""The partition function of a restricted Boltzmann machine, from both sides.

Particles come from a machine without weights, whose units are on as often as the data
ask for, by weights that grow and one block Gibbs step a distribution; and they go back
from draws of the machine, the ends of chains that start from rows of data. Those chains
are a sampler's, not exact: what they have not reached, the upper side does not see.
"""

import jax

from probjax import rbm, sample, sandwich
from probjax.annealing import Bracket


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
    base, path = rbm.start_growth(params, rows)
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
        base,
        draws.x[:, 0],
        sampler=rbm.BlockGibbs(),
        num_steps=num_steps,
        path=path,
    )
