"""The command line. It only translates: words into calls of the engine, answers into screens, JSON and
exit codes.
"""
