"""The pages, one module a subject. Each handler takes the console and a request, and gives a response.

A handler lets TroveError out: `app` makes a page of it.
"""
