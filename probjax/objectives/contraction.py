"""Minimum KL contraction: what of the divergence is lost when sites are erased.

Erasing the sites b of a block takes data p and model q to their marginals over the
rest. That never lengthens the way between them, and what it shortens it by is the
divergence between the block's conditionals,

    KL(p||q) - KL(p_rest||q_rest) = < KL(p(x_b | rest) || q(x_b | rest)) >_p,

which is zero where the two agree. Summed over blocks, less what depends on p alone, it
is a loss without partition function,

    mean over rows of -sum_b log q(x_b | rest)
      = mean over rows of sum_b log sum_y exp(E(x) - E(x with block b set to y)).

Single sites are the pseudolikelihood, one block of all sites is the likelihood, and
pairs, or the edges of a graph, are in between in cost and in what they see.

Reference: Lyu, "Unifying Non-Maximum Likelihood Learning Objectives with Minimum KL
Contraction", NeurIPS 2011; thesis, introduction, "Minimum KL contraction".
"""

from collections.abc import Iterable

from probjax.connectivity.blocks import BlockChanges, as_blocks
from probjax.objectives.gaps import GapObjective
from probjax.objectives.pseudolikelihood import log_conditionals
from probjax.trees import weighted_mean
from probjax.types import Energy


def MinimumKLContraction(
    energy: Energy, *, blocks: Iterable[Iterable[int]], num_states: int = 2
) -> GapObjective:
    """Mean over rows of -sum_b log p(x_b | the other sites), over blocks b of sites.

    A row costs as many energies as its blocks have configurations together; pairs of
    bits cost one `flip_gaps` per site where the energy has that closed form.

    Args:
        blocks: the sites that are erased together, as `pairs(size)` or the edges of a
            graph; a site may be in several.
        num_states: letters of a site; with 2, states are bits.

    >>> import jax
    >>> from probjax import ising, loss
    >>> from probjax.connectivity import pairs
    >>> flat, rows = ising.from_matrix(jax.numpy.zeros((3, 3))), jax.numpy.eye(3)
    >>> objective = MinimumKLContraction(ising.energy, blocks=pairs(3))
    >>> round(float(loss(jax.random.key(0), objective, flat, rows)), 4)  # 3 log 4
    4.1589
    """
    changes = BlockChanges(as_blocks(blocks), num_states)
    return GapObjective(energy, changes, log_conditionals, weighted_mean)
