"""How the best learning rate is chosen: once, for the study that trains at it and for the report that shows it."""

import math
from collections.abc import Mapping


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


def best_rate(losses: Mapping[float, float]) -> float:
    """The rate of least loss; of several, the smallest."""
    return min(losses, key=lambda rate: (losses[rate], rate))
