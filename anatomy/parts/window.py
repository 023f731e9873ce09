"""Window: how far back a token sees. Each layer has one of its own, so that not all of them need be alike.

`size` is the number of tokens that a token sees, itself included; None where it sees all that came before.
"""

from torch import nn

from anatomy.ranges import Count, Natural


class NoWindow(nn.Module):
    """Every token sees all that came before it.

    Shapes:   none; attention asks for `size`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.size: int | None = None


class Sliding(nn.Module):
    """A token sees the last `size` tokens, itself included, so that the cache stops growing there.

    What lies further back still arrives through the layers: in n of them a token hears of n (size - 1) before it.

    Shapes:   none; attention asks for `size`.
    Knobs:    size; None takes half of the context.
              first_layer: the layers before it see everything.
    Source:   Beltagy et al. 2020, arXiv:2004.05150; Jiang et al. 2023, arXiv:2310.06825 (Mistral); layers of both kinds
              as in Qwen2.
    """

    def __init__(self, ctx_len: int, layer: int, *, size: Count | None = None, first_layer: Natural = 0) -> None:
        super().__init__()
        reach = max(1, ctx_len // 2) if size is None else size
        self.size: int | None = reach if layer >= first_layer else None
