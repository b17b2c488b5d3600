"""Programs for users: the command line, estimators, bridges to other libraries.

Of the library itself, only `probjax/__init__.py` imports from here.
"""
