"""A node of a cluster: the engine over HTTP. It hands out work, takes in what workers report, and runs the loops.

A node keeps nothing that another one needs: whatever a request is about is read from the database, so any node behind a
load balancer answers any request, and one that dies takes nothing with it.
"""
