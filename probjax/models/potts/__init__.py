"""Potts models: energy, parameters and gauges, centred chart, and contacts."""

from probjax.models.potts.centring import CentredPotts, data_chart
from probjax.models.potts.contacts import contact_scores, letters, sequence_weights
from probjax.models.potts.model import (
    energy,
    flip_gaps,
    letter_block,
    site_gap,
    site_gaps,
    unbounded,
    unbounded_entries,
)
from probjax.models.potts.parameters import Params, couplings_only, init, zero_sum

__all__ = [
    "CentredPotts",
    "contact_scores",
    "couplings_only",
    "data_chart",
    "energy",
    "flip_gaps",
    "init",
    "letter_block",
    "letters",
    "Params",
    "sequence_weights",
    "site_gap",
    "site_gaps",
    "unbounded",
    "unbounded_entries",
    "zero_sum",
]
