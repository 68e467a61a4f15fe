"""The injector itself: each fault does what it says, and says that it did."""

import random
from collections import Counter

from sim.network import Chances, Message, Network, VirtualTime


def network(chances: Chances | None = None, seed: int = 1) -> tuple[Network, list[tuple[float, Message]]]:
    time = VirtualTime()
    arrived: list[tuple[float, Message]] = []
    made = Network(time, random.Random(seed), lambda message: arrived.append((time.now_s, message)), chances or Chances())
    return made, arrived


def message(number: int, source: str = "a", target: str = "b", body: object = None) -> Message:
    return Message(source, target, "ask", number, body)


def drain(net: Network) -> None:
    while net.time.advance():
        pass


def test_time_goes_by_events_and_ties_keep_their_order() -> None:
    time, seen = VirtualTime(), list[str]()
    for when_s, name in ((2.0, "late"), (1.0, "first"), (1.0, "second")):
        time.at(when_s, seen.append, name)
    while time.advance():
        pass
    assert seen == ["first", "second", "late"]
    assert time.now_s == 2.0


def test_without_faults_every_message_arrives_once_within_a_hop() -> None:
    net, arrived = network()
    for number in range(200):
        net.send(message(number))
    drain(net)
    assert Counter(item.call for _, item in arrived) == Counter(range(200))
    assert all(net.hop_s[0] <= when_s <= net.hop_s[1] for when_s, _ in arrived)


def test_messages_overtake_one_another() -> None:
    net, arrived = network()
    for number in range(50):
        net.send(message(number))
    drain(net)
    assert [item.call for _, item in arrived] != list(range(50))


def test_drop_next_loses_exactly_the_message_that_fits() -> None:
    net, arrived = network()
    fault = net.drop_next(source="a", target="b", body=int)
    net.send(message(1, body="text"))
    net.send(message(2, source="c", body=7))
    assert not fault.fired
    net.send(message(3, body=7))
    net.send(message(4, body=7))
    drain(net)
    assert fault.fired
    assert [hit.call for hit in fault.hits] == [3]
    assert sorted(item.call for _, item in arrived) == [1, 2, 4]


def test_double_next_delivers_twice() -> None:
    net, arrived = network()
    fault = net.double_next(target="b", count=2)
    for number in (1, 2, 3):
        net.send(message(number))
    drain(net)
    assert fault.fired
    assert sorted(item.call for _, item in arrived) == [1, 1, 2, 2, 3]


def test_delay_next_lets_others_overtake() -> None:
    net, arrived = network()
    fault = net.delay_next(5.0)
    net.send(message(1))
    net.send(message(2))
    drain(net)
    assert fault.fired
    assert [item.call for _, item in arrived] == [2, 1]
    assert arrived[1][0] >= 5.0


def test_cut_and_isolate_lose_everything_until_healed() -> None:
    net, arrived = network()
    net.cut("a", "b")
    net.isolate("d")
    for number, (source, target) in enumerate((("a", "b"), ("b", "a"), ("a", "c"), ("d", "c"), ("c", "d"))):
        net.send(message(number, source, target))
    net.heal()
    net.send(message(9))
    drain(net)
    assert sorted(item.call for _, item in arrived) == [2, 9]
    assert net.counts["cut"] == 4


def test_chances_hit_about_as_often_as_they_say() -> None:
    net, arrived = network(Chances(drop=0.2, double=0.1, delay=0.1))
    for number in range(5000):
        net.send(message(number))
    drain(net)
    times = Counter(item.call for _, item in arrived)
    assert 900 < 5000 - len(times) < 1100  # dropped
    assert 300 < sum(1 for count in times.values() if count == 2) < 500  # doubled, and not dropped first
    assert 300 < net.counts["delayed"] < 500


def test_one_seed_is_one_run() -> None:
    runs = []
    for _ in range(2):
        net, arrived = network(Chances(drop=0.1, double=0.1, delay=0.1), seed=5)
        for number in range(300):
            net.send(message(number))
        drain(net)
        runs.append(arrived)
    assert runs[0] == runs[1]
