"""Everything the journal stores of the authors' data: values, arguments, exceptions.

`values` turns results into text and back, `arguments` does so for calls, `exceptions` for failures. Nothing
here touches a clock, a file or a database, nothing stored is ever executed (no pickle), and every promise is
checked when something is stored rather than when it is needed.
"""
