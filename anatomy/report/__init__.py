"""The report: what lies under outputs, as one table a study and base.

    gather.py  folder -> studies and their runs, each record read once and checked
    rows.py    runs -> the rows of a table: which belong together, which may be compared, what each is called
    table.py   rows -> numbers, with the setup they hold for and the warnings that go with them
    views.py   numbers -> terminal, Markdown, CSV, JSON

One path makes the data; the views only show it. Nothing here imports torch: the report reads only what lies under
outputs, and works where PyTorch is not installed.
"""
