"""The report: what lies under outputs, told with its uncertainty and its cost.

    gather.py       folder -> studies and their runs, each record read once and checked
    plan.py         what a study said it would run
    rows.py         runs -> the rows of a table: which belong together, which may be compared, what each is called
    evidence.py     what lies beside the records of the first rows: curves, losses by target, samples, digests
    verdict.py      paired differences -> intervals, p values, verdicts, power (pure functions)
    measure.py      a row's runs -> its numbers
    attribution.py  all compositions between two bases -> who earned what
    tuned.py        a study that tunes its rates -> two tables
    finding.py      numbers -> sentences
    table.py        all of it, in order: folder -> Report
    data.py         Report: the data that the views show

    columns.py, words.py            what views with lines have in common
    views.py                        terminal, Markdown, LaTeX, CSV, JSON
    drawing.py, figures.py, attribution_figures.py, captions.py     figures
    page.py, page.html.j2           the HTML page

One path makes the data; the views only show it. Nothing here imports torch: the report reads only what lies under
outputs, and works where PyTorch is not installed.
"""
