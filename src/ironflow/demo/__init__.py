"""The demo: a real run over real files, its worker killed with SIGKILL, and proof that nothing was lost or
done twice.

It starts two ordinary workers as processes of their own, gives them the workflow of `examples/ingest.py`,
kills the one that executes it in the middle of a step, and then only watches. What it claims at the end it
has counted: in the journal, in the lines that each executed body appended to a file, and in the index that
the run built. Exit code 0 means that every claim was checked and holds, so the demo is a test that people can
look at.

`ingest.py` in this folder is a link to the example, so that what is shown is what can be read and changed; a
wheel holds it as a file.
"""

from ironflow.demo.main import main

__all__ = ["main"]
