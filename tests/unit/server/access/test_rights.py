"""The rights that each call needs, written down once more: a row of needs.py that is changed by mistake lets
callers do things that no rule allows them, and every other test reads that row.

A call needs one of the actions of each part. `open`: no caller has to name itself; `user`: any user;
`super`: super users only.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.unit.server.access.test_matrix import requests_of
from trovemq_broker.security.actions import action_text
from trovemq_broker.server.access.needs import EVERY, ROWS, Level

RIGHTS: Final = """
trovemq.v1.MessageService
    Append: Topic Pub
    Fetch: Topic Sub
    Send: Topic Pub
    Pull: Topic Sub
    GetProducer: Topic Pub
trovemq.v1.ConsumerService
    Consume: Group Sub; Topic Sub
trovemq.v1.ProducerService
    SendDelayed: Topic Pub
    Recall: Topic Pub
    PrepareHalf: Topic Pub
    EndHalf: Topic Pub
    CheckHalves: Topic Pub
trovemq.v1.TransactionService
    Transact: Group Sub; Topic Pub; Topic Sub
    GetTransaction: user
trovemq.v1.QueryService
    GetMessage: Topics of all names Sub,Read
    QueryByKey: Topic Sub,Read
    SearchOffset: Topic Sub,Get
    QueueOffsets: Topic Sub,Get
trovemq.v1.SearchService
    Search: Topic Sub,Read
trovemq.v1.BiographyService
    Biography: Topics of all names Read
trovemq.v1.StoreService
    Scrub: Cluster Backup
    Backup: Cluster Backup
trovemq.v1.AdminService
    CreateTopic: Topic Create
    AlterTopic: Topic Update
    DescribeTopic: Topic Pub,Sub,Get
    ListTopics: user
    DeleteTopic: Topic Delete
    CommitOffset: Group Sub; Topic Sub
    GetOffset: Group Sub,Get; Topic Sub,Get
    ResetOffset: Group Update; Topic Sub,Get
    GetStatistics: Cluster Get
trovemq.v1.BrokerService
    Drain: Cluster Update
    Undrain: Cluster Update
    GetDrain: Cluster Get
    GetCondition: Cluster Get
    ListSettings: Cluster Get
    SetSetting: Cluster Update
trovemq.v1.GroupService
    CreateGroup: Group Create
    AlterGroup: Group Update
    DeleteGroup: Group Delete
    ListGroups: user
    DescribeGroup: Group Sub,Get
    ListMembers: Group Sub,Get
    GetLag: Group Sub,Get; Topic Pub,Sub,Get,List
    ResetGroup: Group Update; Topic Sub,Get
    ResendDeadLetters: Group Update; Topics of all names Pub
    FindResentDeadLetters: Group Sub,Get
    ConsumeDirectly: Group Command; Topics of all names Read
    PrintThreadStackTrace: Group Command
    FindDelayed: Topic Sub,Read
trovemq.v1.RouteService
    GetServerInfo: user
    GetRoute: Topic Pub,Sub,Get,List
    GetCluster: user
    WatchRoutes: user
trovemq.v1.RegistrationService
    Register: super
    Forget: super
trovemq.v1.ClusterConfigService
    WatchConfig: super
    ForwardChange: super
    PromiseGeneration: super
    FetchConfig: super
    GetConfigStatus: Cluster Get
    TakeOverConfig: super
    RemoveMember: super
    ClearDropped: super
trovemq.v1.ReplicaService
    GetReplica: Cluster Get
    InitGroup: super
    LeaveGroup: super
    AddNode: super
    RemoveNode: super
    Promote: super
    SwitchOver: super
    PauseFailover: super
    ListCutRecords: Cluster Get
    ReadCutRecords: super
trovemq.v1.ReplicationService
    Follow: super
    Promise: super
    ReadLog: super
    ReadConsumers: super
    GetStatus: super
    StoreMembers: super
trovemq.v1.ForwardingService
    Forward: super
    ForwardTelemetry: super
trovemq.v1.SecurityService
    Authenticate: open
    CreateUser: super
    AlterUser: super
    RotateSecret: super
    DeleteUser: super
    ListUsers: super
    CreateRule: super
    DeleteRule: super
    ListRules: super
    TestAccess: super
    SetQuota: super
    ListQuotas: super
apache.rocketmq.v2.MessagingService
    QueryRoute: Topic Pub,Sub,Get,List
    Heartbeat: Group Sub
    SendMessage: Topic Pub
    QueryAssignment: Group Sub; Topic Sub
    ReceiveMessage: Group Sub; Topic Sub
    AckMessage: Group Sub; Topic Sub
    ForwardMessageToDeadLetterQueue: Group Sub; Topic Sub
    PullMessage: Group Sub; Topic Sub
    UpdateOffset: Group Sub; Topic Sub
    GetOffset: Group Sub; Topic Sub
    QueryOffset: Topic Sub,Get
    EndTransaction: Topic Pub
    Telemetry: Group Sub; Topic Pub; Topic Sub
    NotifyClientTermination: Group Sub
    ChangeInvisibleDuration: Group Sub; Topic Sub
    RecallMessage: Topic Pub
    SyncLiteSubscription: Group Sub; Topic Sub
apache.rocketmq.v2.Admin
    ChangeLogLevel: Cluster Update
    DescribeTopicStatus: Topic Sub,Get
    ListSubscription: Group Get; Topic Sub,Get
    DescribeSubscription: Group Get; Topic Sub,Get
    DeleteSubscription: Group Update
    DescribeGroupAccumulation: Group Sub,Get
    ListConsumerConnection: Group Sub,Get
    ResetGroupOffset: Group Update; Topic Sub,Get
    QueryMessage: Topics of all names Sub,Read
    PrintThreadStackTrace: Group Command
    VerifyMessage: Group Command; Topics of all names Read
    AdminSendMessage: Topic Pub
    GetConsumerRunningInfo: Group Get,Command
    GetTopicRoute: Topic Pub,Sub,Get,List
    QueryTimeSpan: Group Sub,Get
    GetProxyRuntimeStats: Cluster Get
grpc.health.v1.Health
    Check: open
    List: open
    Watch: open
grpc.reflection.v1alpha.ServerReflection
    ServerReflectionInfo: user
"""


def written() -> dict[str, str]:
    found, service = {}, ""
    for line in RIGHTS.strip().splitlines():
        if line.startswith(" "):
            method, _, needs = line.strip().partition(": ")
            found[f"/{service}/{method}"] = needs
        else:
            service = line
    return found


def needed(path: str) -> str:
    needs = ROWS[path].needs
    if isinstance(needs, Level):
        return needs.name.lower()
    every = (need for request in requests_of(path) for need in needs(request))
    parts = (
        f"{need.kind}{'s of all names' if need.name == EVERY else ''} {action_text(need.actions)}"
        for need in every
    )
    return "; ".join(sorted(set(parts)))


@pytest.mark.parametrize("path", ROWS)
def test_a_call_lost_one_of_its_rights(path: str) -> None:
    assert needed(path) == written()[path]
