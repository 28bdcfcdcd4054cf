"""The worker that speaks to a server: the same worker as the one on a database, over another port."""
