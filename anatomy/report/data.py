"""The report as data: what every view shows and none computes.

Field names are the keys of `anatomy-report --format json`. A value that a study cannot give is None. Losses and
differences are nats per character; below 0 a row is better than its base.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anatomy.axes import Parts
from anatomy.measures_file import Measures

SCHEMA = 1
FINAL, AT_BEST = "test_loss_nats", "test_loss_nats_at_best"
BASE_ROW = "base"
STATUSES = ("done", "diverged", "failed", "interrupted", "running", "planned")

Rungs = Mapping[str, float]
"""Reference losses of a text in nats per character: "1" to "6" for n-gram tables, and "xz"."""


@dataclass(frozen=True)
class SetAside:
    """A run that is there but not compared, and why."""

    run: str
    reason: str


@dataclass(frozen=True)
class Row:
    """One composition, over its seeds.

    status      one of STATUSES where all arms agree, else every one but done with its count, `diverged 1/3`
    seeds       of the runs that are done, which are those that the numbers are over; num_seeds of them
    num_arms    all that were asked for, done or not
    num_pairs   seeds that the base has too (the base itself makes no pairs); difference_nats is the mean over
                them of row minus base, in the table's metric
    prediction_nats   the difference that somebody predicted before the runs
    ci_*        simultaneous over the rows of the table; own_ci_* the row's plain paired 95 % interval
    variance    of a paired difference, as used: moderated, never below the row's own; df its degrees of freedom
    p, p_holm   moderated two-sided, and adjusted over the rows of the table
    verdict     better, worse, equivalent (with its sign where the interval excludes 0), inconclusive, `diverged k/n`;
                ` (exploratory)` behind it where seeds or arms lie outside the plan
    smallest_margin_nats  the least margin at which this study could call the row equivalent
    minimum_detectable_effect_nats  what it would find with a power of 80 %
    seeds_needed          how many seeds the spread, not the effect seen, asks for to find an effect of the margin
    correlation           of the paired losses; sd_paired and sd_unpaired are what a difference spreads with and without
    text_share            standard error from the choice of test windows over that from the choice of seeds
    is_base     what the others are compared with
    is_null     the base again from another start or in another order
    unmatched   block parameters or FLOPs deviate from the base's by more than 0.5 %
    metric_mean, metric_sd  of the table's metric, which may be another than the final test loss
    *_sd        sample deviation; a single seed has none
    last_three_val_loss_nats_mean   over the curve's last three evaluations, of detailed rows
    best_step   of each seed
    rung        where metric_mean stands between the n-gram tables: 3.4 is two fifths of the way from the
                trigram's to the 4-gram's, 6 is the 6-gram's or better; below 1, on the way from ln V, which is 0
    *_percent   deviation from the base; block parameters are all but embedding, positions and output
    steps       of training; a row matched in time has steps of its own
    over_fitted in some seed the best validation loss lies more than 1 % below the final one
    tokens_per_s  median
    errors      why arms failed or diverged, `seed 2: ...`
    """

    name: str
    parts: Parts | None
    status: str
    num_seeds: int
    seeds: Sequence[int]
    num_diverged: int
    test_loss_nats_mean: float | None
    test_loss_nats_sd: float | None
    difference_nats: float | None
    prediction_nats: float | None
    ci_low: float | None
    ci_high: float | None
    own_ci_low: float | None
    own_ci_high: float | None
    variance: float | None
    df: float | None
    p: float | None
    p_holm: float | None
    verdict: str | None
    num_params: float | None
    flops_per_token: float | None
    kv_bytes_per_token: float | None
    tokens_per_s: float | None
    smallest_margin_nats: float | None
    minimum_detectable_effect_nats: float | None
    seeds_needed: int | None
    correlation: float | None
    sd_paired: float | None
    sd_unpaired: float | None
    text_share: float | None
    is_base: bool
    is_null: bool
    unmatched: bool | None
    num_arms: int
    num_pairs: int
    metric_mean: float | None
    metric_sd: float | None
    best_val_loss_nats_mean: float | None
    last_three_val_loss_nats_mean: float | None
    best_step: Sequence[float | None]
    test_bits_per_char: float | None
    rung: float | None
    num_params_percent: float | None
    block_params_percent: float | None
    flops_percent: float | None
    steps: float | None
    over_fitted: bool | None
    epochs: float | None
    errors: Sequence[str]


@dataclass(frozen=True)
class Curve:
    """A row's validation loss over the steps: mean, least and greatest over its seeds."""

    row: str
    steps: Sequence[int]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    num_seeds: int


@dataclass(frozen=True)
class Profile:
    """A row's difference to the base, bin by bin of a `Breakdown`: mean, least and greatest over the paired seeds."""

    row: str
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class Breakdown:
    """Where differences sit: the test targets in bins, the share of the targets in each, and a profile a row."""

    bins: Sequence[str]
    shares: Sequence[float]
    profiles: Sequence[Profile]


@dataclass(frozen=True)
class Sample:
    """What one run of a row made of its prompt."""

    row: str
    seed: int
    text: str


@dataclass(frozen=True)
class Shared:
    """Which tensors of a row started bit-identical to the base's, for one seed; `*` stands for every block.

    changed       of one name in both, but another shape or start
    only_in_row, only_in_base   of one side alone
    """

    row: str
    num_shared: int
    changed: Sequence[str]
    only_in_row: Sequence[str]
    only_in_base: Sequence[str]


@dataclass(frozen=True)
class Layers:
    """A quantity layer by layer of a row's models, from the first one of `first` on: mean, least and greatest over
    seeds; None where some seed has no number."""

    row: str
    first: int
    mean: Sequence[float | None]
    low: Sequence[float | None]
    high: Sequence[float | None]
    num_seeds: int


@dataclass(frozen=True)
class Copying:
    """What a row's models write that stands in the training text word for word, with their last or best weights.

    share       of the characters they wrote, those inside a copy of 20 or more: mean, least and greatest over seeds
    longest_chars   the longest copy of all seeds
    share_of_text   the same of the text itself where it goes on from the same prompts, for it repeats itself too
    """

    row: str
    weights: str
    share: float
    share_low: float
    share_high: float
    longest_chars: float
    share_of_text: float | None
    num_seeds: int


@dataclass(frozen=True)
class Diagnosis:
    """What was measured inside the models of detailed rows; see anatomy/diagnostics.py for what each is.

    gradients     `attn` and `ffn` -> gradient norms at the start, by layer from 1
    activations   `start` and `last` weights -> RMS of the residual stream, from 0, which is after the embedding
    entropy_nats, largest_logit   of attention, likewise, by layer from 1; entropy is the mean over heads
    """

    gradients: Mapping[str, Sequence[Layers]]
    activations: Mapping[str, Sequence[Layers]]
    entropy_nats: Mapping[str, Sequence[Layers]]
    largest_logit: Mapping[str, Sequence[Layers]]
    copying: Sequence[Copying]


@dataclass(frozen=True)
class Tuning:
    """How a row's best learning rate was chosen: mean validation loss at each rate over the tuning seeds (None where a
    run diverged); at_edge says that a better rate may lie beyond the grid."""

    row: str
    rates: Sequence[float]
    val_loss_nats: Sequence[float | None]
    best: float
    at_edge: bool


@dataclass(frozen=True)
class Registration:
    """What the study said before it started, and what was done otherwise."""

    spec: Mapping[str, object]
    spec_sha256: str | None
    started: str | None
    deviations: Sequence[str]


@dataclass(frozen=True)
class Table:
    """The rows of one study and base, and what they were measured on.

    base     None where no run could be read
    title    what the table compares, where one study and base has several tables
    cell     factor -> value, where a study's factors part its runs; empty where it has none
    is_joined   several cells in one, as views show them; the data has each cell by itself
    metric   of the differences: what the study says, else the final test loss, or the test loss at the best
             validation step where runs see their text more than once
    margin_nats     differences within it count as none; alpha is what is spent on this look
    num_compared    rows other than the base, over which intervals and p are simultaneous
    prior_variance, prior_df   what the rows' variances are moderated with; a prior_df that is None beside a
             prior_variance is infinite: the rows' spreads differ no more than by chance
    noise_floor     the largest mean difference, in size, of the base to itself from another start or in another order
    seeds_command   runs as many seeds as the spread asks for
    findings        a sentence for the table (`verdict`) and for each figure, by its name
    sizes, steps, tokens, ...  those of the base, for they agree, or of the row that most others agree with
    seeds, devices, commits, torch_versions   over all done runs
    curves, by_position, by_knowledge, samples, shared   of detailed rows, the first ones, where run folders have them;
             by_knowledge sorts targets by what the 6-gram table lost on them
    tuning   how each row's rate was chosen, in the table of best rates
    diagnosis   what was measured inside the models, None where nothing was
    """

    study: str
    base: str | None
    title: str | None
    cell: Mapping[str, str]
    is_joined: bool
    metric: str
    rows: Sequence[Row]
    margin_nats: float
    alpha: float
    num_compared: int
    prior_variance: float | None
    prior_df: float | None
    noise_floor: float | None
    seeds_command: str | None
    findings: Mapping[str, str]
    rungs: Rungs | None
    set_aside: Sequence[SetAside]
    warnings: Sequence[str]
    question: str | None
    corpus: str | None
    corpus_sha256: str | None
    num_chars: float | None
    sizes: Mapping[str, object]
    steps: object
    tokens: float | None
    tokens_per_param: float | None
    epochs: float | None
    seeds: Sequence[int]
    devices: Sequence[str]
    commits: Sequence[str]
    torch_versions: Sequence[str]
    registration: Registration | None
    curves: Sequence[Curve]
    by_position: Breakdown | None
    by_knowledge: Breakdown | None
    samples: Sequence[Sample]
    shared: Sequence[Shared]
    tuning: Sequence[Tuning]
    diagnosis: Diagnosis | None


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval (t on num_seeds - 1; None for one seed)."""

    nats: float
    ci_low: float | None
    ci_high: float | None
    num_seeds: int


@dataclass(frozen=True)
class Attribution:
    """Who earned the way from a base to its counterpart, in one study.

    axes         on which the two differ
    design       `factorial` (all 2^k compositions), `half_factorial`, or `partial`
    total        counterpart minus base
    add_one_in, leave_one_out   axis -> what its part does in the base, and in the counterpart
    walk         step by step from base to counterpart: (axis, estimate), in the order the study walks, or
                 that of the axes where it holds several; over the seeds that have all of it
    main_effects, shapley       axis -> estimate; interactions: `a*b` -> estimate
    model        what main effects, interactions and Shapley values rest on: None, `all 32 compositions`, or the
                 two-way model of a half fraction
    depends_on_the_rest         the axes where add-one-in and leave-one-out differ beyond their errors
    findings     a sentence for the whole (`verdict`) and for each figure, by its name
    """

    study: str
    base: str
    counterpart: str
    axes: Sequence[str]
    design: str
    metric: str
    total: Estimate | None
    add_one_in: Mapping[str, Estimate]
    leave_one_out: Mapping[str, Estimate]
    walk: Sequence[tuple[str, Estimate]]
    main_effects: Mapping[str, Estimate]
    interactions: Mapping[str, Estimate]
    shapley: Mapping[str, Estimate]
    model: str | None
    depends_on_the_rest: Sequence[str]
    findings: Mapping[str, str]


@dataclass(frozen=True)
class Quantity:
    """A number that was measured, with its 95 % interval where it has one. unit: `nats`, `times` (a ratio),
    `of n`, `bytes`, `characters`."""

    what: str
    value: float
    low: float | None
    high: float | None
    unit: str


@dataclass(frozen=True)
class Examined:
    """A claim held against what was measured.

    claim    its key in the part's YAML; text and source stand there too
    verdict  one of EXAM_VERDICTS, computed from `measured` by `rule`; None while the runs that it needs are not there
    note     what a reader should know besides: why a claim lies outside this scale, where it holds and where not
    """

    part: str
    claim: str
    text: str
    source: str
    rule: str
    verdict: str | None
    measured: Sequence[Quantity]
    note: str | None


@dataclass(frozen=True)
class PartLoss:
    """Test loss of what was asked for in a base: mean, least and greatest over seeds, in nats."""

    base: str
    row: str
    mean: float
    low: float
    high: float
    num_seeds: int


@dataclass(frozen=True)
class Series:
    """A line of a picture: y at each x, None where there is nothing, with least and greatest over seeds."""

    base: str
    row: str
    x: Sequence[float]
    mean: Sequence[float | None]
    low: Sequence[float | None]
    high: Sequence[float | None]


@dataclass(frozen=True)
class MapCell:
    """One place of a map: how the runs of a part ended under one combination of factors.

    outcomes  trained, plateau (nearer to a table of single characters than to one of pairs) or diverged -> runs
    loss_nats mean test loss of those that ended
    gradients gradient norm at the start of each block, mean over runs
    """

    base: str
    part: str
    factors: Mapping[str, str]
    outcomes: Mapping[str, int]
    loss_nats: float | None
    gradients: Sequence[float]


@dataclass(frozen=True)
class Card:
    """An exam: the claims of an axis's parts in the scenario that they were made for.

    scenario  what was trained, in a line
    trained_at   the context length of the runs
    losses    test loss by base and what was asked for; empty where there is a map
    by_length, by_position   of exams that test at several lengths: loss by length of the window over the same target
              characters, and by position in the longest windows, where x is the last position of a bin
    map       how runs ended, by factor
    timed     what was timed beside the runs
    """

    study: str
    axis: str
    question: str | None
    scenario: str
    claims: Sequence[Examined]
    margin_nats: float
    trained_at: int | None
    losses: Sequence[PartLoss]
    by_length: Sequence[Series]
    by_position: Sequence[Series]
    map: Sequence[MapCell]
    timed: Measures | None


SUPPORTED, NOT_SEEN = "supported here", "not seen here"
CONTRADICTED, OUTSIDE = "contradicted here", "outside this scale"
EXAM_VERDICTS = (SUPPORTED, NOT_SEEN, CONTRADICTED, OUTSIDE)


@dataclass(frozen=True)
class Report:
    """All tables of a folder, and a card an exam."""

    schema: int
    studies: Sequence[Table]
    attribution: Sequence[Attribution]
    exams: Sequence[Card]
    warnings: Sequence[str]

    @property
    def is_comparable(self) -> bool:
        """Whether at least one row could be held against its base."""
        return any(row.num_pairs for table in self.studies for row in table.rows)
