"""The pages, one module per subject. Each handler takes the console and a request, and returns a response.

A handler may raise TroveError: `app` makes an error page.
"""
