"""Kinetic Ising models: conditional models of a word given the words before it."""

from probjax.models.kinetic_ising.centring import CentredKinetic, data_chart
from probjax.models.kinetic_ising.model import (
    energy,
    flip_gap,
    flip_gaps,
    log_chances,
    log_odds,
    unbounded,
)
from probjax.models.kinetic_ising.parameters import (
    Inputs,
    Params,
    from_spins,
    init,
    to_spins,
)
from probjax.models.kinetic_ising.rows import rows
from probjax.models.kinetic_ising.simulation import simulate

__all__ = [
    "CentredKinetic",
    "data_chart",
    "energy",
    "flip_gap",
    "flip_gaps",
    "from_spins",
    "init",
    "Inputs",
    "log_chances",
    "log_odds",
    "Params",
    "rows",
    "simulate",
    "to_spins",
    "unbounded",
]
