"""An HTTP API for other programs, with tokens and an OpenAPI document. It is an app with tables: projects add it to INSTALLED_APPS, and
include its URLs.

May import all below. Its admin may also import from the admin. It needs no extra, queries its tables, and starts no threads.
"""
