"""Jobs over HTTP for programs that are not of this project: plain views, tokens, an OpenAPI document. An app of its own, with tables
of its own; nothing of it is there until the project lists the app and includes its addresses.

May import all below, and its admin what the admins share; needs no extra. Queries; no threads.
"""
