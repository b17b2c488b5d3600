"""Entropy of discrete data, and how much of their structure a model explains.

The entropy of the frequencies, H = -sum_k f_k log f_k with f_k = n_k / N, is too low on
average if many patterns were seen rarely. Estimates with less bias are

    Miller-Madow   H + (K - 1) / 2N, with K patterns seen
    jackknife      N H - (N - 1) times the mean of H without one of the rows
    Grassberger    log N - sum_k n_k G(n_k) / N,
                   G(n) = psi(n) + (-1)^n (psi((n + 1) / 2) - psi(n / 2)) / 2
    Chao-Shen      -sum_k q_k log q_k / (1 - (1 - q_k)^N),   q_k = C f_k,
                   with C = 1 - (patterns seen once) / N, the coverage

None of them can be trusted if the coverage is far from 1, and that of Chao and Shen is
often too high if many patterns are rare, as in words of spikes. The multi-information
is the entropy of independent sites minus that of the data, and a model q explains

    I_q = H_independent + <log q>,

the decrease of the divergence from the data when q replaces independent sites. If q is
a maximum-entropy model fitted to these data, -<log q> is its entropy. All values are
in nats; `describe()` prints bits.

Reference: Miller (1955); Zahl, Ecology 58, 907 (1977); Grassberger, arXiv:physics/
0307138 (2003); Chao and Shen, Environ. Ecol. Stat. 10, 429 (2003); Schneidman, Still,
Berry and Bialek, PRL 91, 238701 (2003), for multi-information.
"""

from typing import NamedTuple

import numpy as np

from probjax.data.rows import as_data, num_rows
from probjax.diagnostics.patterns import patterns
from probjax.types import ArrayLike, Data, Float

EULER = 0.5772156649015329
LOW_COVERAGE = 0.9


class Entropy(NamedTuple):
    """Estimates of the entropy of data, in nats; `estimate_entropy` returns them.

    >>> found = estimate_entropy(np.array([[0, 0], [0, 1], [1, 0], [1, 1]] * 50))
    >>> float(round(found.plugin / np.log(2), 3)), found.coverage
    (2.0, 1.0)
    """

    plugin: float
    """Entropy of the frequencies, biased low."""
    miller_madow: float
    """With the first correction of the bias."""
    jackknife: float
    """With the bias removed that falls as 1 / rows."""
    grassberger: float
    """Estimate of Grassberger, whose bias falls off fast with the counts."""
    chao_shen: float
    """Estimate of Chao and Shen, which accounts for patterns that were not seen."""
    stderr: float
    """Standard error of `grassberger`, without bias; it is also about that of the other
    estimates."""
    num_rows: int
    """Number of rows."""
    num_patterns: int
    """Number of distinct rows."""
    num_singletons: int
    """Number of patterns that were seen once."""

    @property
    def coverage(self) -> float:
        """Estimated probability of the patterns that were seen."""
        return 1 - self.num_singletons / self.num_rows

    def describe(self) -> str:
        """Describe all estimates in bits, and whether they can be trusted."""
        bits = [
            f"{name.replace('_', '-')} {value / np.log(2):.4g}"
            for name, value in zip(self._fields[:5], self[:5], strict=True)
        ]
        text = (
            f"{', '.join(bits)} bits, +- {self.stderr / np.log(2):.2g}; "
            f"{self.num_patterns:,} patterns in {self.num_rows:,} rows"
        )
        if self.coverage < LOW_COVERAGE:
            text += (
                f"; {1 - self.coverage:.0%} of the rows are patterns seen once, so "
                "that the entropy is not determined by the data"
            )
        return text


class MultiInformation(NamedTuple):
    """Multi-information of data and the part that a model explains, in nats.

    >>> rows = np.array([[0, 0], [1, 1]] * 50)
    >>> found = multi_information(rows, np.log(np.full(100, 0.4)))
    >>> round(found.total, 4), round(found.fraction, 4)  # log 2, and 1 + log2 0.8
    (0.6931, 0.6781)
    """

    independent: float
    """Entropy of independent sites with the frequencies of the data, biased low."""
    correction: float
    """Correction of the bias of `independent` by Miller and Madow."""
    model: float
    """Mean of -log q over the data; the entropy of a fitted maximum-entropy model."""
    data: Entropy
    """Estimates of the entropy of the data."""
    explained_stderr: float
    """Standard error of `explained`."""
    total_stderr: float
    """Standard error of `total`, without bias."""
    fraction_stderr: float
    """Standard error of `fraction`, without bias."""

    @property
    def explained(self) -> float:
        """Multi-information that the model explains."""
        return self.independent - self.model

    @property
    def total(self) -> float:
        """Multi-information by the plug-in entropy, biased high."""
        return self.independent - self.data.plugin

    @property
    def corrected_total(self) -> float:
        """Multi-information with the biases of both entropies corrected."""
        return self.independent + self.correction - self.data.grassberger

    @property
    def fraction(self) -> float:
        """Fraction of `total` that the model explains, biased low."""
        return self.explained / self.total

    @property
    def corrected_fraction(self) -> float:
        """Fraction of `corrected_total` that the model explains."""
        return (self.explained + self.correction) / self.corrected_total

    def describe(self) -> str:
        """Describe the entropies in bits, and the fraction explained."""
        parts = self.independent, self.model, self.data.plugin, self.data.grassberger
        first, second, plugin, corrected = (part / np.log(2) for part in parts)
        return (
            f"entropies of independent sites {first:.4g}, of the model {second:.4g}, "
            f"of the data {plugin:.4g} (plug-in) or {corrected:.4g} (Grassberger) "
            f"bits; the model explains {self.fraction:.3g} +- "
            f"{self.fraction_stderr:.2g} of the multi-information (plug-in) or "
            f"{self.corrected_fraction:.3g} (Grassberger)"
        )


def estimate_entropy(data: ArrayLike | Data) -> Entropy:
    """Estimate the entropy of discrete data, in nats.

    Args:
        data: complete rows of bits or letters; weights are whole numbers of rows.

    >>> found = estimate_entropy(np.array([[0], [1], [1], [1]]))
    >>> round(found.plugin, 4), round(found.miller_madow, 4)
    (0.5623, 0.6873)
    """
    counts = patterns(data).counts.astype(float)
    total = counts.sum()
    plugin, without = _entropy(counts, _plugin_terms)
    grassberger, _ = _entropy(counts, _grassberger_terms)
    return Entropy(
        plugin=plugin,
        miller_madow=float(plugin + (len(counts) - 1) / (2 * total)),
        jackknife=float(total * plugin - (total - 1) * (counts @ without) / total),
        grassberger=grassberger,
        chao_shen=_chao_shen(counts),
        stderr=_stderr(counts),
        num_rows=int(total),
        num_patterns=len(counts),
        num_singletons=int(np.sum(counts == 1)),
    )


def multi_information(
    data: ArrayLike | Data, log_probs: Float[ArrayLike, " row"]
) -> MultiInformation:
    """Estimate the multi-information of data and the part that a model explains.

    Args:
        data: complete rows of bits or letters; weights are whole numbers of rows.
        log_probs: log q of each row in the model, such as the `per_row` of
            `log_likelihood`.

    >>> from probjax import exact, ising
    >>> rows = np.random.default_rng(0).integers(0, 2, (500, 3))
    >>> model = ising.from_matrix(np.zeros((3, 3)))
    >>> log_q = exact.log_probs(ising.energy, model, 3)[rows @ np.array([4, 2, 1])]
    >>> bool(abs(multi_information(rows, log_q).explained) < 0.01)
    True
    """
    data, log_probs = as_data(data), np.asarray(log_probs, float)
    found, count = patterns(data), num_rows(data)
    if log_probs.shape != (count,):
        raise ValueError(
            f"log_probs must have one entry for each of {count} rows, got shape "
            f"{log_probs.shape}"
        )
    weights = np.ones(count) if data.weights is None else np.asarray(data.weights)
    weights, log_probs = weights[weights > 0], log_probs[weights > 0]
    share = weights / weights.sum()
    surprise = -_log_independent(found)[found.of_row]
    frequency = found.counts / found.num_rows
    own = -np.log(frequency[found.of_row])
    explained, total = surprise + log_probs, surprise - own
    fraction = (share @ explained) / (share @ total)

    def stderr(values):
        variance = share @ (values - share @ values) ** 2
        return float(np.sqrt(variance / weights.sum()))

    return MultiInformation(
        independent=float(share @ surprise),
        correction=sum(len(np.unique(site)) - 1 for site in found.x.T)
        / (2 * found.num_rows),
        model=float(-share @ log_probs),
        data=estimate_entropy(data),
        explained_stderr=stderr(explained),
        total_stderr=stderr(total),
        fraction_stderr=stderr(explained - fraction * total) / float(share @ total),
    )


def _log_independent(found):
    """Log probability of each pattern if sites had their frequencies independently."""
    log_p = np.zeros(len(found.x))
    for site in found.x.T:
        letters, index = np.unique(site, return_inverse=True)
        counts = np.bincount(index, found.counts, minlength=len(letters))
        log_p += np.log(counts / found.num_rows)[index]
    return log_p


def _entropy(counts, terms):
    """Return log N - sum_k terms(n_k) / N, and the same without one row of each k."""
    total = counts.sum()
    whole = terms(counts)
    without = whole.sum() - whole + terms(counts - 1)
    left = np.log(max(total - 1, 1)) - without / max(total - 1, 1)
    return float(np.log(total) - whole.sum() / total), left


def _plugin_terms(n):
    return n * np.log(np.where(n > 0, n, 1))


def _grassberger_terms(n):
    """N G(n), with G(1) = -gamma - log 2 and a recurrence in steps of two.

    G(2k) = G(2k + 1) = G(2k - 2) + 2 / (2k - 1), with G(1) in place of G(0).
    """
    pairs = np.arange(int(n.max()) // 2 + 1)
    steps = np.where(pairs > 0, 2 / (2 * pairs - 1), 0)
    table = -EULER - np.log(2) + np.cumsum(steps)
    return n * table[n.astype(int) // 2]


def _stderr(counts):
    """Standard error from the scatter over rows of log N - G(n).

    The number of patterns seen once is random as well, and each adds G(1) / N.
    """
    total = counts.sum()
    values = _grassberger_terms(counts) / counts
    variance = counts @ (values - counts @ values / total) ** 2 / total
    singletons = np.sum(counts == 1) * _grassberger_terms(np.ones(1))[0] ** 2 / total
    return float(np.sqrt((variance + singletons) / total))


def _chao_shen(counts):
    total, singletons = counts.sum(), np.sum(counts == 1)
    # If all patterns were seen once, the coverage would be 0.
    singletons = min(singletons, total - 1)
    share = (1 - singletons / total) * counts / total
    seen = -np.expm1(total * np.log1p(-np.minimum(share, 1 - 1e-16)))
    return float(-np.sum(share * np.log(share) / seen))
