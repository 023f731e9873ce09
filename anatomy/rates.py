"""How the best learning rate is chosen: once, for the study that trains at it and for the report that shows it."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

RATE = "train.lr"


def tuning_loss(
    status: str, epochs: float | None, val_loss_nats: float | None, best_val_loss_nats: float | None
) -> float | None:
    """The loss that speaks for a run's rate: infinite where it diverged, None where the run has not ended.

    Where a text is seen more than once the final loss would measure memorising, so it is the loss at the best step.
    """
    if status == "diverged":
        return math.inf
    if status != "done":
        return None
    return best_val_loss_nats if epochs is not None and epochs > 1 else val_loss_nats


def mean_losses(by_rate: Mapping[float, Sequence[float | None]]) -> dict[float, float] | None:
    """Each rate's mean over the tuning seeds; None unless all runs of the arm have ended, for a choice among some of
    them is none."""
    means = {}
    for rate, losses in by_rate.items():
        ended = [loss for loss in losses if loss is not None]
        if not ended or len(ended) < len(losses):
            return None
        means[rate] = fmean(ended)
    return means or None


def best_rate(means: Mapping[float, float]) -> float:
    """The rate of least loss; of several, the smallest."""
    return min(means, key=lambda rate: (means[rate], rate))
