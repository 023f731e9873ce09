"""Let a model go on with a text."""

import torch
from torch import Tensor

from anatomy.evaluation import evaluating
from anatomy.model import Transformer


def continue_ids(
    model: Transformer, ids: Tensor, *, num_tokens: int, window: int, temperature: float, generator: torch.Generator
) -> Tensor:
    """Append `num_tokens` sampled tokens to ids (T,), each drawn from softmax(logits / temperature).

    The model sees the last `window` tokens. The draws come from `generator`, one a token, and from nowhere else.

    Raises: ValueError if the logits are not finite; `temperature` must be above 0.
    """
    with evaluating(model):
        for _ in range(num_tokens):
            logits = model(ids[None, -window:])[0, -1].float()
            if not logits.isfinite().all():
                raise ValueError("the model's logits are not finite: there is nothing to draw from")
            probabilities = (logits / temperature).softmax(-1).cpu()
            ids = torch.cat([ids, torch.multinomial(probabilities, 1, generator=generator).to(ids.device)])
    return ids
