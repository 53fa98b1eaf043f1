"""Process settings for kernels."""

from quire_kernels.cpu.environment import kernel_cache_dir, prepare_process


def test_cache_follows_xdg(monkeypatch, tmp_path):
    """Compiled kernels go below XDG_CACHE_HOME, in a folder named for the sources' content."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    prepare_process()
    folder = kernel_cache_dir()
    assert folder.is_dir() and folder.parent == tmp_path / "quire" / "kernels"


def test_what_the_user_has_set_stays(monkeypatch):
    """An own cache folder and wait policy are not overwritten."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/somewhere")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    prepare_process()
    import os

    assert (os.environ["NUMBA_CACHE_DIR"], os.environ["OMP_WAIT_POLICY"]) == ("/somewhere", "ACTIVE")


def test_an_unwritable_cache_is_no_failure(monkeypatch, tmp_path):
    """Without a place for the cache the process still starts; numba then compiles each time."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    prepare_process()
    import os

    assert "NUMBA_CACHE_DIR" not in os.environ
