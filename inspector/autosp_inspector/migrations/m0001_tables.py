"""Schema 1: the tables and their indexes.

SQLite keeps the comments of a ``CREATE TABLE`` in the file, so every trace explains
itself (``.schema`` in the sqlite3 shell), and ``docs/trace-schema.md`` is made of them:
one comment line before the first column says what the table is, and each column has
its meaning behind it.
"""

from __future__ import annotations

from autosp_inspector.migrations.migration import Migration

_MIGRATION_LOG = """
CREATE TABLE schema_migration (
    -- Which schema steps were applied to this file.
    number INTEGER PRIMARY KEY, -- number of the step
    name TEXT NOT NULL -- what the step does
) STRICT
"""

_RUN = """
CREATE TABLE run (
    -- The header: one row.
    id INTEGER PRIMARY KEY CHECK (id = 1), -- always 1
    autosp_version TEXT NOT NULL, -- version of the compiler
    torch_version TEXT NOT NULL, -- version of torch
    mode TEXT NOT NULL, -- dry_run or training
    rank INTEGER NOT NULL, -- rank that wrote this file
    world_size INTEGER NOT NULL, -- number of ranks of the run
    mesh TEXT NOT NULL, -- JSON object: mesh axis to size, outermost first
    model TEXT NOT NULL, -- where the model comes from
    config TEXT NOT NULL, -- JSON object: every option that influenced the result
    gradient_convention TEXT NOT NULL, -- how gradients are normalised at the boundary
    hardware TEXT, -- JSON object: the device row behind the estimates; NULL when none was chosen
    status TEXT, -- ok or failed; NULL while the run has not finished
    message TEXT NOT NULL DEFAULT '', -- why it failed
    duration_ns INTEGER -- wall time of the whole compilation
) STRICT
"""

_TEXT = """
CREATE TABLE text (
    -- Every repeated text, stored once; columns that end in `_text` hold its id.
    id INTEGER PRIMARY KEY, -- number of the text
    value TEXT NOT NULL UNIQUE -- the text; untrusted, may hold any character
) STRICT
"""

_SOURCE = """
CREATE TABLE source (
    -- Lines of the user's program.
    id INTEGER PRIMARY KEY, -- number of the location
    file_text INTEGER NOT NULL REFERENCES text (id), -- path of the file
    line INTEGER NOT NULL, -- line number, from 1
    function_text INTEGER NOT NULL REFERENCES text (id), -- enclosing function; empty when unknown
    line_text INTEGER NOT NULL REFERENCES text (id) -- text of the line; empty when unknown
) STRICT
"""

_PASS = """
CREATE TABLE pass (
    -- The passes of the compiler, in order.
    pass_index INTEGER PRIMARY KEY, -- 0 is the capture
    name TEXT NOT NULL, -- name of the pass
    description TEXT NOT NULL, -- what it does, one line
    options TEXT NOT NULL, -- JSON object: the options of the pass
    compilation INTEGER NOT NULL, -- number of the compilation; a new sequence length starts another
    duration_ns INTEGER, -- wall time; NULL when the pass did not finish
    status TEXT NOT NULL, -- ok, failed, skipped or unfinished
    message TEXT NOT NULL -- why it failed or was skipped
) STRICT
"""

_GRAPH = """
CREATE TABLE graph (
    -- The graphs; a recompilation has its own set.
    id INTEGER PRIMARY KEY, -- number of the graph
    compilation INTEGER NOT NULL, -- compilation it belongs to
    name TEXT NOT NULL, -- program, joint, forward or backward
    UNIQUE (compilation, name)
) STRICT
"""

_PASS_GRAPH = """
CREATE TABLE pass_graph (
    -- What a pass did to a graph, in numbers.
    pass_index INTEGER NOT NULL REFERENCES pass (pass_index), -- the pass
    graph_id INTEGER NOT NULL REFERENCES graph (id), -- the graph
    nodes INTEGER NOT NULL, -- number of nodes after the pass
    added INTEGER NOT NULL, -- nodes that were not there before
    removed INTEGER NOT NULL, -- nodes that are no longer there
    changed INTEGER NOT NULL, -- nodes of the same name with other content
    moved INTEGER NOT NULL, -- nodes whose order relative to others changed, content did not
    PRIMARY KEY (pass_index, graph_id)
) STRICT, WITHOUT ROWID
"""

_NODE = """
CREATE TABLE node (
    -- Versions of nodes: a version lives from born_pass until before died_pass.
    id INTEGER PRIMARY KEY, -- number of the version
    graph_id INTEGER NOT NULL REFERENCES graph (id), -- the graph
    name_text INTEGER NOT NULL REFERENCES text (id), -- name, unique in the graph at any pass
    born_pass INTEGER NOT NULL, -- first pass after which it is there
    died_pass INTEGER, -- first pass after which it is not; NULL when it lives to the end
    order_key INTEGER NOT NULL, -- sorts the graph; see move
    op_text INTEGER NOT NULL REFERENCES text (id), -- kind of FX node
    target_text INTEGER NOT NULL REFERENCES text (id), -- operator, or an input's own name
    role_text INTEGER NOT NULL REFERENCES text (id), -- input, compute, collective, ...
    phase_text INTEGER NOT NULL REFERENCES text (id), -- forward, backward or optimizer
    dtype_text INTEGER REFERENCES text (id), -- element type; NULL when unknown
    global_shape_text INTEGER REFERENCES text (id), -- JSON; NULL when only on a rank
    local_shape_text INTEGER REFERENCES text (id), -- JSON; shape on one rank
    placement_text INTEGER REFERENCES text (id), -- e.g. S(1:seq); NULL before sharding
    local_bytes INTEGER, -- bytes on one rank; NULL when unknown
    module_text INTEGER NOT NULL REFERENCES text (id), -- module path; empty for the root
    module_class_text INTEGER NOT NULL REFERENCES text (id), -- class of that module
    source_id INTEGER REFERENCES source (id), -- line of the user's program; NULL when unknown
    saved INTEGER NOT NULL, -- 1: kept from the forward for the backward
    recomputed INTEGER NOT NULL, -- 1: computed again in the backward
    reason_text INTEGER NOT NULL REFERENCES text (id) -- why the compiler added it, or empty
) STRICT
"""

_MOVE = """
CREATE TABLE move (
    -- A node version has another order_key from this pass on; its content is the same.
    graph_id INTEGER NOT NULL REFERENCES graph (id), -- the graph
    pass_index INTEGER NOT NULL, -- first pass with the new key
    node_id INTEGER NOT NULL REFERENCES node (id), -- the node version
    order_key INTEGER NOT NULL, -- its key from that pass on
    PRIMARY KEY (graph_id, pass_index, node_id)
) STRICT, WITHOUT ROWID
"""

_EDGE = """
CREATE TABLE edge (
    -- Inputs of a node version, by name within its graph.
    node_id INTEGER NOT NULL REFERENCES node (id), -- the node version that reads
    slot INTEGER NOT NULL, -- position among the inputs, from 0
    input_text INTEGER NOT NULL REFERENCES text (id), -- name of the node that is read
    PRIMARY KEY (node_id, slot)
) STRICT, WITHOUT ROWID
"""

_ORIGIN = """
CREATE TABLE origin (
    -- Lineage: the program nodes that a node version comes from.
    node_id INTEGER NOT NULL REFERENCES node (id), -- the node version
    slot INTEGER NOT NULL, -- position among the origins, from 0
    program_text INTEGER NOT NULL REFERENCES text (id), -- name of the program node
    PRIMARY KEY (node_id, slot)
) STRICT, WITHOUT ROWID
"""

_COLLECTIVE = """
CREATE TABLE collective (
    -- Versions of collectives, with the same born and died as for nodes.
    id INTEGER PRIMARY KEY, -- number of the version
    graph_id INTEGER NOT NULL REFERENCES graph (id), -- the graph
    node_text INTEGER NOT NULL REFERENCES text (id), -- name of its start node
    born_pass INTEGER NOT NULL, -- first pass after which it is there
    died_pass INTEGER, -- first pass after which it is not; NULL when it lives to the end
    kind TEXT NOT NULL, -- all_to_all, all_gather, reduce_scatter, all_reduce, ...
    phase TEXT NOT NULL, -- forward, backward or optimizer
    origin TEXT NOT NULL, -- implicit (by the compiler) or explicit (in the user's program)
    axis TEXT NOT NULL, -- mesh axis
    group_size INTEGER NOT NULL, -- ranks that take part
    bytes INTEGER NOT NULL, -- this rank's larger buffer
    dtype TEXT NOT NULL, -- element type
    module_text INTEGER NOT NULL REFERENCES text (id), -- module path
    cause_text INTEGER NOT NULL REFERENCES text (id), -- program node for whose sake it exists
    reason_text INTEGER NOT NULL REFERENCES text (id), -- why
    source_placement TEXT NOT NULL, -- placement before
    target_placement TEXT NOT NULL -- placement after
) STRICT
"""

_DECISION = """
CREATE TABLE decision (
    -- Choices of the passes, in the order they were made.
    id INTEGER PRIMARY KEY, -- number of the decision
    pass_index INTEGER NOT NULL, -- the pass that made it
    status TEXT NOT NULL, -- applied, missed, failed or analysis
    topic TEXT NOT NULL, -- kind of choice
    node_text INTEGER NOT NULL REFERENCES text (id), -- program node; empty for the whole program
    module_text INTEGER NOT NULL REFERENCES text (id), -- module of that node
    chosen TEXT NOT NULL, -- what was chosen
    reason TEXT NOT NULL, -- why
    rule TEXT NOT NULL -- the rule and where it lives
) STRICT
"""

_ALTERNATIVE = """
CREATE TABLE alternative (
    -- What a decision did not choose.
    decision_id INTEGER NOT NULL REFERENCES decision (id), -- the decision
    slot INTEGER NOT NULL, -- position among the alternatives, from 0
    name TEXT NOT NULL, -- the option
    reason TEXT NOT NULL, -- why not
    cost TEXT NOT NULL, -- its price in words; empty when not priced
    PRIMARY KEY (decision_id, slot)
) STRICT, WITHOUT ROWID
"""

_FINDING = """
CREATE TABLE finding (
    -- What the user should know.
    id INTEGER PRIMARY KEY, -- order of discovery
    code TEXT NOT NULL, -- stable code
    severity TEXT NOT NULL, -- error, warning or info
    message TEXT NOT NULL, -- one line
    node TEXT NOT NULL, -- node concerned; may be empty
    module TEXT NOT NULL, -- module concerned; may be empty
    source_id INTEGER REFERENCES source (id), -- line of the user's program; NULL when unknown
    hint TEXT NOT NULL -- what to do; may be empty
) STRICT
"""

_COST = """
CREATE TABLE cost (
    -- Estimated cost of one execution of a node.
    graph_id INTEGER NOT NULL REFERENCES graph (id), -- the graph
    node_text INTEGER NOT NULL REFERENCES text (id), -- name of the node
    flops INTEGER, -- floating point operations; NULL when unknown
    memory_bytes INTEGER, -- bytes read plus written; NULL when unknown
    duration_ns INTEGER, -- time; NULL when unknown
    source_text INTEGER NOT NULL REFERENCES text (id), -- where the time comes from
    PRIMARY KEY (graph_id, node_text)
) STRICT, WITHOUT ROWID
"""

_TIMELINE = """
CREATE TABLE timeline (
    -- Bars of the estimated step, per stream.
    event_index INTEGER PRIMARY KEY, -- order
    stream TEXT NOT NULL, -- compute, or comm:<axis>
    phase TEXT NOT NULL, -- forward, backward or optimizer
    node_text INTEGER NOT NULL REFERENCES text (id), -- name of the node
    label_text INTEGER NOT NULL REFERENCES text (id), -- what to write on the bar
    start_ns INTEGER NOT NULL, -- start, from the begin of the step
    duration_ns INTEGER NOT NULL, -- length
    exposed_ns INTEGER, -- part that nothing hides; communication only
    module_text INTEGER NOT NULL REFERENCES text (id) -- module path
) STRICT
"""

_MEMORY = """
CREATE TABLE memory (
    -- Live bytes of this rank over the step.
    point_index INTEGER PRIMARY KEY, -- order
    phase TEXT NOT NULL, -- forward, backward or optimizer
    node_text INTEGER NOT NULL REFERENCES text (id), -- node that runs
    module_text INTEGER NOT NULL REFERENCES text (id), -- its module path
    live_bytes INTEGER NOT NULL, -- bytes of all live tensors
    categories TEXT NOT NULL -- JSON object: category to bytes; they sum to live_bytes
) STRICT
"""

_LIVE_TENSOR = """
CREATE TABLE live_tensor (
    -- Tensors that are alive at the peak.
    id INTEGER PRIMARY KEY, -- order
    node TEXT NOT NULL, -- node that made it
    phase TEXT NOT NULL, -- phase of that node
    category TEXT NOT NULL, -- memory category
    bytes INTEGER NOT NULL, -- size on this rank
    dtype TEXT NOT NULL, -- element type
    shape TEXT NOT NULL, -- JSON array: shape on this rank
    module TEXT NOT NULL, -- module path
    source_id INTEGER REFERENCES source (id), -- line that created it; NULL when unknown
    last_used_by TEXT NOT NULL -- last node that reads it
) STRICT
"""

_ESTIMATE = """
CREATE TABLE estimate (
    -- The figures a report starts with: at most one row. NULL: this level is not modelled.
    id INTEGER PRIMARY KEY CHECK (id = 1), -- always 1
    peak_live_bytes INTEGER NOT NULL, -- highest sum of live tensors
    peak_phase TEXT NOT NULL, -- phase of the peak
    peak_node TEXT NOT NULL, -- node that runs at the peak
    peak_module TEXT NOT NULL, -- its module
    peak_source_id INTEGER REFERENCES source (id), -- its line; NULL when unknown
    peak_categories TEXT NOT NULL, -- JSON object: category to bytes at the peak
    peak_index INTEGER NOT NULL, -- point_index of the peak in memory
    allocated_bytes INTEGER, -- with the allocator's rounding and workspaces
    reserved_bytes INTEGER, -- segments of the caching allocator
    device_bytes INTEGER, -- with context and communication library
    capacity_bytes INTEGER, -- memory of the device
    fits INTEGER, -- 1 or 0
    step_ns INTEGER, -- time of a step
    compute_ns INTEGER, -- busy time of the compute stream
    communication_ns INTEGER, -- busy time of the communication streams
    exposed_ns INTEGER, -- communication that nothing hides
    hidden_ns INTEGER, -- communication behind compute
    sharded_flops_fraction REAL, -- share of the floating point operations that are sharded
    sharded_saved_bytes_fraction REAL, -- share of the saved bytes that are sharded
    not_modelled TEXT NOT NULL -- JSON array: what the figures leave out
) STRICT
"""

_INDEXES = (
    "CREATE INDEX node_by_name ON node (name_text, graph_id, born_pass)",
    "CREATE INDEX node_by_life ON node (graph_id, born_pass, died_pass, order_key)",
    "CREATE INDEX node_by_death ON node (graph_id, died_pass) WHERE died_pass IS NOT NULL",
    "CREATE INDEX node_by_module ON node (graph_id, module_text)",
    "CREATE INDEX edge_by_input ON edge (input_text)",
    "CREATE INDEX origin_by_program ON origin (program_text)",
    "CREATE INDEX collective_by_node ON collective (graph_id, node_text)",
    "CREATE INDEX decision_by_pass ON decision (pass_index)",
    "CREATE INDEX decision_by_node ON decision (node_text)",
    "CREATE INDEX timeline_by_start ON timeline (start_ns)",
    "CREATE INDEX timeline_by_node ON timeline (node_text)",
)

TABLES = Migration(
    number=1,
    name="tables",
    statements=(
        _RUN,
        _TEXT,
        _SOURCE,
        _PASS,
        _GRAPH,
        _PASS_GRAPH,
        _NODE,
        _MOVE,
        _EDGE,
        _ORIGIN,
        _COLLECTIVE,
        _DECISION,
        _ALTERNATIVE,
        _FINDING,
        _COST,
        _TIMELINE,
        _MEMORY,
        _LIVE_TENSOR,
        _ESTIMATE,
        _MIGRATION_LOG,
        *_INDEXES,
    ),
)
