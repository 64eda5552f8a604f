"""Verifiable runs: messages that are made from a seed, a ledger of their outcomes, and the check of both.

`content` makes the messages, `ledger` is the file, `producing` sends, `checking` reads it all back, and
`evidence` compares the messages with the ledger without network; the ledger is then in a database
(`ledger_rows`). Only the command line's `verify` uses this package.
"""
