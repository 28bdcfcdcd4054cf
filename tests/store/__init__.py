"""What every store promises (`test_conformance_*`, on both databases), and what each adds to it."""
