"""What tests of workflows need: a step's info for a plain call, private databases, and a network that breaks when it is
told to.
"""

from __future__ import annotations

from ironflow.testing.steps import step_info

__all__ = ["step_info"]
