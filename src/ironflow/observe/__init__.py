"""Watching Ironflow from outside: metrics for Prometheus, traces for OpenTelemetry.

The engine knows only the small interface in `seam`; whoever watches nothing pays one look at an attribute a commit.
Both implementations are told of a thing after it is committed, so no figure and no span tells of what did not happen,
and whatever goes wrong with them is theirs: a run is never slower to end, or ends otherwise, because it was watched.
"""
