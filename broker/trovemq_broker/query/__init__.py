"""Messages by key, id, time (`query_by_key`, `get_message`, `search_offset`) and by conditions (`search`).

It imports the store alone, and changes nothing.
"""
