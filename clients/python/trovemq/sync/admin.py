"""Administration, for threads: the calls of `trovemq.Admin`."""

from __future__ import annotations

from trovemq import admin as aio
from trovemq._admin import brokers, config, groups, replicas, stores, users
from trovemq.sync._calls import SyncWrapper, iterates, waits
from trovemq.sync._loop_thread import LoopThread


class Groups(SyncWrapper[groups.Groups]):
    """Consumer groups; `Client.admin.groups`."""

    create = waits(groups.Groups.create)
    alter = waits(groups.Groups.alter)
    delete = waits(groups.Groups.delete)
    list_all = waits(groups.Groups.list_all)
    describe = waits(groups.Groups.describe)
    members = waits(groups.Groups.members)
    lag = waits(groups.Groups.lag)
    reset = waits(groups.Groups.reset)
    start = waits(groups.Groups.start)
    dead_letters = iterates(groups.Groups.dead_letters)
    resend_dead_letters = waits(groups.Groups.resend_dead_letters)
    resent_dead_letters = waits(groups.Groups.resent_dead_letters)
    consume_directly = waits(groups.Groups.consume_directly)
    stack_trace = waits(groups.Groups.stack_trace)
    find_delayed = waits(groups.Groups.find_delayed)


class Stores(SyncWrapper[stores.Stores]):
    """Brokers' stores; `Client.admin.store`."""

    scrub = iterates(stores.Stores.scrub)
    backup = iterates(stores.Stores.backup)


class Users(SyncWrapper[users.Users]):
    """Users; `Client.admin.users`."""

    create = waits(users.Users.create)
    rotate = waits(users.Users.rotate)
    drop_old_secret = waits(users.Users.drop_old_secret)
    enable = waits(users.Users.enable)
    delete = waits(users.Users.delete)
    list_all = waits(users.Users.list_all)


class Rules(SyncWrapper[users.Rules]):
    """Rules of access; `Client.admin.rules`."""

    allow = waits(users.Rules.allow)
    deny = waits(users.Rules.deny)
    delete = waits(users.Rules.delete)
    list_all = waits(users.Rules.list_all)
    test = waits(users.Rules.test)


class Quotas(SyncWrapper[users.Quotas]):
    """Quotas; `Client.admin.quotas`."""

    set = waits(users.Quotas.set)
    list_all = waits(users.Quotas.list_all)


class Brokers(SyncWrapper[brokers.Brokers]):
    """Brokers as processes; `Client.admin.brokers`."""

    drain = waits(brokers.Brokers.drain)
    undrain = waits(brokers.Brokers.undrain)
    drain_status = waits(brokers.Brokers.drain_status)
    condition = waits(brokers.Brokers.condition)
    awaited = waits(brokers.Brokers.awaited)
    remainders = waits(brokers.Brokers.remainders)
    forget = waits(brokers.Brokers.forget)
    settings = waits(brokers.Brokers.settings)
    set_setting = waits(brokers.Brokers.set_setting)


class Config(SyncWrapper[config.Config]):
    """The cluster's configuration; `Client.admin.config`."""

    status = waits(config.Config.status)
    take_over = waits(config.Config.take_over)
    remove_member = waits(config.Config.remove_member)
    clear_dropped = waits(config.Config.clear_dropped)


class Replicas(SyncWrapper[replicas.Replicas]):
    """Replica groups; `Client.admin.replicas`."""

    groups = waits(replicas.Replicas.groups)
    promote = waits(replicas.Replicas.promote)
    switch_over = waits(replicas.Replicas.switch_over)
    pause_failover = waits(replicas.Replicas.pause_failover)
    recover = waits(replicas.Replicas.recover)
    elect_unclean = waits(replicas.Replicas.elect_unclean)
    replace = waits(replicas.Replicas.replace)
    init = waits(replicas.Replicas.init)
    leave = waits(replicas.Replicas.leave)
    add = waits(replicas.Replicas.add)
    remove = waits(replicas.Replicas.remove)
    cut_records = waits(replicas.Replicas.cut_records)
    cut_messages = waits(replicas.Replicas.cut_messages)


class Admin(SyncWrapper[aio.Admin]):
    """Topics, groups, stores, statistics; `Client.admin`."""

    def __init__(self, inner: aio.Admin, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self.groups = Groups(inner.groups, thread)
        self.store = Stores(inner.store, thread)
        self.users = Users(inner.users, thread)
        self.rules = Rules(inner.rules, thread)
        self.quotas = Quotas(inner.quotas, thread)
        self.brokers = Brokers(inner.brokers, thread)
        self.config = Config(inner.config, thread)
        self.replicas = Replicas(inner.replicas, thread)

    create_topic = waits(aio.Admin.create_topic)
    alter_topic = waits(aio.Admin.alter_topic)
    adopt_topics = waits(aio.Admin.adopt_topics)
    describe_topic = waits(aio.Admin.describe_topic)
    list_topics = waits(aio.Admin.list_topics)
    delete_topic = waits(aio.Admin.delete_topic)
    spread_topic = waits(aio.Admin.spread_topic)
    spreading = iterates(aio.Admin.spreading)
    next_sequences = waits(aio.Admin.next_sequences)
    commit_offset = waits(aio.Admin.commit_offset)
    get_offset = waits(aio.Admin.get_offset)
    reset_offset = waits(aio.Admin.reset_offset)
    statistics = waits(aio.Admin.statistics)
    cluster = waits(aio.Admin.cluster)
