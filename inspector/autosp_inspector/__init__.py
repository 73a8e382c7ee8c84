"""AutoSP Inspector: the trace database, its queries, exporters and the command line."""

from autosp_inspector.training import recording

__all__ = ["recording"]
