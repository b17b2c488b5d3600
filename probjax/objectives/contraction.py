"""Minimum KL contraction: the divergence that is lost when sites are marginalised.

Marginalising the sites b of a block maps the data distribution p and the model q to
their marginals over the other sites. This never increases the divergence between them.
The decrease is the divergence between the conditional distributions of the block,

    KL(p||q) - KL(p_rest||q_rest) = < KL(p(x_b | rest) || q(x_b | rest)) >_p,

which is zero if the conditionals agree. Summed over blocks, and without terms that
depend on p alone, it is a loss without a partition function,

    mean over rows of -sum_b log q(x_b | rest)
      = mean over rows of sum_b log sum_y exp(E(x) - E(x with block b set to y)).

With blocks of single sites the loss is the pseudolikelihood, with one block of all
sites the likelihood. Pairs of sites, or the edges of a graph, are in between in cost
and in statistical efficiency.

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

    A row costs one energy for each configuration of each block. Pairs of bits cost one
    `flip_gaps` per site if the energy has this closed form.

    Args:
        energy: `energy(params, x)` of one state.
        blocks: the sites of each block, such as `pairs(size)` or the edges of a graph;
            a site may be in several blocks.
        num_states: number of letters of a site; with 2, states are bits.

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
