"""The native protocol, version 1: `.proto` files and the code generated from them (`make proto`)."""
