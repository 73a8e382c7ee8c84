"""AutoSP Inspector: the trace database, its queries, exporters and the command line."""
