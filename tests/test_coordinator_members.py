"""The coordinator's core: servers register, crash and come back, and the map is published."""

from typing import Any

import pytest

from driven import REFUSED, SPEC, Driver, driven, register, restart
from ps_proto.errors import InvalidRequest, Recovering, Unreachable
from ps_proto.orders import AskProcess, InstallMap
from ps_proto.requests import Cluster, CreateTable, GetCluster, JoinJob, RegisterServer, ServerRegistered
from ps_proto.values import Sync
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.coordinator.plans import ORDER_AGAIN_S
from ps_server.events import Dropped


@pytest.fixture
def driver() -> Driver:
    return driven()


def test_a_server_that_registers_again_is_the_same_incarnation() -> None:
    driver = Driver(CoordinatorCore(CoreSettings(2)))
    assert register(driver, 0) == ServerRegistered("server-0", 1)
    assert register(driver, 0) == ServerRegistered("server-0", 1)
    assert driver.log == []  # one server is not two


def test_a_server_that_crashed_before_the_map_and_starts_elsewhere_is_the_next_incarnation() -> None:
    driver = Driver(CoordinatorCore(CoreSettings(2)))
    register(driver, 0)
    assert driver.outcomes[restart(driver, 0, "elsewhere", 77)] == ServerRegistered("server-0", 2)
    assert [(question.server, question.address, question.body) for question in driver.log] == [
        ("server-0", "host-0", AskProcess()),
        ("server-0", "elsewhere", AskProcess()),
    ]
    register(driver, 1)
    driver.settle()
    assert driver.get(GetCluster()).servers == {"server-0": "elsewhere", "server-1": "host-1"}


def test_a_server_restarted_on_its_port_before_the_map_is_the_next_incarnation() -> None:
    driver = Driver(CoordinatorCore(CoreSettings(2)))
    register(driver, 0)
    assert driver.outcomes[restart(driver, 0, "host-0", 77)] == ServerRegistered("server-0", 2)
    assert len(driver.log) == 1, "at that address there is nobody else to ask"


def test_a_server_that_crashed_before_every_server_had_the_map_may_come_back() -> None:
    driver = Driver(CoordinatorCore(CoreSettings(2)))
    register(driver, 0)
    register(driver, 1)
    to_first, to_second = driver.told
    driver.answer(to_second)
    driver.answer(to_first, Unreachable("server-0", "host-0", 0.1, "connection refused"))
    assert driver.outcomes[restart(driver, 0, "elsewhere", 77)] == ServerRegistered("server-0", 2)
    assert {(tell.address, tell.body.shard_map.version) for tell in driver.told} == {("elsewhere", 2), ("host-1", 2)}  # type: ignore[attr-defined]  # a map each
    driver.settle()
    shard_map = driver.get(GetCluster()).shard_map
    assert [(server.address, server.incarnation) for server in shard_map.servers] == [("elsewhere", 2), ("host-1", 1)]


def test_one_server_too_many_is_refused_with_the_names_of_those_that_are_there(driver: Driver) -> None:
    with pytest.raises(InvalidRequest, match="one of the 2 servers that this cluster was started for: server-0, server-1"):
        driver.get(RegisterServer("server-2", "host-2"))


@pytest.mark.parametrize(("name", "weight"), [("", 1.0), ("server-9", 0.0), ("server-9", -1.0), ("server-9", float("nan"))])
def test_a_server_without_a_name_or_a_weight_is_refused(name: str, weight: float) -> None:
    driver = Driver(CoordinatorCore(CoreSettings(1)))
    with pytest.raises(InvalidRequest):
        driver.get(RegisterServer(name, "host-9", weight))
    assert register(driver, 0) == ServerRegistered("server-0", 1)


def test_the_map_is_published_only_when_every_server_holds_it() -> None:
    driver = Driver(CoordinatorCore(CoreSettings(2)))
    register(driver, 0)
    register(driver, 1)
    first, second = driver.told
    assert [type(tell.body) for tell in (first, second)] == [InstallMap, InstallMap]
    driver.answer(first)
    assert driver.outcomes[driver.ask(GetCluster())].shard_map is None
    driver.answer(second)
    assert driver.outcomes[driver.ask(GetCluster())].shard_map == second.body.shard_map  # type: ignore[attr-defined]  # a map


def test_the_map_is_given_again_for_as_long_as_it_takes() -> None:
    driver = Driver(CoordinatorCore(CoreSettings(1)))
    register(driver, 0)
    for _ in range(200):
        driver.answer(driver.told[0], REFUSED)
        assert driver.told == []
        driver.tick(ORDER_AGAIN_S)
    driver.settle()
    assert driver.get(GetCluster()).shard_map is not None


def test_get_cluster_waits_for_the_map() -> None:
    driver = Driver(CoordinatorCore(CoreSettings(2)))
    request = driver.ask(GetCluster(wait_s=10.0))
    register(driver, 0)
    register(driver, 1)
    assert request not in driver.outcomes
    driver.settle()
    cluster = driver.outcomes[request]
    assert isinstance(cluster, Cluster)
    assert cluster.shard_map is not None
    assert (cluster.servers_expected, cluster.world_size, cluster.mode, cluster.ranks) == (2, 0, None, {})


def test_get_cluster_says_at_its_deadline_how_many_servers_are_there() -> None:
    driver = Driver(CoordinatorCore(CoreSettings(3)))
    request = driver.ask(GetCluster(wait_s=10.0))
    register(driver, 0)
    assert driver.core.deadline_s() == 10.0
    driver.tick(9.99)
    assert request not in driver.outcomes
    driver.tick(0.01)
    assert "1 of 3 servers have registered" in str(driver.outcomes[request])
    assert driver.core.deadline_s() is None


def test_get_cluster_says_where_only_the_map_is_missing() -> None:
    driver = Driver(CoordinatorCore(CoreSettings(1)))
    register(driver, 0)
    request = driver.ask(GetCluster(wait_s=1.0))
    driver.tick(1.0)
    assert "not every server has taken the shard map" in str(driver.outcomes[request])


def test_without_a_wait_the_cluster_is_shown_as_it_is() -> None:
    driver = Driver(CoordinatorCore(CoreSettings(2)))
    register(driver, 1)
    assert driver.outcomes[driver.ask(GetCluster())] == Cluster(2, None, servers={"server-1": "host-1"})


@pytest.mark.parametrize("body", [CreateTable(SPEC), JoinJob(0, 1, Sync(), 1)], ids=lambda body: type(body).__name__)
def test_nothing_begins_before_the_map(body: Any) -> None:
    driver = Driver(CoordinatorCore(CoreSettings(2)))
    register(driver, 0)
    with pytest.raises(Recovering, match="1 of 2"):
        driver.get(body)


def test_one_who_has_gone_gets_no_answer() -> None:
    driver = Driver(CoordinatorCore(CoreSettings(1)))
    request = driver.ask(GetCluster(wait_s=10.0))
    driver.turn(Dropped(request))
    register(driver, 0)
    driver.settle()
    driver.tick(20.0)
    assert request not in driver.outcomes
