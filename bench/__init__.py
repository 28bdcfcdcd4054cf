"""The bench: what the engine costs, measured beside what the same rows and commits cost without it.

`python3 dev.py bench` runs everything. One module per work (`w1_latency` … `w10_streams`; W6 has three), and around
them: `stores` (fresh databases on disk), `floor` (the engine's own rows, written again by a bare driver), `cluster`
(servers and workers as processes), `measure` (interleaved rounds and medians), `targets` (what we hold ourselves to),
`report` (the table). A figure without its floor says more about the disk than about the engine, so none is printed
without, where there is one.
"""
