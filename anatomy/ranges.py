"""Types of settings and knobs with the range they allow, checked where a config is read."""

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

Count = Annotated[int, Ge(1), Lt(2**31)]
Natural = Annotated[int, Ge(0), Lt(2**63)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
ShareBelowOne = Annotated[float, Ge(0), Lt(1)]
