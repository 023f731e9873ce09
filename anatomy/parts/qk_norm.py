"""QK-norm: whether queries and keys are normalised before they meet, so that no score can grow without bound.

What sits here acts on each head by itself, after the projections and before positions turn anything.

Tensor legend: B batch, T tokens, H query heads, G key-value heads, K head width.
"""

import torch
from torch import Tensor, nn

from anatomy.parts.binding import Buffer, Step, bind_norm
from anatomy.parts.norm import RMSNorm
from anatomy.ranges import NotNegative


class NoQKNorm(nn.Module):
    """Queries and keys as the projections give them.

    Shapes:   qk (B, T, H + G, K) -> the same, unchanged.
    """

    def __init__(self) -> None:
        super().__init__()

    def num_params(self) -> int:
        return 0

    def forward(self, qk_BTHK: Tensor, num_queries: int) -> Tensor:
        return qk_BTHK

    def bind(self, q: Buffer, k: Buffer) -> tuple[Step | None, Buffer, Buffer]:
        return None, q, k


class RMSPerHead(nn.Module):
    """Divide each head's query and key by its root mean square, then scale per channel: one gain for all queries of a
    layer, one for all keys.

    q = q / sqrt(mean(q^2) + eps) * q_gain, and k likewise. The gains differ inside a rotated pair, so the norm does not
    commute with RoPE: first the norm, then the turn.

    Shapes:   qk (B, T, H + G, K), `num_queries` heads of queries in front -> the same shape.
    Knobs:    eps, added inside the root.
    Numerics: as RMSNorm.
    Source:   Henry et al. 2020, arXiv:2010.04245, and Dehghani et al. 2023, arXiv:2302.05442, who take other norms; RMS
              a head with gains is that of Qwen3 (Yang et al. 2025, arXiv:2505.09388).
    """

    def __init__(self, head_width: int, *, eps: NotNegative = 1e-5) -> None:
        super().__init__()
        self.q_norm, self.k_norm = RMSNorm(head_width, eps=eps), RMSNorm(head_width, eps=eps)

    def num_params(self) -> int:
        return self.q_norm.num_params() + self.k_norm.num_params()

    def forward(self, qk_BTHK: Tensor, num_queries: int) -> Tensor:
        q, k = qk_BTHK.tensor_split((num_queries,), dim=-2)
        return torch.cat((self.q_norm(q), self.k_norm(k)), dim=-2)

    def bind(self, q: Buffer, k: Buffer) -> tuple[Step | None, Buffer, Buffer]:
        q_step, normed_q = bind_norm(self.q_norm, q)
        k_step, normed_k = bind_norm(self.k_norm, k)
        turned_q, turned_k = normed_q._replace(gain=None), normed_k._replace(gain=None)

        def step() -> None:
            q_step()
            normed_q.write_to(turned_q)
            k_step()
            normed_k.write_to(turned_k)

        return step, turned_q, turned_k
