"""Verifiable runs: messages that are made from a seed, a ledger of their fates, and the check of both.

`content` makes the messages, `ledger` is the file, `producing` sends, `checking` reads it all back, and
`evidence` compares (no network) the messages with the ledger, which lies in a database (`ledger_rows`)
meanwhile. The command line's `verify` is the only user.
"""
