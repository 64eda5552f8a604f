"""Search by conditions on topic, key, time and properties: a plan, walks through the trees, matching."""
