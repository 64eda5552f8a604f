"""Messages by key, id, time (`query_by_key`, `get_message`, `offsets_by_time`) and by conditions (`search`).

It imports the store alone, and changes nothing.
"""
