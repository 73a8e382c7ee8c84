"""What the headless views print: rows of the queries as text, JSON, CSV and Markdown.

One file per view builds a :class:`~autosp_inspector.report.report.Report` from rows; one
file per format renders any report.
"""
