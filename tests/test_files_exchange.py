"""A file and the descriptor beside it: whenever the writer is stopped, nobody reads one by the other's."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from covering import covering
from processes import is_done
from relayout import files
from relayout.files import beside
from strategies import examples
from test_files import mutations, read_or_refuse

OLD, NEW = np.arange(6, dtype=np.float32).reshape(2, 3), -np.arange(6, dtype=np.float32).reshape(2, 3)
FORMATS = ("ab", "ba", "aB2b")
CHANGES = [(None, "ba"), ("ab", "ba"), ("ba", "ab"), ("ba", "aB2b"), ("ba", "ba")]
FOUND_ALL = 8
"""Operations of the file system of which an exchange has more; the tests must have stopped it at each."""

STOPPED = """
    import os, sys, signal, itertools, pathlib, shutil, tempfile
    sys.path.insert(0, sys.argv[1])
    import numpy as np, relayout as rl
    from relayout import files
    from test_files_exchange import *

    os.fsync = lambda number: None  # what is stopped is the writer, not the machine
    EVENTS = {"open", "os.rename", "os.remove", "os.chmod", "fcntl.flock", "tempfile.mkstemp"}

    def stopped_at(step, how, path, tensor):
        '''Write in a child that ends before its operation number step; True if it had so many.'''
        child = os.fork()
        if child == 0:
            left = [step]
            def count(event, args):
                if event in EVENTS:
                    left[0] -= 1
                    if left[0] == 0:
                        if how == "killed":
                            os.kill(os.getpid(), signal.SIGKILL)
                        raise KeyboardInterrupt
            sys.addaudithook(count)
            try:
                files.write(path, tensor, force=True)
            except KeyboardInterrupt:
                os._exit(7)
            os._exit(0)
        return os.waitpid(child, 0)[1] != 0

    def run(how, suffix, link):
        most = 0
        for before, after in CHANGES:
            for step in itertools.count(1):
                folder = pathlib.Path(tempfile.mkdtemp())
                path = folder / f"x{suffix}"
                if before is not None:
                    files.write(path, rl.tensor(OLD, before))
                name = path
                if link:
                    name = folder / f"link{suffix}"
                    name.symlink_to(path)
                more = stopped_at(step, how, name, rl.tensor(NEW, after))
                check(path, name, before)
                files.write(path, rl.tensor(NEW, after), force=True)  # the next writer clears up
                assert np.array_equal(files.read(path).numpy(), NEW)
                assert np.array_equal(files.read(name).numpy(), NEW)
                shutil.rmtree(folder)
                most = max(most, step)
                if not more:
                    break
        assert most > FOUND_ALL, most

    for suffix, link in CASES:
        run(HOW, suffix, link)
    print("done")
"""


def check(path, name, before):
    """What lies there is old or new, by either name, and is read right."""
    assert path.exists() or before is None
    for each in (path, name) if path.exists() else ():
        found = files.read(each).numpy()
        assert np.array_equal(found, NEW) or (before is not None and np.array_equal(found, OLD))
        assert np.array_equal(files.read(path).numpy(), found)


@pytest.mark.turns(2)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the writer is a forked child")
@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_stopped_at_each_step(tmp_path, how):
    cases = [
        case[1:]
        for case in covering(("killed", "interrupted"), (".npy", ".bin"), (False, True))
        if case[0] == how
    ]
    is_done(tmp_path, STOPPED.replace("CASES", repr(cases)).replace("HOW", repr(how)))


class TestLinks:
    @pytest.fixture(params=[".npy", ".bin"])
    def pair(self, tmp_path, request):
        """A file and a link to it in another folder."""
        (tmp_path / "store").mkdir()
        path, link = tmp_path / "store" / f"x{request.param}", tmp_path / f"link{request.param}"
        link.symlink_to(path)
        return path, link

    @pytest.mark.parametrize("before", FORMATS)
    @pytest.mark.parametrize("after", FORMATS)
    def test_both_names_mean_the_same(self, pair, before, after):
        path, link = pair
        files.write(path, rl.tensor(OLD, before))
        assert np.array_equal(files.read(link).numpy(), OLD)
        files.write(link, rl.tensor(NEW, after), force=True)
        assert link.is_symlink()
        assert not beside._beside(link).exists()
        for name in pair:
            assert np.array_equal(files.read(name).numpy(), NEW)

    def test_a_link_without_a_file(self, pair):
        path, link = pair
        files.write(link, rl.tensor(NEW, "ba"))
        for name in (path, link):
            assert np.array_equal(files.read(name).numpy(), NEW)

    @pytest.mark.parametrize("after", FORMATS)
    def test_linked_pairs(self, pair, after):
        """Both files are links to names that don't belong together, as stores of blobs have them."""
        path, link = pair
        files.write(path, rl.tensor(OLD, "ba"))
        blob = path.parent / "blob"
        beside.path_beside(path).rename(blob)
        beside._beside(link).symlink_to(blob)
        assert np.array_equal(files.read(link).numpy(), OLD)
        files.write(link, rl.tensor(NEW, after), force=True)
        for name in (path, link):
            assert np.array_equal(files.read(name).numpy(), NEW)

    def test_a_descriptor_beside_the_link_that_says_something_else(self, pair):
        path, link = pair
        files.write(path, rl.tensor(OLD, "ba"))
        beside._beside(link).write_bytes(beside.description(rl.MemoryDesc((3, 2), "f32", "ba")))
        with pytest.raises(rl.LayoutError, match="is a link, and beside it"):
            files.read(link)
        beside._beside(link).write_bytes(beside.path_beside(path).read_bytes())
        assert np.array_equal(files.read(link).numpy(), OLD)
        beside.path_beside(path).unlink()
        with pytest.raises(rl.LayoutError, match="there is none"):
            files.read(link)


def interrupted(folder):
    """A file whose exchange was stopped before the data came, and the new data."""
    path = folder / "x.npy"
    files.write(path, rl.tensor(OLD, "ba"))
    text = beside.path_beside(path).read_bytes()
    files.write(folder / "y.npy", rl.tensor(NEW, "aB2b"))
    new = (folder / "y.npy").stat()
    sides = ((path.stat(), text), (new, beside.path_beside(folder / "y.npy").read_bytes()))
    identities = [(beside.Identity.of(status), beside.json.loads(content)) for status, content in sides]
    beside.path_beside(path).write_bytes(beside._record(*identities))
    return path, folder / "y.npy"


def test_the_record_says_which_file_is_there(tmp_path):
    path, new = interrupted(tmp_path)
    assert np.array_equal(files.read(path).numpy(), OLD)
    new.replace(path)
    assert np.array_equal(files.read(path).numpy(), NEW)


def test_a_file_that_is_neither_is_refused(tmp_path):
    path, _ = interrupted(tmp_path)
    np.save(path, np.zeros((3, 2), np.float32))
    with pytest.raises(rl.LayoutError, match="interrupted while it replaced"):
        files.read(path)
    files.write(path, rl.tensor(NEW, "ab"), force=True)
    assert np.array_equal(files.read(path).numpy(), NEW)


@examples(150)
@given(damages=st.lists(mutations(), min_size=1, max_size=3))
def test_damaged_records(tmp_path_factory, damages):
    path, _ = interrupted(tmp_path_factory.mktemp("damaged"))
    text = beside.path_beside(path).read_bytes()
    for damage in damages:
        text = damage(text)
    beside.path_beside(path).write_bytes(text)
    read_or_refuse(path)


def test_a_reader_notices_a_writer(tmp_path, monkeypatch):
    """The file is replaced after it was mapped, before its descriptor is read."""
    path = tmp_path / "x.npy"
    files.write(path, rl.tensor(OLD, "ba"))
    described, times = beside._described, []

    def late(name, identity):
        if not times:
            times.append(1)
            files.write(path, rl.tensor(NEW, "ab"), force=True)
        return described(name, identity)

    monkeypatch.setattr(beside, "_described", late)
    assert np.array_equal(files.read(path).numpy(), NEW)


@pytest.mark.skipif(sys.platform == "win32", reason="names are text there")
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".bin"])
def test_names_that_are_not_utf8(tmp_path, suffix):
    name = os.fsencode(tmp_path) + b"/\xff\xfe" + suffix.encode()
    try:
        files.write(name, rl.tensor(OLD, "ba"))
    except OSError:
        pytest.skip("this file system takes no such names")
    assert np.array_equal(files.read(name).numpy(), OLD)
    assert np.array_equal(files.read(os.fsdecode(name)).numpy(), OLD)
    with pytest.raises(rl.LayoutError) as error:
        files.read(name, dims=(7, 7))
    assert "\\xff\\xfe" in str(error.value).encode().decode()


def test_long_names(tmp_path):
    """255 bytes are the most that a name may have: there is no room for a descriptor's or a temporary one."""
    path = tmp_path / ("ö" * 125 + ".npy")
    files.write(path, rl.tensor(OLD, "ab"))
    assert np.array_equal(files.read(path).numpy(), OLD)
    with pytest.raises(OSError, match="name too long"):
        files.write(path, rl.tensor(NEW, "ba"), force=True)
    assert np.array_equal(files.read(path).numpy(), OLD)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
