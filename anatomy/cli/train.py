"""anatomy-train: train one composition, or sweep. Speaks Hydra's override grammar; naming a study makes it a sweep."""

import sys
import textwrap
from typing import TYPE_CHECKING

from rich.text import Text

from anatomy import __version__
from anatomy.about import about, offered, top_comment
from anatomy.axes import PART_AXES
from anatomy.cli.common import DONE, FAILED, INTERRUPTED, console, printable, refuse, steady_output
from anatomy.errors import UserError
from anatomy.files import CONF

if TYPE_CHECKING:
    from anatomy.runner import Job
    from anatomy.sweep import Plan
    from anatomy.tune import Stage

USAGE = """\
anatomy-train [SETTING=VALUE ...]            train one composition
anatomy-train -m SETTING=VALUE,VALUE ...     sweep: every combination of the values
anatomy-train study=NAME [SETTING=VALUE ...] run a study, or what is left of it

anatomy-train norm=rms pos=rope              the 2017 Transformer with two parts of LLaMA
anatomy-train base=llama swap=norm           LLaMA with the norm of the 2017 Transformer
anatomy-train -m ffn=gelu,swiglu seed=0,1,2  six runs
anatomy-train study=swaps dry_run=true       print the plan and stop
anatomy-train --cfg job norm=rms             print the config and stop
"""
GROUPS = (
    "base",
    "norm",
    "placement",
    "pos",
    "attn",
    "ffn",
    "qk_norm",
    "window",
    "bias",
    "tying",
    "init",
    "swap",
    "scale",
    "corpus",
    "study",
)
HELP_COLUMNS = 100


def help_text() -> str:
    """Usage, every choice with its one-line comment, and the settings, read from the YAML files as they stand."""
    lines = [USAGE]
    for group in GROUPS:
        lines.append(f"{group}=")
        for name in offered(group):
            lines.append(f"  {name:<16} {top_comment(CONF / group / f'{name}.yaml')}")
            if group in PART_AXES:
                lines += _claims(group, name)
    settings = (CONF / "config.yaml").read_text(encoding="utf-8").split("\n\n", 1)[1].split("\n\nhydra:")[0]
    train = (CONF / "train" / "default.yaml").read_text(encoding="utf-8")
    return "\n".join(
        [*lines, "", settings, "", "train.*, for example train.lr=1e-3; also steps batch_size lr schedule", train]
    )


def _claims(axis: str, part: str) -> list[str]:
    """What is claimed of a part, and by whom, as it stands under its name."""
    return [
        line
        for claim in about(axis, part).claims.values()
        for line in textwrap.wrap(
            f"claim: {claim.text} ({claim.source})",
            HELP_COLUMNS,
            initial_indent=" " * 19,
            subsequent_indent=" " * 21,
            break_on_hyphens=False,
        )
    ]


def main() -> None:
    words = sys.argv[1:]
    steady_output()
    if "--version" in words:
        print(f"anatomy-train {__version__}")
        return
    if "--help" in words or "-h" in words:
        print(help_text())
        return
    try:
        sys.exit(_main(words))
    except UserError as error:
        refuse(error)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last evaluation", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _main(words: list[str]) -> int:
    from hydra._internal.utils import get_args_parser

    args = get_args_parser().parse_intermixed_args(words)
    if args.hydra_help or args.cfg or args.info or args.shell_completion:
        return _leave_to_hydra(words)
    if args.config_name or args.config_path or args.experimental_rerun or args.package or args.resolve:
        raise UserError("anatomy-train: of Hydra's flags it takes --multirun, --config-dir, --cfg, --info and --help")

    from anatomy.compose import read_command, shadowed
    from anatomy.sweep import reasons, write_manifest
    from anatomy.tune import stages

    for name in shadowed(args.config_dir) if args.config_dir else ():
        print(f"{args.config_dir}: {name} has the name of a built-in file, which wins; rename yours", file=sys.stderr)
    asked = read_command(args.overrides, multirun=args.multirun or bool(args.run), config_dir=args.config_dir)
    out = console()
    code = DONE
    for stage in stages(asked):
        plan = stage.plan
        dry_run = plan.runs[0].config.dry_run
        if asked.is_sweep or dry_run:
            out.print(f"{stage.title}: {plan}")
            for note in stage.notes:
                out.print(note)
        for line in plan.predictions():
            out.print(line)
        if dry_run:
            for line in reasons([planned for planned in plan.runs if planned.job is None]):
                out.print(line)
            return DONE
        try:
            write_manifest(plan)
        except OSError as error:
            raise UserError(f"output_dir={plan.layout.outputs}: cannot write there ({error.strerror})") from error
        code = max(code, _sweep(stage) if asked.is_sweep else _single(plan))
    if asked.is_sweep:
        _take_measures(plan)
        out.print(f"type: anatomy-report {plan.layout.study(plan.study.name)}")
    return code


def _take_measures(plan: "Plan") -> None:
    """Time what the study asks for beside its runs, where that is not done yet."""
    from anatomy.measures import ensure_measures

    jobs = [planned.job for planned in plan.runs if planned.job]
    if not plan.study.measures or not jobs:
        return
    out, study, first = console(), plan.study, jobs[0]
    ensure_measures(
        plan.layout.study(study.name),
        study.measures,
        [job.config for job in jobs],
        len(first.corpus.vocabulary),
        first.device,
        first.config.train.threads,
        announce=lambda: out.print(
            f"{study.name}: timing {', '.join(study.measures)}, about a minute; leave the machine alone"
        ),
    )


def _single(plan: "Plan") -> int:
    """Train one run, its progress shown. A finished one is shown again, not run again."""
    from anatomy.cli.progress import RunProgress
    from anatomy.runner import run
    from anatomy.runs import Busy

    (planned,) = plan.runs
    job = planned.job
    assert job is not None  # a lone run that was refused has raised
    out = console()
    out.print(
        f"{job.name}\n{job.corpus.name}: {job.corpus.num_chars:,} characters, {len(job.corpus.vocabulary)} distinct"
    )
    for note in job.corpus.notes:
        out.print(f"note: {note}")
    out.print(f"{sum(job.model.num_params_by_axis().values()):,} parameters, {_sizes(job)}")
    if planned.was_done:
        missing = f"; now measured: {', '.join(planned.lacks)}" if planned.lacks else ""
        out.print(f"done before; force=true runs it again{missing}")
    try:
        with RunProgress(out, planned.config.train.steps) as progress:
            record = run(job, planned.request.overrides, progress)
    except Busy:
        print(f"{job.name} is busy: another process is at work in {job.folder}", file=sys.stderr)
        return FAILED
    if record["status"] == "failed":
        print(f"failed: {record['error']} (see {job.folder / 'run.log'})", file=sys.stderr)
        return FAILED
    if record["status"] == "diverged":
        out.print(f"diverged: {record['error']}")
    else:
        out.print(
            f"test {record['test_loss_nats']:.4f} nats, {record['test_bits_per_char']:.4f} bits per character; "
            f"best validation {record['best_val_loss_nats']:.4f} at step {record['best_step']}; "
            f"{record['tokens_per_s'] or 0:,.0f} tokens/s"
        )
        out.print(Text(printable(record["sample"])))
    out.print(f"{job.folder}")
    return DONE


def _sizes(job: "Job") -> str:
    from anatomy.build import derived

    sizes = derived(job.model)
    return ", ".join(f"{name} {value}" for name, value in sizes.items())


def _sweep(stage: "Stage") -> int:
    """Launch what a stage of a sweep has left to do; sum up by status."""
    from anatomy.cli.progress import sweep_progress
    from anatomy.sweep import launch, reasons, summarise

    out, plan = console(), stage.plan
    broken: list[str] = []
    if plan.to_do:
        with sweep_progress(out, plan):
            broken = launch(plan)
    for line in [*reasons(plan.runs), *broken]:
        out.print(line)
    counts = summarise(plan)
    out.print(f"{stage.title}: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    return DONE if set(counts) <= {"done"} and not broken else FAILED


def _leave_to_hydra(words: list[str]) -> int:
    """Hydra's own questions: --cfg, --info, --hydra-help, --shell-completion. Nothing is trained."""
    import hydra

    from anatomy.compose import HYDRA_VERSION_BASE
    from anatomy.sweep import task

    sys.argv[1:] = words
    hydra.main(version_base=HYDRA_VERSION_BASE, config_path=str(CONF), config_name="config")(task)()
    return DONE


if __name__ == "__main__":
    main()
