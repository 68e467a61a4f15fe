"""ps.save and ps.load: what was kept comes back to the last bit, whole or not at all."""

import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import ps_worker as ps
from inprocess import InProcess
from kept import INITIALIZER, Model, batch, digest, model_of, optimizer_of, train
from ps_proto.errors import CorruptFile, InvalidRequest, LoadFailed, NoSavedModel, TableMismatch
from ps_proto.requests import Assign, ClearTable
from ps_worker.keeping import folder as folder_module
from ps_worker.keeping import loading, saving
from ps_worker.keeping.folder import ModelWriter
from ps_worker.nn.state import MARKER

SPARSE = [ps.SGD(lr=0.1), ps.Adagrad(lr=0.1), ps.Adam(lr=0.01)]
Client = ps.Client


@contextmanager
def alone(servers: int = 2, mode: ps.Mode | None = None) -> Iterator[Client]:
    with InProcess(servers).connect(0, 1, mode or ps.Sync()) as client:
        yield client


@pytest.fixture
def client() -> Iterator[Client]:
    with alone() as client:
        yield client


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder with a model of three steps."""
    with alone() as client:
        save_trained(client, tmp_path / "model")
    return tmp_path / "model"


def save_trained(client: Client, path: Path, sparse: ps.Optimizer | None = None) -> tuple[Model, Any]:
    model = model_of(seed=1)
    optimizer = optimizer_of(model, client, sparse)
    train(model, optimizer, range(3))
    ps.save(model, path)
    return model, optimizer


def index_of(path: Path) -> Any:
    return json.loads((path / "index.json").read_text())


def in_ranks(cluster: InProcess, work: Callable[[Client], Any], mode: ps.Mode | None = None) -> list[Any]:
    """Run work(client) on two ranks at once; return what each returned, or the error that it ended in."""

    def run(rank: int) -> Any:
        with cluster.connect(rank, 2, mode or ps.Sync()) as client:
            try:
                return work(client)
            except Exception as error:
                return error

    with ThreadPoolExecutor(2) as ranks:
        return list(ranks.map(run, range(2)))


# --- the round trip ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["before the optimizer", "after it", "into a trained one"])
@pytest.mark.parametrize("sparse", SPARSE, ids=lambda sparse: sparse.kind)
def test_training_goes_on_with_the_same_bits(tmp_path: Path, sparse: ps.Optimizer, order: str) -> None:
    with alone(servers=2) as client:
        model, optimizer = save_trained(client, tmp_path / "model", sparse)
        saved = digest(client, model)
        train(model, optimizer, range(3, 6))
        wanted = digest(client, model)
    with alone(servers=3) as client:
        model = model_of(seed=2)
        if order == "before the optimizer":
            ps.load(model, tmp_path / "model")
            optimizer = optimizer_of(model, client, sparse)
        else:
            optimizer = optimizer_of(model, client, sparse)
            if order == "into a trained one":
                train(model, optimizer, range(50, 53))
            ps.load(model, tmp_path / "model")
        assert digest(client, model) == saved
        train(model, optimizer, range(3, 6))
        assert digest(client, model) == wanted


@pytest.fixture(autouse=True)
def one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a model without an optimizer find the newest open client: in a script that is the session's."""
    found: list[Client] = []
    original = Client.__init__

    def remember(self: Client, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        found.append(self)

    monkeypatch.setattr(Client, "__init__", remember)

    class Session:
        @property
        def client(self) -> Client:
            return next(client for client in reversed(found) if not client._connection.is_closed)

        def mark_saved(self) -> None:
            marked.append(self.client)

    marked.clear()
    for module in ("ps_worker.nn.table", "ps_worker.keeping.parts", "ps_worker.keeping.agreeing"):
        monkeypatch.setattr(f"{module}.current_session", Session)


marked: list[Client] = []


@pytest.mark.parametrize("mode", [ps.Async(), ps.BoundedStaleness(2)], ids=str)
def test_it_comes_back_in_every_mode(tmp_path: Path, mode: ps.Mode) -> None:
    with alone(2, mode) as client:
        model, _ = save_trained(client, tmp_path / "model")
        saved = digest(client, model)
    with alone(5, mode) as client:
        model = model_of(seed=2)
        optimizer_of(model, client)
        ps.load(model, tmp_path / "model")
        assert digest(client, model) == saved


def test_rows_that_came_after_the_save_are_gone_after_the_load(client: Client, tmp_path: Path) -> None:
    model, optimizer = save_trained(client, tmp_path / "model")
    saved, ids = digest(client, model), client.export("user")[0].size
    train(model, optimizer, range(3, 9))
    assert client.export("user")[0].size > ids
    ps.load(model, tmp_path / "model")
    assert digest(client, model) == saved


@pytest.mark.parametrize("bytes_max", [1, 300])
def test_files_and_requests_of_any_size_hold_the_same(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_max: int
) -> None:
    monkeypatch.setattr("ps_worker.exporting.PART_BYTES", 1)
    monkeypatch.setattr(saving, "PART_BYTES", bytes_max)
    monkeypatch.setattr(loading, "REQUEST_BYTES", bytes_max)
    model, _ = save_trained(client, tmp_path / "model")
    saved = digest(client, model)
    user = next(table for table in index_of(tmp_path / "model")["tables"] if table["name"] == "user")
    assert len(user["parts"]) > 1
    files = [load_file(tmp_path / "model" / part["file"]) for part in user["parts"]]
    ids = np.concatenate([file["ids"] for file in files])
    assert ids.tolist() == sorted(ids.tolist()) == client.export("user")[0].tolist()
    assert (ids.dtype.name, ids.size, max(ids.tolist()) > 2**63) == ("uint64", user["rows"], True)
    assert {name: (array.dtype.name, array.shape[1:]) for name, array in files[0].items()} == {
        "ids": ("uint64", ()),
        "rows": ("float32", (4,)),
        "state.sum_of_squares": ("float32", (4,)),
    }
    with alone(3) as other:
        model = model_of(seed=2)
        optimizer_of(model, other)
        ps.load(model, tmp_path / "model")
        assert digest(other, model) == saved


def test_a_model_that_nobody_trained_yet_is_kept_too(client: Client, tmp_path: Path) -> None:
    model = model_of(seed=1)
    optimizer_of(model, client)
    ps.save(model, tmp_path / "model")
    assert [table["rows"] for table in index_of(tmp_path / "model")["tables"]] == [0, 0, 1]
    with alone(3) as other:
        again = model_of(seed=2)
        ps.load(again, tmp_path / "model")
        assert other.export("user")[0].size == 0
        assert torch.equal(again.out.weight, model.out.weight)


def test_a_dense_model_and_one_of_embeddings_alone_are_kept(client: Client, tmp_path: Path) -> None:
    for name, build in (
        ("dense", lambda: nn.Linear(600, 2)),
        ("embeddings", lambda: ps.nn.Embedding(None, 2, name="word", initializer=INITIALIZER)),
    ):
        models = [build(), build()]
        optimizer = optimizer_of(models[0], client)
        given = torch.ones(1, 600) if name == "dense" else torch.tensor([7, -7])
        models[0](given).sum().backward()
        optimizer.step()
        wanted = models[0](given)
        ps.save(models[0], tmp_path / name)
        with alone(3):
            ps.load(models[1], tmp_path / name)
            assert torch.equal(models[1](given), wanted)


def test_parameters_of_any_float_keep_their_bits(client: Client, tmp_path: Path) -> None:
    model = nn.Linear(3, 1).to(torch.bfloat16)
    optimizer_of(model, client)
    ps.save(model, tmp_path / "model")
    with alone():
        again = nn.Linear(3, 1).to(torch.bfloat16)
        ps.load(again, tmp_path / "model")
        assert torch.equal(again.weight, model.weight)


class Tied(nn.Module):
    """Two layers of one weight, and two buffers of one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.memory = torch.zeros(4)
        self.register_buffer("low", self.memory[:2])
        self.register_buffer("high", self.memory[1:])


def test_tied_parameters_and_shared_buffers_are_kept_once_each(client: Client, tmp_path: Path) -> None:
    model, again = (Tied() for _ in range(2))
    model.memory.copy_(torch.arange(4.0))
    optimizer_of(model, client)
    ps.save(model, tmp_path / "model")
    with alone():
        ps.load(again, tmp_path / "model")
        assert torch.equal(again.second.weight, model.first.weight)
        assert again.get_buffer("high").tolist() == [1.0, 2.0, 3.0]


def test_what_was_asked_for_ahead_is_not_used_after_a_load(client: Client, tmp_path: Path) -> None:
    model, optimizer = save_trained(client, tmp_path / "model")
    model.eval()
    a, b, _ = batch(0, 0)
    wanted = model(a, b)
    train(model.train(), optimizer, range(3, 6))
    ahead = list(ps.prefetch([(a, b)], ids=lambda given: {model.bags: {"a": given[0], "b": given[1]}, model.user: given[0]}))
    ps.load(model, tmp_path / "model")
    assert torch.equal(model.eval()(*ahead[0]), wanted)


def test_the_session_hears_of_it(client: Client, path: Path, tmp_path: Path) -> None:
    marked.clear()
    model, _ = save_trained(client, tmp_path / "model")
    assert marked == [client]
    ps.load(model, path)
    assert marked == [client, client]


# --- several ranks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [ps.Sync(), ps.Async()], ids=str)
def test_all_ranks_save_and_load_together(tmp_path: Path, mode: ps.Mode) -> None:
    path = tmp_path / "model"

    def begin(client: Client) -> str:
        model = model_of(seed=1)
        optimizer = optimizer_of(model, client)
        train(model, optimizer, range(3), client.rank or 0)
        ps.save(model, path)
        client.barrier()
        saved = digest(client, model, tables=["user", "item", "dense"]) if client.rank == 0 else ""
        client.barrier()
        return saved

    def go_on(client: Client) -> tuple[str, torch.Tensor, torch.Tensor]:
        model = model_of(seed=2 + (client.rank or 0))
        optimizer = optimizer_of(model, client)
        train(model, optimizer, range(2), client.rank or 0)
        ps.load(model, path)
        loaded = digest(client, model) if client.rank == 0 else ""
        client.barrier()
        return loaded, model.out.weight.detach().clone(), model.norm.get_buffer("running_mean").clone()

    saved = in_ranks(InProcess(2), begin, mode)
    loaded = in_ranks(InProcess(3), go_on, mode)
    assert loaded[0][0] == saved[0]
    assert torch.equal(loaded[0][1], loaded[1][1])
    assert torch.equal(loaded[0][2], loaded[1][2])  # rank 0's


def test_a_disk_that_does_not_take_it_ends_no_other_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module, "_write_through", full)

    def work(client: Client) -> str:
        model = model_of(seed=1)
        optimizer = optimizer_of(model, client)
        outcome = "saved"
        try:
            ps.save(model, tmp_path / "model")
        except OSError as error:
            outcome = str(error)
        train(model, optimizer, range(2), client.rank or 0)
        return outcome

    assert in_ranks(InProcess(2), work) == ["[Errno 28] No space left on device", "saved"]
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        f"Rank 0 could not save the model in {tmp_path / 'model'}; its error says why."
    ]
    assert not (tmp_path / "model").exists()


def test_a_load_that_fails_on_rank_0_fails_on_all(path: Path) -> None:
    part = path / next(table for table in index_of(path)["tables"] if table["name"] == "user")["parts"][0]["file"]
    part.write_bytes(part.read_bytes()[:-1])

    def work(client: Client) -> None:
        model = model_of(seed=2)
        optimizer_of(model, client)
        ps.load(model, path)

    errors = in_ranks(InProcess(2), work)
    assert [type(error) for error in errors] == [CorruptFile, LoadFailed]
    assert str(errors[1]) == (
        f"Rank 0 could not load {path}; its error says why. The tables may hold a part of it: load again before training on."
    )


def test_no_rank_waits_for_a_model_that_is_not_there(tmp_path: Path) -> None:
    def work(client: Client) -> None:
        model = model_of(seed=2)
        optimizer_of(model, client)
        ps.load(model, tmp_path / "nowhere")

    assert [type(error) for error in in_ranks(InProcess(2), work)] == [NoSavedModel, NoSavedModel]


# --- whole or not at all ----------------------------------------------------------------------------------------------------------


def files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


def test_a_save_replaces_the_model_and_leaves_nothing_of_it(client: Client, path: Path) -> None:
    before = files(path)
    (path / "notes.txt").write_text("mine")
    save_trained(client, path)
    after = files(path)
    assert "notes.txt" in after
    assert after & before == {"index.json"}
    index = index_of(path)
    listed = {part["file"] for table in index["tables"] for part in table["parts"]}
    marker = f"{Path(index['model']['file']).parent}/rowstead-save.txt"
    assert after == {"index.json", "notes.txt", marker, index["model"]["file"], *listed}
    assert len([folder for folder in path.iterdir() if folder.is_dir()]) == 1


@pytest.mark.parametrize("failing", ["write", "commit"])
def test_a_save_that_fails_leaves_the_model_that_was(path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    before = {file: (path / file).read_bytes() for file in files(path)}
    original, calls = getattr(ModelWriter, failing), []

    def fail(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == (3 if failing == "write" else 1):
            raise OSError(28, "No space left on device")
        return original(*arguments)

    with alone() as client:
        model, _ = save_trained(client, path.parent / "other")
        monkeypatch.setattr(ModelWriter, failing, fail)
        with pytest.raises(OSError, match="No space left"):
            ps.save(model, path)
        calls.clear()
        with pytest.raises(OSError, match="No space left"):
            ps.save(model, path.parent / "fresh")
        monkeypatch.undo()
    assert {file: (path / file).read_bytes() for file in files(path)} == before
    assert not (path.parent / "fresh").exists()


def test_what_a_crash_left_is_no_model_and_the_next_save_removes_it(client: Client, tmp_path: Path) -> None:
    crashed = crash_in_a_save(tmp_path / "model")
    with pytest.raises(NoSavedModel, match=r"it has no index\.json"):
        ps.load(model_of(seed=1), tmp_path / "model")
    save_trained(client, tmp_path / "model")
    assert not crashed.exists()


def crash_in_a_save(path: Path) -> Path:
    """Leave what a save leaves that is killed just before its commit; return the folder."""
    entry = ModelWriter(path).__enter__().write("model.safetensors", b"half")
    return (path / entry.file).parent


def unmark(folder: Path) -> None:
    (folder / "rowstead-save.txt").unlink()


def test_a_model_that_lost_its_marker_is_replaced_all_the_same(client: Client, path: Path) -> None:
    old = (path / index_of(path)["model"]["file"]).parent
    unmark(old)
    save_trained(client, path)
    assert not old.exists()


def test_no_save_removes_what_is_somebody_elses(client: Client, path: Path) -> None:
    old = (path / index_of(path)["model"]["file"]).parent
    crashed = crash_in_a_save(path)
    unmark(crash_in_a_save(path.parent / "elsewhere"))
    (path.parent / "elsewhere").rename(path / "data-01234567")
    linked = crash_in_a_save(path.parent / "linked")
    (path / "data-89abcdef").symlink_to(linked, target_is_directory=True)
    mine = ["data-raw/precious.csv", "data-0123abcd/notes.txt", "data-0123abce/model.safetensors", "data-0123ABCD/rowstead-save.txt"]
    mine += [f"{folder}/more/notes.txt" for folder in (old.name, crashed.name, "data-raw")] + [f"{old.name}/notes.safetensors"]
    for name in mine:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("mine")
    (path / "data-76543210").mkdir()
    others = files(path) - {"index.json"} - {str(file.relative_to(path)) for folder in (old, crashed) for file in folder.iterdir()}
    save_trained(client, path)
    save_trained(client, path)
    assert {name for name in mine if (path / name).read_text() == "mine"} == set(mine)
    assert others <= files(path)
    assert (linked / "model.safetensors").read_bytes() == b"half"
    assert (path / "data-76543210").is_dir()
    assert files(old) | files(crashed) == {"more/notes.txt", "notes.safetensors"}


def test_a_first_save_that_fails_leaves_what_came_into_its_folder(tmp_path: Path) -> None:
    def fail() -> None:
        with ModelWriter(tmp_path / "model") as folder:
            folder.write("model.safetensors", b"half")
            (tmp_path / "model" / "notes.txt").write_text("mine")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        fail()
    assert files(tmp_path) == {"model/notes.txt"}
    assert [entry.name for entry in (tmp_path / "model").iterdir()] == ["notes.txt"]


def test_a_path_that_is_a_file_is_refused(client: Client, tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine")
    with pytest.raises(InvalidRequest, match="a file, but must be a folder"):
        save_trained(client, tmp_path / "model")
    with pytest.raises(NoSavedModel, match="it is no folder"):
        ps.load(model_of(seed=1), tmp_path / "model")
    assert (tmp_path / "model").read_text() == "mine"


def test_a_model_without_its_optimizer_is_not_saved(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"without a ServerOptimizer for 'norm\.weight'"):
        ps.save(model_of(seed=1), tmp_path / "model")
    model = model_of(seed=1)
    optimizer_of(model, client)
    for part in (model.out, nn.Sequential(model.norm)):
        with pytest.raises(InvalidRequest, match="a part of what is trained in table 'dense'"):
            ps.save(part, tmp_path / "model")
    with pytest.raises(InvalidRequest, match="must be a torch module"):
        ps.save({"model": model}, tmp_path / "model")  # type: ignore[arg-type]


# --- what does not fit ------------------------------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (Path.unlink, "it is missing"),
    "truncated": (truncate, r"it has [\d,]+ bytes, not [\d,]+"),
    "altered": (alter, "its sha256 is another"),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("what", ["user", "item", "dense", "model"])
def test_a_damaged_file_is_named_and_nothing_is_loaded(client: Client, path: Path, what: str, damage: str) -> None:
    index = index_of(path)
    entry = index["model"] if what == "model" else next(table for table in index["tables"] if table["name"] == what)["parts"][0]
    act, reason = DAMAGE[damage]
    act(path / entry["file"])
    model = model_of(seed=2)
    train(model, optimizer_of(model, client), range(50, 52))
    before = digest(client, model)
    with pytest.raises(CorruptFile, match=reason) as caught:
        ps.load(model, path)
    assert caught.value.path == str(path / entry["file"])
    assert digest(client, model) == before


def edited(path: Path, change: Callable[[Any], None]) -> None:
    index = index_of(path)
    change(index)
    (path / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda index: index.pop("tables"), "tables: Field required"),
        (lambda index: index.update(format="another"), "format"),
        (lambda index: index["tables"][0].update(rows="many"), r"tables\.0\.rows"),
        (lambda index: index["model"].update(file="../../etc/passwd"), r"model\.file"),
    ],
)
def test_an_index_that_is_none_is_named(client: Client, path: Path, change: Callable[[Any], None], reason: str) -> None:
    edited(path, change)
    with pytest.raises(CorruptFile, match=reason):
        ps.load(model_of(seed=2), path)


def test_half_an_index_is_no_index(client: Client, path: Path) -> None:
    truncated = (path / "index.json").read_text()[:-20]
    (path / "index.json").write_text(truncated)
    with pytest.raises(CorruptFile, match=r"index\.json is not as it was written"):
        ps.load(model_of(seed=2), path)


def test_a_part_that_is_not_what_the_index_says_is_named(client: Client, path: Path) -> None:
    edited(path, lambda index: index["tables"][0]["parts"][0].update(rows=3))
    with pytest.raises(CorruptFile, match=r"ids is of shape \[\d+\], not \[3\]"):
        ps.load(model_of(seed=2), path)


def test_a_newer_folder_says_so(client: Client, path: Path) -> None:
    edited(path, lambda index: index.update(version=2, more="there is"))
    with pytest.raises(InvalidRequest, match="2, but must be at most 1: a newer Rowstead wrote it"):
        ps.load(model_of(seed=2), path)


class Other(Model):
    """Differs where `change` says."""

    def __init__(self, change: Callable[["Other"], None]) -> None:
        super().__init__()
        change(self)


def with_bags(
    dim: int = 4, features: str = "user item", initializer: ps.Initializer = INITIALIZER, seed: int = 5
) -> Callable[[Other], None]:
    def change(model: Other) -> None:
        model.bags = ps.nn.EmbeddingBagCollection(dim, {table: table for table in features.split()}, initializer=initializer, seed=seed)
        del model.user

    return change


def freeze(model: Other) -> None:
    model.out.weight.requires_grad_(False)


MISFITS: dict[str, tuple[Callable[[Other], None], type[Exception], str]] = {
    "dim": (with_bags(dim=5), TableMismatch, r"dim 4 in .*, but dim 5 was asked for"),
    "seed": (with_bags(seed=6), TableMismatch, "seed 5 in .*, but seed 6"),
    "initializer": (with_bags(initializer=ps.Zeros()), TableMismatch, "initializer Uniform"),
    "a table more": (with_bags(features="user item word"), InvalidRequest, "without 'word'"),
    "a table less": (with_bags(features="user"), InvalidRequest, "with 'item'"),
    "a shape": (lambda model: setattr(model, "out", nn.Linear(12, 2)), InvalidRequest, r"\[1, 12\], but must be the model's, \[2, 12\]"),
    "a parameter more": (lambda model: setattr(model, "more", nn.Linear(1, 1)), InvalidRequest, r"without 'more\.bias', 'more\.weight'"),
    "a buffer less": (lambda model: setattr(model, "norm", nn.Identity()), InvalidRequest, r"with 'norm\.bias', .*'norm\.running_mean'"),
    "a frozen one": (freeze, InvalidRequest, "The parameters in table 'dense' is others, but must be those that were"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_another_model_is_told_what_differs(client: Client, path: Path, misfit: str) -> None:
    change, error, reason = MISFITS[misfit]
    model = Other(change)
    optimizer = optimizer_of(model, client)
    before = digest(client, model, tables=list(optimizer.tables))
    with pytest.raises(error, match=reason):
        ps.load(model, path)
    assert digest(client, model, tables=list(optimizer.tables)) == before


@pytest.mark.parametrize("is_dense", [False, True], ids=["sparse", "dense"])
def test_another_optimizer_kind_does_not_take_the_state(client: Client, path: Path, is_dense: bool) -> None:
    model = model_of(seed=2)
    kind = "adam" if is_dense else "adagrad"
    given: dict[str, ps.Optimizer] = {"dense": ps.SGD()} if is_dense else {"sparse": ps.SGD()}
    ps.optim.ServerOptimizer(model, client=client, **given)  # type: ignore[arg-type]
    with pytest.raises(TableMismatch, match=f"exists with optimizer {kind} in .*, but optimizer sgd was asked for"):
        ps.load(model, path)
    assert client.export("user")[0].size == 0


def test_the_optimizer_made_after_a_load_must_be_of_the_kind(client: Client, path: Path) -> None:
    model = model_of(seed=2)
    ps.load(model, path)
    with pytest.raises(TableMismatch, match="optimizer"):
        ps.optim.ServerOptimizer(model, sparse=ps.SGD(), client=client)


def test_another_name_of_the_dense_table_is_told(client: Client, path: Path) -> None:
    model = model_of(seed=2)
    ps.optim.ServerOptimizer(model, dense_name="tower", client=client)
    with pytest.raises(InvalidRequest, match=r"dense tables of .* is without 'tower' and with 'dense', but must be the model's: 'tower'"):
        ps.load(model, path)


def test_nothing_is_sent_before_all_is_checked(path: Path) -> None:
    cluster = InProcess(2)
    with cluster.connect(0, 1, ps.Sync()) as client:
        model = model_of(seed=2)
        optimizer_of(model, client)
        part = path / index_of(path)["tables"][-1]["parts"][-1]["file"]
        alter(part)
        sent = len(cluster.calls)
        with pytest.raises(CorruptFile):
            ps.load(model, path)
        assert not [body for _, body in cluster.calls[sent:] if isinstance(body, Assign | ClearTable)]


# --- state_dict -------------------------------------------------------------------------------------------------------------------


def test_a_state_dict_marks_where_the_rows_are_missing(client: Client) -> None:
    model = model_of(seed=1)
    state = model.state_dict()
    assert state[f"bags.{MARKER}"] == {"tables": {"user": 4, "item": 4}}
    assert state[f"user.{MARKER}"] == {"tables": {"user": 4}}
    assert ps.nn.Embedding(None, 3, name="word").state_dict() == {MARKER: {"tables": {"word": 3}}}


def test_loading_a_state_dict_says_what_is_missing(client: Client, tmp_path: Path) -> None:
    torch.save(model_of(seed=1).state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    model = model_of(seed=2)
    with pytest.raises(
        RuntimeError, match=r"Missing key.*bags\.rows of table 'user': they live on the servers, and ps\.load\(model, path\)"
    ):
        model.load_state_dict(state)
    model = model_of(seed=2)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert [key.partition(":")[0] for key in missing] == [
        "bags.rows of table 'user'",
        "bags.rows of table 'item'",
        "user.rows of table 'user'",
    ]
    assert unexpected == []
    assert torch.equal(model.out.weight, state["out.weight"])


def test_a_state_dict_of_other_tables_is_refused_either_way(client: Client) -> None:
    state = model_of(seed=1, dim=5).bags.state_dict()
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=r"The model reads .*'user': 4.*, but the state_dict is of .*'user': 5"):
            model_of(seed=2).bags.load_state_dict(state, strict=strict)
