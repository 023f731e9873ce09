"""Let a model go on with texts."""

import torch
from torch import Tensor

from anatomy.evaluation import evaluating
from anatomy.model import Transformer

SAMPLE_CHARS, PROMPT_CHARS = 200, 16
SAMPLE_TEMPERATURE = 0.8


def continue_ids(
    model: Transformer, ids_BT: Tensor, *, num_tokens: int, window: int, temperature: float, generator: torch.Generator
) -> Tensor:
    """Append `num_tokens` sampled tokens to each of B texts, each drawn from softmax(logits / temperature).

    The model sees the last `window` tokens. The draws come from `generator`, one a token, and from nowhere else.

    Raises: ValueError if the logits are not finite; `temperature` must be above 0.
    """
    with evaluating(model):
        for _ in range(num_tokens):
            logits_BV = model(ids_BT[:, -window:])[:, -1].float()
            if not logits_BV.isfinite().all():
                raise ValueError("the model's logits are not finite: there is nothing to draw from")
            probabilities = (logits_BV / temperature).softmax(-1).cpu()
            drawn = torch.multinomial(probabilities, 1, generator=generator)
            ids_BT = torch.cat([ids_BT, drawn.to(ids_BT.device)], dim=1)
    return ids_BT
