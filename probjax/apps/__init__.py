"""Programs for users: the command line, estimators, bridges to other libraries.

Nothing here is imported by the rest of the library.
"""
