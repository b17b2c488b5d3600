"""A progress bar for long fits, drawn on the host between compiled chunks."""

from collections.abc import Callable

from probjax.fitting import Progress


def progress_bar(total: int | None = None) -> Callable[[Progress], None]:
    """A callback for `fit` that draws a tqdm bar: steps, loss and gradient norm.

    Args:
        total: the number of steps at which the bar is full, if there is one.
    """
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("a progress bar needs tqdm: pip install tqdm") from error
    bar = tqdm(total=total, unit="step")

    def show(progress: Progress) -> None:
        bar.set_postfix_str(
            f"loss {float(progress.loss):.6g}, "
            f"gradient {float(progress.gradient_norm):.2g}",
            refresh=False,
        )
        bar.update(int(progress.step) - bar.n)

    return show
