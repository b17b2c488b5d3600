"""Bennett's acceptance ratio: an estimate of log Z from weights of both directions.

Let a be log weights of particles that were annealed from the base to the target, and b
those of particles annealed back, counted in the same direction (minus their own log
weights). Both have densities whose ratio is exp(log weight - log Z), so that log Z is
the intercept c of a logistic regression that separates the two sets:

    sum_i sigmoid(a_i - c + m) = sum_j sigmoid(-(b_j - c + m)),    m = log(n_b / n_a).

The estimate has the smallest variance of all weighted means over both sets. Its error
is that of a jackknife over batches of particles, which also holds if neighbouring
starts of the reverse run, such as successive draws of a chain, are correlated.

Reference: Bennett, J. Comput. Phys. 22, 245 (1976); Shirts, Bair, Hooker and Pande,
PRL 91, 140601 (2003).
"""

import jax
import jax.numpy as jnp
import numpy as np

from probjax.types import Array, Float, Scalar

NUM_BATCHES, NUM_HALVINGS = 20, 60


def bennett(
    forward: Float[Array, " particle"], backward: Float[Array, " start"]
) -> tuple[Scalar, Scalar]:
    """Estimate of log Z from both directions, and its standard error.

    The error is the scatter over batches of neighbouring particles. It holds for starts
    from a chain if their autocorrelation time is at most a batch, a twentieth of them.

    Args:
        forward: log weights of particles from the base to the target.
        backward: minus the log weights of particles from the target to the base.

    >>> rng = np.random.default_rng(0)  # weights that are log-normal, with log Z = 1
    >>> forward, backward = rng.normal(0.5, 1.0, 900), rng.normal(1.5, 1.0, 900)
    >>> log_z, stderr = jax.jit(bennett)(forward, backward)
    >>> bool(abs(log_z - 1) < 3 * stderr), bool(0.02 < stderr < 0.04)
    (True, True)
    """
    count = min(NUM_BATCHES, len(forward), len(backward))
    dtype = np.promote_types(forward.dtype, backward.dtype)
    forward, backward = forward.astype(dtype), backward.astype(dtype)
    ones = [jnp.ones_like(side) for side in (forward, backward)]
    whole = _balance(forward, backward, *ones)
    if count < 2:
        return whole, jnp.full_like(whole, jnp.nan)
    kept = [_all_but_one(len(side), count, side.dtype) for side in (forward, backward)]
    others = jax.vmap(_balance, in_axes=(None, None, 0, 0))(forward, backward, *kept)
    spread = jnp.sum((others - jnp.mean(others)) ** 2)
    return whole, jnp.sqrt(spread * (count - 1) / count)


def _all_but_one(length: int, count: int, kind: np.dtype) -> np.ndarray:
    """Row b is 1 for particles outside batch b and 0 for those in it."""
    batch = np.arange(length) * count // length
    return (batch[None, :] != np.arange(count)[:, None]).astype(kind)


def _balance(forward, backward, forward_weights, backward_weights):
    """Root c of the equation above, by bisection between the extreme weights."""
    ratio = jnp.log(backward_weights.sum() / forward_weights.sum())

    def excess(c):
        there = forward_weights @ jax.nn.sigmoid(forward - c + ratio)
        back = backward_weights @ jax.nn.sigmoid(-(backward - c + ratio))
        return there - back  # decreases with c

    def halve(_, ends):
        low, high = ends
        middle = low + (high - low) / 2
        is_above = excess(middle) > 0
        return jnp.where(is_above, middle, low), jnp.where(is_above, high, middle)

    finite = [jnp.where(jnp.isfinite(side), side, 0) for side in (forward, backward)]
    # At c beyond these ends, every term on one side of the equation is the larger.
    reach = 2 * jnp.abs(ratio) + float(np.log(len(forward) + len(backward))) + 1
    low = jnp.minimum(*(side.min() for side in finite)) - reach
    high = jnp.maximum(*(side.max() for side in finite)) + reach
    low, high = jax.lax.fori_loop(0, NUM_HALVINGS, halve, (low, high))
    alive = jnp.any(jnp.isfinite(forward)) & jnp.any(jnp.isfinite(backward))
    return jnp.where(alive, low + (high - low) / 2, jnp.nan)
