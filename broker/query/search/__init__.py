"""Search by conditions over topic, key, time, properties: a plan, walks over the trees, matches."""
