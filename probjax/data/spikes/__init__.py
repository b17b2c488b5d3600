"""Spike trains: recordings, binary words, and surrogate words."""

from probjax.data.spikes.gaussian import (
    DichotomisedGaussian,
    dichotomised_gaussian,
    draw_words,
)
from probjax.data.spikes.readers import from_neo, from_nwb, from_pynapple
from probjax.data.spikes.recordings import Recording, recording
from probjax.data.spikes.surrogates import moment_matched, rate_matched, shuffled
from probjax.data.spikes.words import (
    Words,
    choose_units,
    complete_history,
    drop_silent,
    join,
    words,
    words_from_counts,
)

__all__ = [
    "choose_units",
    "complete_history",
    "dichotomised_gaussian",
    "DichotomisedGaussian",
    "draw_words",
    "drop_silent",
    "from_neo",
    "from_nwb",
    "from_pynapple",
    "join",
    "moment_matched",
    "rate_matched",
    "Recording",
    "recording",
    "shuffled",
    "Words",
    "words",
    "words_from_counts",
]
