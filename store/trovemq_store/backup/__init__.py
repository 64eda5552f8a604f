"""Copies a live store into a directory, and makes a store of such a copy.

Works on directories, not on the seam: a copy links and reads files by their descriptors. Synchronous: meant
for a thread, in steps, so that the caller sets the pace.
"""
