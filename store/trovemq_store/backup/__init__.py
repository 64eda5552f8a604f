"""A live store copied into a directory, and such a copy made a store again.

Works on directories, not on the seam: a copy links and reads files by their descriptors. Synchronous: meant
for a thread, in steps, so that the caller sets the pace.
"""
