"""Topics, consumer groups and consumer offsets as RocketMQ keeps them: JSON files under `config/`.

It imports `files` alone.
"""
