"""Schema 5: what was measured in a training run."""

from __future__ import annotations

from autosp_inspector.migrations.migration import Migration

_MEASUREMENT = """
CREATE TABLE measurement (
    -- The figures of the measured steps of a training: at most one row. NULL: not known.
    id INTEGER PRIMARY KEY CHECK (id = 1), -- always 1
    device_type TEXT NOT NULL, -- cpu, cuda, ...
    device TEXT NOT NULL, -- the device's own name
    compilation INTEGER NOT NULL, -- compilation whose steps were measured
    steps INTEGER NOT NULL, -- number of timed steps; times are their medians
    step_ns INTEGER NOT NULL, -- wall time, first forward to last backward or optimizer step
    forward_ns INTEGER NOT NULL, -- of the compiled forward graph, all micro-batches
    backward_ns INTEGER NOT NULL, -- of the compiled backward graph, all micro-batches
    optimizer_ns INTEGER, -- of the optimizers of torch
    detail TEXT NOT NULL, -- what measured_node holds: nodes, collectives, or steps (it is empty)
    peak_bytes INTEGER, -- most bytes alive in the profiled step, base_bytes included
    base_bytes INTEGER, -- bytes alive when that step began
    peak_source TEXT, -- allocator (of the device) or profiler (the CPU's allocations)
    notes TEXT NOT NULL -- JSON array: what was not measured, and why
) STRICT
"""

_MEASURED_STEP = """
CREATE TABLE measured_step (
    -- Wall time of each timed step; no profiler ran.
    step_index INTEGER PRIMARY KEY, -- number of the step in the run, from 0
    step_ns INTEGER NOT NULL, -- first forward to last backward or optimizer step
    forward_ns INTEGER NOT NULL, -- of the compiled forward graph
    backward_ns INTEGER NOT NULL, -- of the compiled backward graph
    optimizer_ns INTEGER -- of the optimizers of torch; NULL when none was seen
) STRICT
"""

_MEASURED_NODE = """
CREATE TABLE measured_node (
    -- Nodes of the profiled step.
    graph_id INTEGER NOT NULL REFERENCES graph (id), -- the graph: forward or backward
    node_text INTEGER NOT NULL REFERENCES text (id), -- name of the node
    runs INTEGER NOT NULL, -- how often it ran in the step
    start_ns INTEGER NOT NULL, -- start of its first run, from the begin of the step
    duration_ns INTEGER NOT NULL, -- time of all its runs
    PRIMARY KEY (graph_id, node_text)
) STRICT
"""

_ESTIMATED_AND_MEASURED = """
CREATE VIEW estimated_and_measured AS
    -- Nodes with an estimated or a measured time, readable.
    SELECT graph.compilation, graph.name AS graph, node.value AS node, times.estimated_ns,
           times.measured_ns, times.measured_start_ns, times.runs
    FROM (
        SELECT cost.graph_id, cost.node_text, cost.duration_ns AS estimated_ns,
               measured_node.duration_ns AS measured_ns,
               measured_node.start_ns AS measured_start_ns, measured_node.runs
        FROM cost LEFT JOIN measured_node ON measured_node.graph_id = cost.graph_id
            AND measured_node.node_text = cost.node_text
        UNION ALL
        SELECT graph_id, node_text, NULL, duration_ns, start_ns, runs FROM measured_node
        WHERE NOT EXISTS (SELECT 1 FROM cost WHERE cost.graph_id = measured_node.graph_id
                          AND cost.node_text = measured_node.node_text)
    ) AS times
    JOIN graph ON graph.id = times.graph_id
    JOIN text AS node ON node.id = times.node_text
"""

MEASUREMENTS = Migration(
    number=5,
    name="measurements of trainings",
    statements=(_MEASUREMENT, _MEASURED_STEP, _MEASURED_NODE, _ESTIMATED_AND_MEASURED),
)
