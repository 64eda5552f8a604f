"""Checks and small tools that all parts of the SDK use; they know no connection."""
