"""Surrogate words, which keep some statistics of a recording and destroy others.

| surrogate | rates | pairwise covariances | trends within and over trials |
| --- | --- | --- | --- |
| `shuffled` | of every trial | destroyed | destroyed within trials, kept over trials |
| `rate_matched` | expected | destroyed | destroyed |
| `moment_matched` | expected | expected | destroyed; no interactions beyond pairs' |

Rows of `rate_matched` and `moment_matched` are independent draws. "Expected" means up
to the noise of sampling.
"""

import jax.numpy as jnp
import numpy as np

from probjax.checks import warn
from probjax.data.spikes.gaussian import dichotomised_gaussian, draw_words
from probjax.data.spikes.words import Words
from probjax.random import numpy_generator
from probjax.trees import as_array
from probjax.types import PRNGKeyArray


def shuffled(key: PRNGKeyArray, words: Words) -> Words:
    """Permute the bins of each unit independently within each trial.

    The number of ones of each unit in each trial does not change.

    >>> from probjax.data.spikes import words_from_counts
    >>> words = words_from_counts([[0, 1], [1, 0], [1, 1]], trial=["a", "a", "b"])
    >>> new = shuffled(jax.random.key(0), words)
    >>> new.x[:2].sum(0).tolist(), new.x[2].tolist()
    ([1.0, 1.0], [1.0, 1.0])
    """
    x = np.asarray(words.x)
    random = numpy_generator(key)
    # Rows of a trial are adjacent, so sorting by trial and then by a random number
    # permutes them among themselves.
    new = np.empty_like(x)
    for unit in range(x.shape[1]):
        order = np.lexsort([random.random(len(x)), words.trial])
        new[:, unit] = x[order, unit]
    return _with_states(words, new)


def rate_matched(key: PRNGKeyArray, words: Words) -> Words:
    """Draw every entry independently, with the mean rate of its unit.

    >>> from probjax.data.spikes import words_from_counts
    >>> words = words_from_counts(np.tile([[0, 1], [1, 1]], (500, 1)))
    >>> new = rate_matched(jax.random.key(0), words)
    >>> round(float(new.x[:, 0].mean()), 1), float(new.x[:, 1].mean())
    (0.5, 1.0)
    """
    x = np.asarray(words.x)
    return _with_states(words, numpy_generator(key).random(x.shape) < x.mean(0))


def moment_matched(key: PRNGKeyArray, words: Words) -> Words:
    """Draw independent words with the rates and covariances of a recording.

    The distribution is a `dichotomised_gaussian`. It warns if no dichotomised Gaussian
    has exactly these covariances.

    >>> from probjax.data.spikes import words_from_counts
    >>> words = words_from_counts(np.tile([[0, 0], [1, 1], [1, 0]], (500, 1)))
    >>> new = moment_matched(jax.random.key(0), words)
    >>> bool(jnp.abs(jnp.cov(new.x.T) - jnp.cov(words.x.T)).max() < 0.03)
    True
    """
    x = np.asarray(words.x, np.float64)
    model = dichotomised_gaussian(x.mean(0), np.cov(x.T, bias=True))
    if model.shift > 0:
        warn(model.describe())
    return _with_states(words, draw_words(key, model, num_draws=len(x)))


def _with_states(words, x):
    """Return words with other states, which stand for one spike per 1."""
    x = as_array(np.asarray(x), jnp.result_type(float))
    return words._replace(x=x, clipped=np.zeros_like(words.clipped))
