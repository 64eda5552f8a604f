"""Changes of topics, groups, users and rules: checked, written, durable before they are answered.

- `topic_changes`, `group_changes`, `security_changes`   by a call of a user, or for the cluster
- `config_texts`      settings as the texts of the cluster's configuration, and back
- `config_puts`, `config_security`   a topic, a group, users and rules as the cluster has them
- `local_config`      what this broker has, for the cluster's configuration; makes it equal
"""
