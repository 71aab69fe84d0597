"""Code that runs inside a capsule's child process.

It needs the standard library, torch and the capsule alone: nothing here may import the rest of
casebook, and everything must run on Python 3.10 too, since live mode uses whatever interpreter
a GPU node has.
"""
