"""Flags over environment over TOML over defaults, and errors that name the field and where its value came from."""

from pathlib import Path

import pytest

from ps_proto.address import split_address
from ps_server.coordinator.core_settings import Restore
from ps_server.coordinator.schedule import Schedule
from ps_server.coordinator.settings import CoordinatorSettings
from ps_server.edge.address import is_loopback, is_wildcard, join_address
from ps_server.edge.settings import ServerSettings, SettingsError, load

COORDINATOR = {"coordinator": "127.0.0.1:7070"}


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "server.toml"
    path.write_text("coordinator = 'from-toml:1'\nport = 1\nweight = 2\nlog_level = 'debug'\n")
    return path


def sentences(flags: dict[str, str | None], environment: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(ServerSettings, flags, environment or {})
    return caught.value.sentences


def test_defaults_are_safe_and_need_no_port() -> None:
    settings = load(ServerSettings, COORDINATOR, {})
    assert (settings.host, settings.port, settings.weight, settings.rows_max) == ("127.0.0.1", 0, 1.0, None)
    assert settings.name.startswith("server-")
    assert settings.max_request_bytes == 8 * 2**30


def test_a_flag_wins_over_the_environment_which_wins_over_toml_which_wins_over_the_default(toml: Path) -> None:
    environment = {"ROWSTEAD_SERVER_PORT": "2", "ROWSTEAD_SERVER_COORDINATOR": "from-environment:2"}
    settings = load(ServerSettings, {"config": str(toml), "port": "3", "host": None}, environment)
    assert settings.port == 3  # flag
    assert settings.coordinator == "from-environment:2"  # environment
    assert (settings.weight, settings.log_level) == (2.0, "debug")  # TOML
    assert settings.host == "127.0.0.1"  # default


def test_options_of_the_store_are_names_with_values(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text("checkpoint_options = ['aws_region=eu, or so', 'aws_endpoint_url=http://127.0.0.1:9000/?a=b']\n")
    settings = load(ServerSettings, {"config": str(path), **COORDINATOR}, {})
    assert settings.store_options() == {"aws_region": "eu, or so", "aws_endpoint_url": "http://127.0.0.1:9000/?a=b"}
    environment = {"ROWSTEAD_COORDINATOR_CHECKPOINT_OPTIONS": "allow_http = true, aws_region=eu"}
    assert load(CoordinatorSettings, {"servers": "1"}, environment).store_options() == {"allow_http": "true", "aws_region": "eu"}
    assert load(ServerSettings, COORDINATOR, {}).store_options() == {}


@pytest.mark.parametrize("option", ["aws_region", "=eu"])
def test_an_option_without_a_name_or_a_value_is_refused(option: str) -> None:
    (sentence,) = sentences({**COORDINATOR, "checkpoint_options": f"allow_http=true,{option}"})
    assert sentence.startswith("checkpoint_options is 'allow_http=true,")
    assert f"{option!r} is no option: give name=value" in sentence


def test_plugins_are_a_list_in_toml_and_text_with_commas_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text("plugins = ['one', 'two']\n")
    assert load(ServerSettings, {"config": str(path), **COORDINATOR}, {}).plugins == ("one", "two")
    assert load(ServerSettings, {"plugins": "one, two", **COORDINATOR}, {}).plugins == ("one", "two")
    assert load(CoordinatorSettings, {"servers": "1"}, {"ROWSTEAD_COORDINATOR_PLUGINS": "one"}).plugins == ("one",)
    assert load(ServerSettings, COORDINATOR, {}).plugins == ()
    path.write_text("plugins = [1]\n")
    assert sentences({"config": str(path), **COORDINATOR}) == [f"plugins is 1 (from {path}), but should be a valid string."]


def test_the_environment_can_name_the_toml_file(toml: Path) -> None:
    assert load(ServerSettings, {}, {"ROWSTEAD_SERVER_CONFIG": str(toml)}).port == 1


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load(ServerSettings, COORDINATOR, {"ROWSTEAD_SERVER_PORT": ""}).port == 0


def test_variables_of_others_with_our_prefix_are_left_alone() -> None:
    assert load(ServerSettings, COORDINATOR, {"ROWSTEAD_SERVER_SERVICE_HOST": "10.0.0.1"}).host == "127.0.0.1"


def test_each_process_has_its_own_variables() -> None:
    environment = {"ROWSTEAD_SERVER_PORT": "1", "ROWSTEAD_COORDINATOR_PORT": "2", "ROWSTEAD_COORDINATOR_SERVERS": "3"}
    settings = load(CoordinatorSettings, {}, environment)
    assert (settings.port, settings.servers) == (2, 3)


def test_every_wrong_value_gets_a_sentence_with_its_field_and_origin(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("weight = 0\nlog_format = 'xml'\n")
    found = sentences({"config": str(path), "port": "70000", **COORDINATOR}, {"ROWSTEAD_SERVER_ROWS_MAX": "many"})
    assert found == [
        "port is '70000' (from --port), but should be less than or equal to 65535.",
        f"log_format is 'xml' (from {path}), but should be 'text' or 'json'.",
        f"weight is 0 (from {path}), but should be greater than 0.",
        "rows_max is 'many' (from ROWSTEAD_SERVER_ROWS_MAX), but should be a valid integer, unable to parse string as an integer.",
    ]


def test_a_missing_setting_says_the_three_ways_to_give_it() -> None:
    (sentence,) = sentences({})
    assert sentence.startswith("coordinator is missing: give --coordinator, set ROWSTEAD_SERVER_COORDINATOR, or write it")


def test_an_unknown_key_of_the_toml_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "typo.toml"
    path.write_text("prot = 1\n")
    (sentence,) = sentences({"config": str(path), **COORDINATOR})
    assert sentence.startswith(f"prot in {path} is not a setting; there are host, port, ")


@pytest.mark.parametrize(("text", "reason"), [(None, "which cannot be read: No such file"), ("port = ", "which is no TOML file")])
def test_an_unreadable_toml_file_is_named(tmp_path: Path, text: str | None, reason: str) -> None:
    path = tmp_path / "server.toml"
    if text is not None:
        path.write_text(text)
    (sentence,) = sentences({"config": str(path)})
    assert sentence.startswith(f"config is '{path}', {reason}")


@pytest.mark.parametrize("address", ["localhost", ":7070", "localhost:", "localhost:0", "localhost:65536", "localhost:http", "::1:7070"])
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    (sentence,) = sentences({"coordinator": address})
    assert sentence == f"coordinator is {address!r} (from --coordinator), but must be host:port, as 127.0.0.1:7070."


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_server_on_every_address_must_say_which_one_others_use(host: str) -> None:
    (sentence,) = sentences({"host": host, **COORDINATOR})
    assert sentence.startswith(f"advertise is missing: nobody can connect to {host}")
    assert load(ServerSettings, {"host": host, "advertise": "ps-0.example:7071", **COORDINATOR}, {}).host == host


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "127.0.0.1:80"), ("ps.example", "ps.example:80"), ("::1", "[::1]:80")])
def test_addresses_are_joined_and_split_again(host: str, address: str) -> None:
    assert join_address(host, 80) == address
    assert split_address(address) == (host, 80)


@pytest.mark.parametrize(
    ("host", "loopback", "wildcard"),
    [
        ("127.0.0.1", True, False),
        ("127.8.8.8", True, False),
        ("::1", True, False),
        ("localhost", True, False),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("10.0.0.1", False, False),
        ("ps.example", False, False),
    ],
)
def test_hosts_are_told_apart(host: str, loopback: bool, wildcard: bool) -> None:
    assert (is_loopback(host), is_wildcard(host)) == (loopback, wildcard)


def test_checkpoints_lie_where_every_process_finds_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    flags = {"servers": "1", "checkpoints": "below/here", "checkpoint_every_steps": "8", "checkpoint_keep": "2"}
    assert load(CoordinatorSettings, flags, {}).schedule() == Schedule(str(tmp_path / "below" / "here"), 8, 0.0, 2, 10)
    flags = {"servers": "1", "checkpoints": "s3://bucket/prefix", "checkpoint_every_s": "0.5"}
    assert load(CoordinatorSettings, flags, {}).schedule() == Schedule("s3://bucket/prefix", 0, 0.5, 3, 10)
    assert load(CoordinatorSettings, {"servers": "1"}, {}).schedule() == Schedule()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("checkpoint_keep", "0", "greater than or equal to 1"),
        ("checkpoint_full_every", "0", "greater than or equal to 1"),
        ("checkpoint_every_steps", "0", "greater than or equal to 1"),
        ("checkpoint_every_s", "0", "greater than 0"),
        ("checkpoints", "ftp://host/folder", "a folder, file:///folder, or a URL of s3, s3a, gs, az, azure, abfs, abfss, adl"),
    ],
)
def test_what_no_checkpoint_can_follow_is_refused(name: str, value: str, why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(CoordinatorSettings, {"servers": "1", name: value}, {})
    assert caught.value.sentences == [f"{name} is {value!r} (from --{name.replace('_', '-')}), but should be {why}."]


@pytest.mark.parametrize("name", ["checkpoint_every_s", "checkpoint_every_steps"])
def test_a_schedule_without_a_root_is_refused(name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(CoordinatorSettings, {"servers": "1", name: "5"}, {})
    assert caught.value.sentences == [f"checkpoints is missing: {name} says when to take them, so say where they go."]


@pytest.mark.parametrize(
    ("given", "restore"),
    [
        ("below", Restore("HERE/below")),
        ("below#12", Restore("HERE/below", 12)),
        ("/a#b", Restore("/a#b")),
        ("/a#b#007", Restore("/a#b", 7)),
        ("s3://bucket/prefix#3", Restore("s3://bucket/prefix", 3)),
    ],
)
def test_a_cluster_begins_with_the_checkpoint_of_a_folder_or_of_a_number(
    given: str, restore: Restore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(CoordinatorSettings, {"servers": "1", "restore": given}, {}).restored() == Restore(
        restore.root.replace("HERE", str(tmp_path)), restore.number
    )


def test_a_cluster_begins_empty_unless_it_is_told_otherwise() -> None:
    assert load(CoordinatorSettings, {"servers": "1"}, {}).restored() is None
