"""The engine: workflow code as a value, and what drives it."""
