"""Types of settings and knobs with the range they allow, checked where a config is read."""

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

Count = Annotated[int, Ge(1), Lt(2**31)]
Natural = Annotated[int, Ge(0), Lt(2**63)]
Positive = Annotated[float, Gt(0)]
Theta = Annotated[float, Ge(1), Lt(1e15)]
"""Of RoPE and sinusoids, the longest wavelength over 2 pi."""
Factor = Annotated[float, Ge(1), Lt(1e6)]
"""How many times as long a text may become as those of training."""
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
ShareBelowOne = Annotated[float, Ge(0), Lt(1)]
