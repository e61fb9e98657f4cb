"""Where files are searched, and how they are downloaded: from a server that the test runs."""

from __future__ import annotations

import hashlib
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from pdpgd import errors
from pdpgd.data.download import DataFile, idx_file
from pdpgd.data.known import DATA, NOT_HERE
from pdpgd.data.loading import describe_data, load_data
from support.data_files import write_idx_pair
from support.server import serving


class Server(NamedTuple):
    base: str
    asked: list[str]
    files: dict[str, DataFile]


@pytest.fixture
def small_sets(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce MNIST and Fashion-MNIST to five test images, on a machine without data."""
    for name in ("mnist", "fashion-mnist"):
        monkeypatch.setitem(DATA, name, replace(DATA[name], sizes={"test": 5}))


@pytest.fixture
def server(tmp_path: Path, small_sets: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Serve MNIST from this machine."""
    paths = write_idx_pair(tmp_path / "served")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(tmp_path / "served") as (base, asked):
        md5s = [hashlib.md5(path.read_bytes()).hexdigest() for path in paths]
        files = [idx_file(path.name, base=base, md5=md5) for path, md5 in zip(paths, md5s, strict=True)]
        serve(monkeypatch, files)
        yield Server(base, asked, {"images": files[0], "labels": files[1]})


def serve(monkeypatch: pytest.MonkeyPatch, files: list[DataFile]) -> None:
    monkeypatch.setitem(DATA, "mnist", replace(DATA["mnist"], files={"test": tuple(files)}))


def place_of(name: str) -> str:
    return next(described.place for described in describe_data() if described.name == name)


def test_what_is_nowhere_is_downloaded_once_into_the_cache(server: Server, cache: Path) -> None:
    assert place_of("mnist") == NOT_HERE
    assert load_data("mnist").labels.tolist() == [0, 1, 2, 3, 4]
    assert place_of("mnist") == str(cache / "mnist")
    assert len(server.asked) == 2
    load_data("mnist")
    assert len(server.asked) == 2
    assert sorted(path.name for path in (cache / "mnist").iterdir()) == [
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    ]


def test_a_wrong_checksum_is_an_error_and_leaves_nothing_behind(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, [replace(server.files["images"], md5="0" * 32), server.files["labels"]])
    with pytest.raises(errors.LoadError, match=r"mnist: wrong checksum: expected md5 0{32} of http"):
        load_data("mnist")
    assert list((cache / "mnist").iterdir()) == []


def complaint_without(files: str) -> str:
    with pytest.raises(errors.LoadError) as caught:
        load_data(files)
    return str(caught.value)


def test_a_file_the_server_lacks_is_asked_of_the_user(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = replace(server.files["labels"], url=server.base + "gone.gz")
    serve(monkeypatch, [server.files["images"], gone])
    message = complaint_without("mnist")
    assert "gone.gz cannot be downloaded (HTTPError: 404" in message
    assert f"\n  t10k-labels-idx1-ubyte.gz  (from {server.base}gone.gz)\n" in message


def test_without_a_network_each_file_has_its_line_and_both_places_are_named(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{free.getsockname()[1]}/"
    serve(monkeypatch, [replace(file, url=base + file.name) for file in server.files.values()])
    expected = (
        f" Put\n  t10k-images-idx3-ubyte.gz  (from {base}t10k-images-idx3-ubyte.gz)"
        f"\n  t10k-labels-idx1-ubyte.gz  (from {base}t10k-labels-idx1-ubyte.gz)\ninto "
    )
    message = complaint_without("mnist")
    assert "ConnectionError" in message
    assert message.endswith(f"{expected}the folder mnist in a folder that PDPGD_DATA names, or into {cache / 'mnist'}.")
    monkeypatch.setenv("PDPGD_DATA", str(tmp_path / "mine"))
    assert complaint_without("mnist").endswith(f"{expected}{tmp_path / 'mine' / 'mnist'}, or into {cache / 'mnist'}.")


def test_with_download_off_nothing_is_asked_of_the_server(server: Server) -> None:
    with pytest.raises(errors.LoadError, match=r"download is off\. Put\n  t10k-images"):
        load_data("mnist", download=False)
    assert server.asked == []


@pytest.mark.parametrize(
    "names",
    [
        ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
        ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
        ("t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte"),
        ("t10k-images.idx3-ubyte.gz", "t10k-labels.idx1-ubyte.gz"),
    ],
)
@pytest.mark.usefixtures("small_sets")
def test_files_are_found_by_the_variable_under_each_of_their_names(
    names: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine" / "mnist"
    for path, name in zip(write_idx_pair(folder), names, strict=True):
        path.rename(folder / name)
    monkeypatch.setenv("PDPGD_DATA", str(tmp_path / "mine"))
    assert len(load_data("mnist", download=False)) == 5
    assert place_of("mnist") == str(folder)


@pytest.mark.parametrize("inner", ["", "mnist"])
@pytest.mark.usefixtures("small_sets")
def test_the_root_comes_first_and_may_be_the_folder_or_above_it(
    inner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx_pair(tmp_path / "mine" / "mnist", count=6)
    monkeypatch.setenv("PDPGD_DATA", str(tmp_path / "mine"))
    with pytest.raises(errors.LoadError, match=r"expected test images of shape \(5, 1, 28, 28\), got \(6, "):
        load_data("mnist", download=False)
    write_idx_pair(tmp_path / "root" / inner)
    assert len(load_data("mnist", root=tmp_path / "root", download=False)) == 5


@pytest.mark.usefixtures("small_sets")
def test_a_folder_with_half_of_the_files_is_passed_over(tmp_path: Path, cache: Path) -> None:
    images, _ = write_idx_pair(tmp_path / "root", count=6)
    images.unlink()
    write_idx_pair(cache / "mnist")
    assert len(load_data("mnist", root=tmp_path / "root", download=False)) == 5


@pytest.mark.usefixtures("small_sets")
def test_a_root_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidInputError, match=r"root: expected a folder, got .*nowhere"):
        load_data("mnist", root=tmp_path / "nowhere")


def test_debians_package_is_looked_for_where_debian_puts_it() -> None:
    assert DATA["fashion-mnist"].system == Path("/usr/share/datasets/fashion-mnist")


@pytest.mark.usefixtures("small_sets")
def test_debians_package_is_found_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = tmp_path / "usr" / "share" / "datasets" / "fashion-mnist"
    monkeypatch.setitem(DATA, "fashion-mnist", replace(DATA["fashion-mnist"], system=system))
    assert place_of("fashion-mnist") == NOT_HERE
    write_idx_pair(system)
    samples = load_data("fashion-mnist", download=False)
    assert [samples.classes[label] for label in samples.labels[:2]] == ["T-shirt/top", "Trouser"]
    assert place_of("fashion-mnist") == str(system)
    shutil.rmtree(system)
    assert place_of("fashion-mnist") == NOT_HERE


@pytest.mark.usefixtures("small_sets")
def test_without_pooch_files_are_still_found_and_a_download_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(module: str) -> None:
        raise ImportError(f"No module named {module!r}")

    monkeypatch.setattr(errors.importlib, "import_module", missing)
    assert place_of("mnist") == NOT_HERE
    with pytest.raises(errors.MissingExtraError, match=r"mnist: downloading it .* needs pooch: .*pdpgd\[data\]"):
        load_data("mnist")
    write_idx_pair(tmp_path / "root")
    assert len(load_data("mnist", root=tmp_path / "root")) == 5
