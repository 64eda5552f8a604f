"""Command line for a store that no daemon has open: verify, dump, export, repair, restore."""
