"""Settings: precedence, refusal of what is unknown, and no reading of the environment behind one's back."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field

from quire_servicekit.settings import CommaList, ServiceSettings, SettingsError


class Pool(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    block_size: int = Field(16, ge=1, description="Tokens per block.")
    num_blocks: int = Field(100, description="Blocks.")


class Settings(ServiceSettings):
    """A service for tests."""

    service: ClassVar[str] = "sample"

    max_num_seqs: int = Field(64, ge=1, description="Most sequences that run at once.")
    workers: CommaList = Field(("a:1",), description="Addresses.")
    prefix_cache: bool = Field(True, description="Share prefixes.")
    pool: Pool = Field(Pool(), description="The block pool.")


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return str(path)


def test_defaults_without_any_source():
    """With no flag, variable or file, every setting has its default."""
    settings = Settings.load([], {})
    assert (settings.max_num_seqs, settings.workers, settings.pool.block_size) == (64, ("a:1",), 16)


def test_flags_beat_environment_beats_file(tmp_path):
    """Each source overrides the weaker ones, key by key, also inside a group."""
    path = write(tmp_path, "max_num_seqs: 1\nprefix_cache: false\npool: {block_size: 1, num_blocks: 7}\n")
    environ = {
        "QUIRE_SAMPLE_MAX_NUM_SEQS": "2",
        "QUIRE_SAMPLE_POOL__BLOCK_SIZE": "2",
        "QUIRE_SAMPLE_CONFIG": path,
    }
    settings = Settings.load(["--max-num-seqs", "3"], environ)
    assert settings.max_num_seqs == 3
    assert settings.pool == Pool(block_size=2, num_blocks=7)
    assert settings.prefix_cache is False


def test_config_flag_names_the_file(tmp_path):
    """--config reads a YAML file, and lists may be written there as lists."""
    path = write(tmp_path, "workers: [b:2, c:3]\n")
    assert Settings.load(["--config", path], {}).workers == ("b:2", "c:3")


def test_lists_are_written_with_commas():
    """A flag or variable gives a list as words between commas."""
    assert Settings.load(["--workers", "b:2, c:3"], {}).workers == ("b:2", "c:3")
    assert Settings.load([], {"QUIRE_SAMPLE_WORKERS": "d:4,e:5"}).workers == ("d:4", "e:5")


def test_switches_have_a_negative():
    """A boolean setting is a flag with a no- form."""
    assert Settings.load(["--no-prefix-cache"], {}).prefix_cache is False


@pytest.mark.parametrize("name", ["QUIRE_SAMPLE_MAX_SEQS", "QUIRE_SAMPLE_POOL__SIZE"])
def test_unknown_variable_is_refused_by_name(name):
    """A variable with our prefix that names no setting fails the start."""
    with pytest.raises(SettingsError, match=r"max_seqs|pool\.size"):
        Settings.load([], {name: "1"})


def test_variables_of_other_services_are_not_ours():
    """A variable with another service's prefix is no concern of this one."""
    assert Settings.load([], {"QUIRE_OTHER_MAX_NUM_SEQS": "1"}).max_num_seqs == 64


def test_unknown_key_in_the_file_is_refused_by_name(tmp_path):
    """A misspelt key in the YAML file fails the start and is named."""
    with pytest.raises(SettingsError, match="unknown setting 'max_num_sequences'.*settings.yaml"):
        Settings.load(["--config", write(tmp_path, "max_num_sequences: 4\n")], {})


def test_unknown_key_in_a_group_is_refused_by_its_full_name(tmp_path):
    """A misspelt key inside a group is named with the group."""
    with pytest.raises(SettingsError, match=r"unknown setting 'pool\.blocks'"):
        Settings.load(["--config", write(tmp_path, "pool: {blocks: 4}\n")], {})


def test_unknown_or_shortened_flag_ends_the_process(capsys):
    """A flag that does not exist is refused, also when it is the start of one that does."""
    for flag in ("--max-num-sequences", "--max-num"):
        with pytest.raises(SystemExit):
            Settings.load([flag, "4"], {})
        assert flag in capsys.readouterr().err


def test_bad_value_names_field_limit_value_and_source():
    """The message has all that is needed to correct it."""
    with pytest.raises(
        SettingsError, match=r"max_num_seqs: .*greater than or equal to 1, got '0' \(from environment\)"
    ):
        Settings.load([], {"QUIRE_SAMPLE_MAX_NUM_SEQS": "0"})


def test_missing_or_odd_file_is_refused(tmp_path):
    """A config file that is absent, no YAML, or no mapping is refused with its path."""
    for path in (str(tmp_path / "absent.yaml"), write(tmp_path, "- 1\n- 2\n")):
        with pytest.raises(SettingsError, match=r"\.yaml"):
            Settings.load(["--config", path], {})


def test_constructing_reads_no_environment(monkeypatch):
    """Settings made by hand ignore the process's environment."""
    monkeypatch.setenv("QUIRE_SAMPLE_MAX_NUM_SEQS", "2")
    monkeypatch.setenv("MAX_NUM_SEQS", "3")
    assert Settings().max_num_seqs == 64


def test_settings_are_frozen():
    """A setting cannot change after start."""
    with pytest.raises(ValueError, match="frozen"):
        Settings().max_num_seqs = 3


def test_help_lists_every_setting_with_its_meaning(capsys):
    """--help is generated from the fields."""
    with pytest.raises(SystemExit) as end:
        Settings.load(["--help"], {})
    shown = capsys.readouterr().out
    assert end.value.code == 0
    assert "--max-num-seqs" in shown
    assert "Most sequences that run at once." in shown


def test_load_or_exit_prints_the_reason(capsys, monkeypatch):
    """A service with bad settings exits with status 2 and one line."""
    monkeypatch.setenv("QUIRE_SAMPLE_NONSENSE", "1")
    with pytest.raises(SystemExit) as end:
        Settings.load_or_exit([])
    assert end.value.code == 2
    assert "quire-sample: unknown setting 'nonsense'" in capsys.readouterr().err


def test_names_of_the_common_settings():
    """The settings that every service has; adding one shows here."""
    assert set(ServiceSettings.model_fields) == {
        "config",
        "drain_timeout_s",
        "listen",
        "log_format",
        "log_level",
        "max_connection_age_s",
        "max_message_bytes",
        "metrics_listen",
        "otlp_endpoint",
    }
