"""The functional core: what a run, a step, a journal and a lease are, and what may happen to them.

Everything here is pure. No module of this package knows a clock, a random generator, a thread or a database driver:
time, ids and tokens come in as arguments, and what comes out are values that a store applies.
"""
