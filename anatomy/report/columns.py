"""The columns of a comparison table, once, for all views that have lines: what stands over them, and what in them."""

from collections.abc import Callable
from dataclasses import dataclass

from anatomy.report.data import AT_BEST, Estimate, Row, Table

NOTHING = "–"
LEAST_P = 1e-6  # below, p says more of the normal distribution's tail than of the models


@dataclass(frozen=True)
class Column:
    """A column beside the row's name: heading, what it means, and a row's cell, None where there is nothing."""

    heading: str
    meaning: str
    cell: Callable[[Row], str | None]
    is_text: bool = False

    def shown(self, row: Row) -> str:
        return self.cell(row) or NOTHING


def verdict_columns(table: Table) -> list[Column]:
    """What a row came to, and how sure that is. Loss, spread and difference are of the table's metric."""
    at_best = table.metric == AT_BEST
    predicted = Column(
        "predicted",
        "the difference that was predicted before the row was run",
        lambda row: number(row.prediction_nats, "+.4f"),
    )
    return [
        Column("seeds", "runs that are done, and how many the base shares their seed with", _seeds),
        Column(
            "test nats at best" if at_best else "test nats",
            f"nats per character, mean over seeds{', at the best validation step' if at_best else ''}",
            lambda row: number(row.metric_mean, ".4f"),
        ),
        Column(
            "difference",
            "row minus base, over the seeds they share; below 0 is better",
            lambda row: number(row.difference_nats, "+.4f"),
        ),
        *([predicted] if any(row.prediction_nats is not None for row in table.rows) else []),
        Column(
            f"{100 * (1 - table.alpha):g} % interval",
            "of the difference, for all rows of the table at once",
            lambda row: interval(row.ci_low, row.ci_high),
        ),
        Column("verdict", f"from the interval and the margin of {table.margin_nats:g} nats", _verdict, is_text=True),
        Column("p (Holm)", "two-sided, adjusted over the rows of the table", _p),
        Column(
            "own interval",
            "the row's plain paired 95 % interval",
            lambda row: interval(row.own_ci_low, row.own_ci_high),
        ),
        Column(
            "least margin",
            "the least margin, in nats, at which this study could call the row equivalent",
            lambda row: number(row.smallest_margin_nats, ".3f"),
        ),
        Column(
            "detectable",
            "the difference in nats that this study finds with a power of 80 %",
            lambda row: number(row.minimum_detectable_effect_nats, ".3f"),
        ),
        Column(
            "seeds needed",
            "to find an effect as large as the margin, going by the spread",
            lambda row: number(row.seeds_needed, ","),
        ),
        Column("sd", "of the test loss over seeds", lambda row: number(row.metric_sd, ".4f")),
        Column("sd paired", "of the differences", lambda row: number(row.sd_paired, ".4f")),
        Column(
            "sd unpaired",
            "of the differences, if seeds were not shared",
            lambda row: number(row.sd_unpaired, ".4f"),
        ),
        Column("correlation", "of the paired losses of row and base", lambda row: number(row.correlation, "+.2f")),
        Column(
            "text share",
            "standard error from the choice of test windows, over that from the choice of seeds",
            lambda row: number(row.text_share, ".2f"),
        ),
    ]


def cost_columns(table: Table) -> list[Column]:
    """Where a row's loss stands, what it cost, and how its runs ended."""
    final = Column("final nats", "test loss of the last step", lambda row: number(row.test_loss_nats_mean, ".4f"))
    return [
        *([final] if table.metric == AT_BEST else []),
        Column("bits/char", "of the final test loss", lambda row: number(row.test_bits_per_char, ".4f")),
        Column(
            "rung",
            "where the loss stands between the n-gram tables: 3.4 is two fifths of the way from the trigram's to the "
            "4-gram's",
            lambda row: number(row.rung, ".2f"),
        ),
        Column(
            "best validation",
            "loss, nats per character",
            lambda row: number(row.best_val_loss_nats_mean, ".4f"),
        ),
        Column("best step", "earliest to latest seed", _steps),
        Column(
            "last three",
            "mean validation loss of the last three evaluations",
            lambda row: number(row.last_three_val_loss_nats_mean, ".4f"),
        ),
        Column("params", "all of them", lambda row: number(row.num_params, ",.0f")),
        Column("params %", "deviation from the base", lambda row: number(row.num_params_percent, "+.2f")),
        Column(
            "block %",
            "deviation from the base in block parameters: neither embedding, positions nor output",
            lambda row: number(row.block_params_percent, "+.2f"),
        ),
        Column("steps", "of training", lambda row: number(row.steps, ",.0f")),
        Column("FLOPs/token", "in training", lambda row: number(row.flops_per_token, ",.0f")),
        Column(
            "KV bytes/token", "of the cache, at 2 bytes a value", lambda row: number(row.kv_bytes_per_token, ",.0f")
        ),
        Column("tokens/s", "in training, median", lambda row: number(row.tokens_per_s, ",.0f")),
        Column(
            "status",
            "of the row's runs; over-fitted: some seed's best validation loss lies more than 1 % below its final one",
            lambda row: row.status + (", over-fitted" if row.over_fitted else ""),
            is_text=True,
        ),
    ]


def number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def interval(low: float | None, high: float | None) -> str | None:
    return None if low is None or high is None else f"{low:+.3f} to {high:+.3f}"


def _p(row: Row) -> str | None:
    return f"<{LEAST_P:g}" if row.p_holm is not None and row.p_holm < LEAST_P else number(row.p_holm, ".2g")


def estimate(found: Estimate | None) -> str:
    """A mean with its interval in brackets."""
    return NOTHING if found is None else f"{found.nats:+.4f}{bracketed(found.ci_low, found.ci_high, '+.4f')}"


def bracketed(low: float | None, high: float | None, form: str) -> str:
    """` (+0.0012 to +0.0034)`, to stand behind a number; empty where there is no interval."""
    return "" if low is None or high is None else f" ({low:{form}} to {high:{form}})"


def _verdict(row: Row) -> str | None:
    return ", ".join(filter(None, [row.verdict, "unmatched" if row.unmatched else None])) or None


def _steps(row: Row) -> str | None:
    steps = [step for step in row.best_step if step is not None]
    return "-".join(f"{step:,.0f}" for step in sorted({min(steps), max(steps)})) if steps else None


def _seeds(row: Row) -> str:
    return f"{row.num_seeds} ({row.num_pairs} paired)" if 0 < row.num_pairs < row.num_seeds else str(row.num_seeds)
