"""By which rule an exam decides about each claim, in words, with the thresholds that the rules' code takes from here.

A study registers these words before it starts, with the claims themselves (see about.py); the code that follows them
is in report/rules.py. Keys are the claims' in the parts' YAML; {margin} is the study's margin in nats.
"""

from collections.abc import Mapping

PLATEAU_RUNG = 1.5  # below: nearer to a table of single characters than to one of pairs
CLAIMED_INIT = "xavier"  # the init in which post-norm's failure is claimed
FASTER = 1.05  # a ratio of times that a reader would notice
DOMINATES = 0.5  # share of a decoding step spent on the cache, from which the cache is what it waits for
GATED_COST = (1.10, 1.15)  # times a plain FFN's step, as the claim has it
NEAR_GATED_COST = (1.05, 1.20)


def _no_worse(part: str, other: str) -> str:
    return (
        f"supported if the interval of {part} minus {other}, mean over the bases, ends below {{margin}} nats and "
        "no base's own begins above it; contradicted if it begins above and no base's own ends below; else not seen"
    )


def _better(part: str, other: str) -> str:
    return (
        f"supported if the interval of {part} minus {other}, mean over the bases, lies below 0 and no base's own "
        "above; contradicted if it lies above 0 and no base's own below; else not seen"
    )


RULES_IN_WORDS: Mapping[str, str] = {
    "as_good_as_layer": _no_worse("rms", "layer"),
    "cheaper_than_layer": (
        "outside this scale if the device has no fused kernel for RMSNorm; else supported if at the greatest width "
        "the interval of its time over LayerNorm's lies below 1, contradicted if above, else not seen"
    ),
    "fails_deep_and_bare": (
        f"judged with init={CLAIMED_INIT}, as in the claim's source: supported if, deep and without a warm-up, "
        "post-norm fails and pre-norm trains in every base; contradicted if post-norm trains in every base; else "
        "not seen. A setting fails if most of its seeds diverge or end nearer to a table of single characters than "
        "to one of pairs"
    ),
    "needs_no_warmup": (
        "supported if, deep, the interval of the test loss without a warm-up minus with one, mean over the "
        "settings (base and init), ends below {margin} nats; contradicted if it begins above, or if most seeds of "
        "a setting fail to train; else not seen"
    ),
    "ends_at_its_table": (
        "supported if there is a loss up to the trained length and none at any longer one; contradicted if every "
        "longer one has a loss; else not seen"
    ),
    "best_where_trained": (
        "supported if at the trained length the interval of RoPE minus each other kind of positions, mean over the "
        "bases, lies below 0; contradicted if one lies above; else not seen"
    ),
    "degrades_beyond": (
        "supported if the interval of RoPE's rise in loss from the trained length to twice that, over the same "
        "target characters, begins above {margin} nats; contradicted if it ends below; else not seen"
    ),
    "cache_in_proportion": (
        "supported if the bytes of the cache's tensors are the formula's and, at each size, the same for every "
        "key-value head; else contradicted"
    ),
    "as_good_as_mha": _no_worse("gqa", "mha"),
    "decodes_faster": (
        "outside this scale if the cache takes less than half of the longest step; else supported if the interval "
        f"of that step with half the heads over all of them ends below 1/{FASTER}, contradicted if it begins above "
        "1, else not seen"
    ),
    "trains_no_faster": (
        "supported if, at equal parameters, the interval of the time of a step with gqa over mha begins above "
        f"1/{FASTER} in every base; contradicted if it ends below that in every base; else not seen"
    ),
    "better_at_equal_parameters": _better("swiglu", "gelu"),
    "better_at_equal_time": _better("swiglu", "gelu"),
    "costs_time": (
        "supported if the interval of the time of a step with swiglu over gelu, at equal parameters, lies within "
        f"{NEAR_GATED_COST[0]:.2f} to {NEAR_GATED_COST[1]:.2f} in every base; contradicted if it lies outside "
        f"{GATED_COST[0]:.2f} to {GATED_COST[1]:.2f} in every base; else not seen"
    ),
}


def rule_in_words(claim: str, margin_nats: float) -> str:
    """The rule of a claim, as a study with this margin registers and a card shows it."""
    return RULES_IN_WORDS[claim].format(margin=f"{margin_nats:g}")
