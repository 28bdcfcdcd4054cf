"""The loops that keep a cluster moving. Each is a `run_once` that reports, plus one driver for all of them.

Every engine node runs all loops. N nodes recover each thing once, because exclusion lives in the statements.
"""
