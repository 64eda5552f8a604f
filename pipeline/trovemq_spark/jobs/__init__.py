"""The jobs of `trovemq-pipeline`, a module each."""
