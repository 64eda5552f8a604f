"""Administration, for threads: the calls of `trovemq.Admin`."""

from __future__ import annotations

from trovemq import _groups, _stores, _users
from trovemq import admin as aio
from trovemq.sync._calls import Waiting, iterates, waits
from trovemq.sync._loop_thread import LoopThread


class Groups(Waiting[_groups.Groups]):
    """Consumer groups; `Client.admin.groups`."""

    create = waits(_groups.Groups.create)
    alter = waits(_groups.Groups.alter)
    delete = waits(_groups.Groups.delete)
    list_all = waits(_groups.Groups.list_all)
    describe = waits(_groups.Groups.describe)
    members = waits(_groups.Groups.members)
    lag = waits(_groups.Groups.lag)
    reset = waits(_groups.Groups.reset)
    start = waits(_groups.Groups.start)
    dead_letters = iterates(_groups.Groups.dead_letters)
    resend_dead_letters = waits(_groups.Groups.resend_dead_letters)
    resent_dead_letters = waits(_groups.Groups.resent_dead_letters)
    consume_directly = waits(_groups.Groups.consume_directly)
    stack_trace = waits(_groups.Groups.stack_trace)
    find_delayed = waits(_groups.Groups.find_delayed)


class Stores(Waiting[_stores.Stores]):
    """Brokers' stores; `Client.admin.store`."""

    scrub = iterates(_stores.Stores.scrub)
    backup = iterates(_stores.Stores.backup)


class Users(Waiting[_users.Users]):
    """Users; `Client.admin.users`."""

    create = waits(_users.Users.create)
    rotate = waits(_users.Users.rotate)
    drop_old_secret = waits(_users.Users.drop_old_secret)
    enable = waits(_users.Users.enable)
    delete = waits(_users.Users.delete)
    list_all = waits(_users.Users.list_all)


class Rules(Waiting[_users.Rules]):
    """Rules of access; `Client.admin.rules`."""

    allow = waits(_users.Rules.allow)
    deny = waits(_users.Rules.deny)
    delete = waits(_users.Rules.delete)
    list_all = waits(_users.Rules.list_all)
    test = waits(_users.Rules.test)


class Quotas(Waiting[_users.Quotas]):
    """Quotas; `Client.admin.quotas`."""

    set = waits(_users.Quotas.set)
    list_all = waits(_users.Quotas.list_all)


class Admin(Waiting[aio.Admin]):
    """Topics, groups, stores, statistics; `Client.admin`."""

    def __init__(self, inner: aio.Admin, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self.groups = Groups(inner.groups, thread)
        self.store = Stores(inner.store, thread)
        self.users = Users(inner.users, thread)
        self.rules = Rules(inner.rules, thread)
        self.quotas = Quotas(inner.quotas, thread)

    create_topic = waits(aio.Admin.create_topic)
    alter_topic = waits(aio.Admin.alter_topic)
    describe_topic = waits(aio.Admin.describe_topic)
    list_topics = waits(aio.Admin.list_topics)
    delete_topic = waits(aio.Admin.delete_topic)
    next_sequences = waits(aio.Admin.next_sequences)
    commit_offset = waits(aio.Admin.commit_offset)
    get_offset = waits(aio.Admin.get_offset)
    reset_offset = waits(aio.Admin.reset_offset)
    statistics = waits(aio.Admin.statistics)
    cluster = waits(aio.Admin.cluster)
