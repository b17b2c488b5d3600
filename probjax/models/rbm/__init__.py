"""Restricted Boltzmann machines: energy, conditionals, block Gibbs sampler, chart."""

from probjax.models.rbm.centring import CentredRBM, centred
from probjax.models.rbm.gaps import (
    NUM_PRODUCTS,
    exact_gaps,
    flip_gaps,
    gaps_by_products,
    tail_bound,
)
from probjax.models.rbm.gibbs import (
    BlockGibbs,
    BlockState,
    Grown,
    Growth,
    grown_energy,
    start_growth,
)
from probjax.models.rbm.machine import (
    Params,
    energy,
    hidden_log_odds,
    hidden_means,
    init,
    log_z,
    reconstruct,
    sample_hidden,
    sample_visible,
    transpose,
    visible_log_odds,
    visible_means,
    weights_only,
)

__all__ = [
    "NUM_PRODUCTS",
    "BlockGibbs",
    "BlockState",
    "CentredRBM",
    "Grown",
    "Growth",
    "Params",
    "centred",
    "energy",
    "exact_gaps",
    "flip_gaps",
    "gaps_by_products",
    "grown_energy",
    "hidden_log_odds",
    "hidden_means",
    "init",
    "log_z",
    "reconstruct",
    "sample_hidden",
    "sample_visible",
    "start_growth",
    "tail_bound",
    "transpose",
    "visible_log_odds",
    "visible_means",
    "weights_only",
]
