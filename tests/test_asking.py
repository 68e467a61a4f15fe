"""Asking until there is an answer: scripted outcomes, time that passes only where the script says so."""

from typing import Any

import pytest

from ps_proto.errors import (
    BarrierTimeout,
    InvalidRequest,
    MapBehind,
    NotOwner,
    Overloaded,
    ParameterServerError,
    Recovering,
    RowsUnset,
    StaleIncarnation,
    StalenessTimeout,
    UnknownKeyList,
    Unreachable,
)
from ps_proto.requests import Done, Fence, Finish, GetCluster
from ps_worker.asking import Asker, Call, Patience, Question
from ps_worker.retry import Backoff
from scripted import After, Scripted, silence

PATIENCE = Patience(rpc_timeout_s=1.0, retry_timeout_s=10.0, wait_timeout_s=25.0, backoff=Backoff(0.5, 2.0))
BLIP = Unreachable("a", "host:1", 0.0, "connection refused")


def ask(script: Scripted, patience: Patience = PATIENCE, **bodies: Any) -> dict[str, Any]:
    asker = Asker(script.world, patience)
    return script.run(asker.ask({peer: Question(f"host-{peer}", body, hand_on=f"the map for {peer}") for peer, body in bodies.items()}))


def scripted(**outcomes: list[Any]) -> Scripted:
    """Answer each peer's calls one after another from its list."""
    return Scripted(lambda call: outcomes[call.peer].pop(0))


def peers(script: Scripted) -> list[str]:
    return [call.peer for call in script.calls]


def test_all_are_asked_at_once_and_answers_come_by_peer() -> None:
    script = scripted(a=["one"], b=["two"])
    assert ask(script, a="x", b="y") == {"a": "one", "b": "two"}
    assert script.calls == [Call("a", "host-a", "x", 1.0), Call("b", "host-b", "y", 1.0)]
    assert script.pauses == []


UNKNOWN = UnknownKeyList("a", "user", 7)


def test_who_does_not_know_a_key_list_is_asked_in_full_at_once_and_the_others_not_again() -> None:
    script = scripted(a=[BLIP, UNKNOWN, "one"], b=["two"])
    questions = {"a": Question("host-a", "by list", in_full=lambda: "in full"), "b": Question("host-b", "y", in_full=lambda: "never")}
    assert script.run(Asker(script.world, PATIENCE).ask(questions)) == {"a": "one", "b": "two"}
    assert [(call.peer, call.body) for call in script.calls] == [("a", "by list"), ("b", "y"), ("a", "by list"), ("a", "in full")]
    assert len(script.pauses) == 1


def test_who_does_not_know_a_key_list_though_it_was_sent_in_full_is_an_error() -> None:
    script = scripted(a=[UNKNOWN, UNKNOWN])
    with pytest.raises(UnknownKeyList):
        script.run(Asker(script.world, PATIENCE).ask({"a": Question("host-a", "by list", in_full=lambda: "in full")}))


def test_a_refusal_in_full_is_heard_as_any() -> None:
    script, heard = scripted(a=[UNKNOWN, InvalidRequest("rows", "nan", "finite")]), []
    with pytest.raises(InvalidRequest):
        script.run(Asker(script.world, PATIENCE).ask({"a": Question("host-a", "x", in_full=lambda: "y")}, lambda: heard.append(True)))
    assert heard == [True]


def test_nothing_to_ask_asks_nothing() -> None:
    script = scripted()
    assert ask(script) == {}
    assert script.calls == []


@pytest.mark.parametrize("passing", [BLIP, Recovering("a", "it starts"), Overloaded("a", 9, 9)], ids=lambda error: type(error).__name__)
def test_only_who_has_not_answered_is_asked_again_with_growing_pauses(passing: ParameterServerError) -> None:
    script = scripted(a=[passing, passing, passing, passing, "one"], b=["two"])
    assert ask(script, a="x", b="y") == {"a": "one", "b": "two"}
    assert peers(script) == ["a", "b", "a", "a", "a", "a"]
    assert script.pauses == [0.5, 1.0, 2.0, 2.0]


def test_a_silent_peer_is_given_up_by_name_after_the_retry_budget() -> None:
    script = Scripted(silence)
    with pytest.raises(Unreachable, match=r"a at host-a did not answer for 1\d\.\d s \(timed out\)") as raised:
        ask(script, a="x")
    # calls of 1 s, pauses of 0.5, 1, 2, 2, ...: calls end at 1, 2.5, 4.5, 7.5, 10.5
    assert (len(script.calls), raised.value.after_s, script.now_s) == (5, 10.5, 10.5)


def test_one_silent_peer_does_not_hide_behind_others_that_answer() -> None:
    script = Scripted(lambda call: silence(call) if call.peer == "b" else "one")
    with pytest.raises(Unreachable) as raised:
        ask(script, a="x", b="y", c="z")
    assert raised.value.peer == "b"
    assert peers(script).count("a") == peers(script).count("c") == 1


def test_a_peer_that_recovers_for_too_long_is_given_up_with_its_own_reason() -> None:
    script = Scripted(lambda call: After(1.0, Recovering("server-0", "it has no shard map yet")))
    with pytest.raises(Recovering, match="server-0 cannot answer now: it has no shard map yet"):
        ask(script, a="x")
    assert 10.0 <= script.now_s < 13.0


def test_what_a_peer_says_of_a_third_one_keeps_that_ones_name() -> None:
    script = Scripted(lambda call: After(5.0, Unreachable("server-1", "host:7", 5.0, "connection refused")))
    with pytest.raises(Unreachable, match="server-1 at host:7 did not answer"):
        ask(script, coordinator="x")


def test_what_no_retry_mends_is_raised_at_once() -> None:
    script = scripted(a=[StaleIncarnation(0, 2, 1)], b=[BLIP])
    with pytest.raises(StaleIncarnation):
        ask(script, a="x", b="y")
    assert len(script.calls) == 2


def test_not_owner_is_raised_only_where_there_is_nothing_worse() -> None:
    with pytest.raises(NotOwner):
        ask(scripted(a=[NotOwner("a", 2)], b=[BLIP], c=["three"]), a="x", b="y", c="z")
    with pytest.raises(InvalidRequest):
        ask(scripted(a=[NotOwner("a", 2)], b=[InvalidRequest("dim", "3", "4")]), a="x", b="y")


def test_a_peer_whose_map_is_behind_gets_the_map_and_is_asked_again_at_once() -> None:
    script = scripted(a=[MapBehind("a", 1, 2), "map taken", "one"], b=["two"])
    assert ask(script, a="x", b="y") == {"a": "one", "b": "two"}
    assert [(call.peer, call.body) for call in script.calls] == [("a", "x"), ("b", "y"), ("a", "the map for a"), ("a", "x")]
    assert script.pauses == []


def test_a_map_that_is_lost_on_its_way_is_handed_on_again_until_the_budget_is_spent() -> None:
    def answer(call: Call) -> Any:
        return silence(call) if call.body == "the map for a" else MapBehind("a", 1, 2)

    with pytest.raises(MapBehind):
        ask(script := Scripted(answer), a="x")
    assert 10.0 <= script.now_s < 13.0


@pytest.mark.parametrize(
    "waiting",
    [StalenessTimeout(3, 1, 0, 1, 10.0), RowsUnset("user", 3, 10.0), BarrierTimeout(0, "1", 10.0)],
    ids=lambda error: type(error).__name__,
)
def test_a_long_wait_is_told_and_ends(waiting: ParameterServerError) -> None:
    script = Scripted(lambda call: After(10.0, waiting))
    with pytest.raises(type(waiting)) as raised:
        ask(script, a="x")
    assert [error.after_s for error in script.told] == [10.0, 20.0]  # type: ignore[attr-defined]
    assert raised.value.after_s == 30.0  # type: ignore[attr-defined]  # the first slice to end past wait_timeout_s
    assert script.pauses == []  # each slice waits on the server


def test_a_wait_that_is_over_in_time_is_an_answer() -> None:
    slice_over = After(10.0, StalenessTimeout(3, 1, 0, 1, 10.0))
    script = scripted(a=[slice_over, slice_over, "one"])
    assert ask(script, a="x") == {"a": "one"}
    assert len(script.told) == 2


def test_a_peer_that_was_heard_in_between_is_not_taken_for_silent() -> None:
    slice_over = After(8.0, StalenessTimeout(3, 1, 0, 1, 8.0))
    script = scripted(a=[BLIP, slice_over, slice_over, BLIP, "one"])
    assert ask(script, a="x") == {"a": "one"}


def test_a_peer_that_does_not_know_a_key_list_was_heard_too() -> None:
    script = scripted(a=[After(6.0, BLIP), After(1.0, UNKNOWN), After(6.0, BLIP), "one"])
    assert script.run(Asker(script.world, PATIENCE).ask({"a": Question("host-a", "x", in_full=lambda: "y")})) == {"a": "one"}
    assert script.now_s > PATIENCE.retry_timeout_s


def test_a_call_has_time_for_its_wait_and_its_bytes() -> None:
    script = scripted(a=[Done()], b=[Done()], c=[Done()])
    asker = Asker(script.world, PATIENCE)
    script.run(
        asker.ask(
            {
                "a": Question("host-a", Finish(Fence(1), wait_s=7.0)),
                "b": Question("host-b", GetCluster(), nbytes=30_000_000),
                "c": Question("host-c", GetCluster()),
            }
        )
    )
    assert [call.timeout_s for call in script.calls] == [8.0, 4.0, 1.0]


REFUSAL = InvalidRequest("dim", "3", "4")


@pytest.mark.parametrize("outcome", [BLIP, StalenessTimeout(3, 1, 0, 1, 10.0)], ids=["it is silent", "it waits"])
def test_no_peer_is_asked_again_once_that_is_known_to_be_in_vain(outcome: ParameterServerError) -> None:
    script = scripted(a=[outcome, outcome])

    def check() -> None:
        if len(script.calls) == 2:
            raise StaleIncarnation(0, 2, 1)

    asker = Asker(script.world, PATIENCE, check)
    with pytest.raises(StaleIncarnation):
        script.run(asker.ask({"a": Question("host-a", "x")}))


@pytest.mark.parametrize(
    ("outcomes", "refused"),
    [
        ({"a": [REFUSAL], "b": [REFUSAL]}, True),
        ({"a": [REFUSAL], "b": ["one"]}, False),  # one has taken it
        ({"a": [REFUSAL], "b": [BLIP]}, False),  # who knows
        ({"a": [BLIP, REFUSAL], "b": ["one"]}, False),
        ({"a": [BLIP, REFUSAL], "b": [BLIP, REFUSAL]}, True),
        ({"a": [StaleIncarnation(0, 2, 1)], "b": [REFUSAL]}, False),
    ],
)
def test_it_is_told_where_every_peer_has_refused(outcomes: dict[str, list[Any]], refused: bool) -> None:
    script = Scripted(lambda call: outcomes[call.peer].pop(0))
    heard: list[bool] = []
    asker = Asker(script.world, PATIENCE)
    with pytest.raises((InvalidRequest, StaleIncarnation)):
        script.run(asker.ask({"a": Question("host-a", "x"), "b": Question("host-b", "y")}, lambda: heard.append(True)))
    assert bool(heard) == refused
