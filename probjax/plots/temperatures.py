"""Thermodynamics of a model against temperature."""

from typing import Any

import numpy as np

from probjax.annealing.temperatures import TemperatureCurve
from probjax.plots.canvas import BLUE, GREY, axes, finish

LABELS = {
    "heat_capacity": "heat capacity",
    "entropy": "entropy, nats",
    "energy": "mean energy",
    "log_z": "log Z",
}


def temperatures(
    curve: TemperatureCurve,
    quantity: str = "heat_capacity",
    *,
    per_site: int | None = None,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
) -> Any:
    """One quantity against temperature, in a band of two standard errors.

    A dotted line marks the temperature of the model itself, 1.

    Args:
        curve: the result of `temperature_curve`.
        quantity: "heat_capacity", "entropy", "energy" or "log_z".
        per_site: number of sites by which the quantity is divided.

    >>> two = np.array([1.0, 2.0])
    >>> curve = TemperatureCurve(two, *[two] * 10)
    >>> ax = temperatures(curve, per_site=2)
    >>> ax.lines[1].get_ydata().tolist()
    [0.5, 1.0]
    """
    if quantity not in LABELS:
        raise ValueError(
            f"quantity must be one of {', '.join(LABELS)}, got {quantity!r}"
        )
    share, fields = 1 / (per_site or 1), curve._asdict()
    order = np.argsort(curve.temperatures)
    at = curve.temperatures[order]
    values = share * fields[quantity][order]
    error = 2 * share * fields[f"{quantity}_stderr"][order]
    ax = axes(ax)
    ax.axvline(1, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    ax.plot(at, values, color=color, label=label)
    ax.fill_between(at, values - error, values + error, color=color, alpha=0.2, lw=0)
    ending = "" if per_site is None else " per site"
    return finish(ax, "temperature", LABELS[quantity] + ending)
