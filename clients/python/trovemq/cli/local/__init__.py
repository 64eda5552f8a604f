"""The daemons of `trovemq cluster local`.

- `members`     the roles: which daemon a member is, and its command line
- `directory`   the cluster's directory: its lock, its members with their ports, by cluster.json
- `processes`   a member as a child process
- `supervisor`  starts members, starts them again, stops them; knows no process
"""
