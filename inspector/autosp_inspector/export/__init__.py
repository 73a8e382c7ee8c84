"""Files made from a trace: one exporter per file, all reading through the queries."""
