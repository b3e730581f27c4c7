"""Where a value comes from, how its text is read, and what a wrong one is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hookserve.engine.environment import default_cache_dir
from hookserve.engine.errors import ConfigError, UsageError
from hookserve.hookspecs import PluginSettings
from hookserve.server.arguments import Parser, add_settings
from hookserve.server.secret import Secret
from hookserve.server.settings import all_specs, resolve_settings


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


# -- precedence --------------------------------------------------------------------------------


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "c.toml", "port = 1\nmax-num-seqs = 2\nblock_size = 8\nseed = 3\n")
    settings = resolve_settings(
        {"config": file, "port": "5"}, {"HOOKSERVE_PORT": "4", "HOOKSERVE_MAX_NUM_SEQS": "6"}
    )
    assert (settings.server.port, settings.engine_args.max_num_seqs) == (5, 6)
    assert (settings.engine_args.block_size, settings.engine_args.seed) == (8, 3)
    assert settings.engine_args.max_num_batched_tokens == 1024
    origins = {name: str(settings.origins[name]) for name in ("port", "max_num_seqs", "seed")}
    assert origins == {
        "port": "flag --port",
        "max_num_seqs": "environment HOOKSERVE_MAX_NUM_SEQS",
        "seed": f"file {file}",
    }
    assert str(settings.origins["max_num_batched_tokens"]) == "default"


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "c.toml", "port = 7\n")
    assert resolve_settings({}, {"HOOKSERVE_CONFIG": file}).server.port == 7


def test_a_flag_may_turn_off_what_the_environment_turned_on() -> None:
    settings = resolve_settings({"enforce_eager": False}, {"HOOKSERVE_ENFORCE_EAGER": "1"})
    assert settings.engine_args.enforce_eager is False


def test_nothing_given_is_every_default() -> None:
    settings = resolve_settings({}, {})
    assert settings.values["model"] is None
    assert {origin.kind for origin in settings.origins.values()} == {"default"}
    assert settings.engine_args.sources == {}
    assert settings.server.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOOKSERVE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/hookserve"),
        ({"HOOKSERVE_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/hookserve"),
    ],
)
def test_the_cache_folder(environ: dict[str, str], expected: str) -> None:
    settings = resolve_settings({}, environ)
    assert settings.engine_args.cache_dir == expected
    assert settings.plugins.cache_dir == expected


def test_a_cache_folder_in_no_home_is_refused_and_one_in_a_home_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/h")
    for given, environ in (({"cache_dir": "~/c"}, {}), ({}, {"HOOKSERVE_CACHE": "~/c"})):
        assert resolve_settings(given, environ).engine_args.cache_dir == "/h/c"
    # As for a number without a name that a container may be given as its user.
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    for given, environ in (({"cache_dir": "~/c"}, {}), ({}, {"HOOKSERVE_CACHE": "~/c"}), ({}, {})):
        with pytest.raises(ConfigError, match="--download-dir or HOOKSERVE_CACHE"):
            resolve_settings(given, environ)
    assert resolve_settings({"cache_dir": "/c"}, {}).engine_args.cache_dir == "/c"


# -- plugins -----------------------------------------------------------------------------------


def test_plugin_flags_become_plugin_settings() -> None:
    plugins = resolve_settings(
        {
            "plugins": ["a, b", "c"],
            "disable_plugins": ["d"],
            "enable_endpoints": ["e"],
            "plugin": ["./f.py", "g"],
            "tool_parser_plugin": ["./calls.py", "g"],
            "prefer": ["model:X=h"],
            "platform": "cpu",
            "plugin_config": ['{"a": {"k": 1}}'],
        },
        {
            "HOOKSERVE_ENDPOINTS": "z",
            "HOOKSERVE_REQUIRE_PLUGINS": "r,s",
            "HOOKSERVE_REASONING_PARSER_PLUGIN": "./thoughts.py",
        },
    ).plugins
    assert plugins.allow == ("a", "b", "c")
    assert plugins.deny == ("d",)
    assert plugins.enable_endpoints == ("e",)
    assert plugins.require == ("r", "s")
    assert plugins.files == ("./f.py", "g", "./calls.py", "./thoughts.py")
    assert plugins.prefer == ("model:X=h",)
    assert plugins.platform == "cpu"
    assert plugins.config == {"a": {"k": 1}}


def test_the_time_of_hooks_and_what_is_traced() -> None:
    untouched = PluginSettings(cache_dir=default_cache_dir({}))
    assert resolve_settings({}, {}).plugins == untouched
    plugins = resolve_settings(
        {"front_hook_timeout": "2.5", "step_hook_timeout": "0.5", "trace_hooks": "before_*"},
        {"HOOKSERVE_STARTUP_HOOK_TIMEOUT": "7", "HOOKSERVE_TRACE_HOOKS": "x"},
    ).plugins
    assert (plugins.front_hook_timeout_s, plugins.step_hook_timeout_s) == (2.5, 0.5)
    assert (plugins.startup_hook_timeout_s, plugins.trace_hooks) == (7.0, "before_*")
    assert resolve_settings({}, {"HOOKSERVE_TRACE_HOOKS": ""}).plugins.trace_hooks is None
    with pytest.raises(UsageError, match="--step-hook-timeout"):
        resolve_settings({"step_hook_timeout": "0"}, {})


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (["--trace-hooks"], "*"),
        (["--trace-hooks", "admit"], "admit"),
        (["--trace-hooks", "--port", "1"], "*"),
        (["--trace-hooks=a*"], "a*"),
    ],
)
def test_all_hooks_are_traced_where_no_pattern_is_given(words: list[str], pattern: str) -> None:
    parser = Parser()
    add_settings(parser)
    assert parser.parse_args(words).trace_hooks == pattern


def test_an_empty_allow_list_is_not_the_same_as_none() -> None:
    assert resolve_settings({}, {}).plugins.allow is None
    assert resolve_settings({"plugins": [""]}, {}).plugins.allow == ()
    assert resolve_settings({}, {"HOOKSERVE_PLUGINS": ""}).plugins.allow == ()


# -- reading values ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1048576", 2**20),
        ("512MiB", 512 * 2**20),
        ("512mib", 512 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("2GB", 2 * 10**9),
        ("2G", 2 * 2**30),
        ("2g", 2 * 10**9),
    ],
)
def test_bytes(text: str, expected: int) -> None:
    settings = resolve_settings({"kv_cache_memory_bytes": text}, {})
    assert settings.engine_args.kv_cache_memory_bytes == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4096", 4096), ("4k", 4000), ("4K", 4096), ("25.6k", 25600), ("auto", None), ("-1", None)],
)
def test_lengths(text: str, expected: int | None) -> None:
    assert resolve_settings({"max_model_len": text}, {}).engine_args.max_model_len == expected


@pytest.mark.parametrize(("text", "expected"), [("half", "float16"), ("FLOAT", "float32")])
def test_dtype_synonyms(text: str, expected: str) -> None:
    assert resolve_settings({"dtype": text}, {}).engine_args.dtype == expected


def test_lists_take_json_and_commas() -> None:
    for raw in (
        ["https://a,https://b"],
        ['["https://a", "https://b"]'],
        ["https://a", "https://b"],
    ):
        settings = resolve_settings({"allowed_origins": raw}, {})
        assert settings.server.allowed_origins == ("https://a", "https://b")


def test_json_given_twice_is_merged_deeply(tmp_path: Path) -> None:
    file = write(tmp_path / "x.json", '{"a": {"c": 2}}')
    given = ['{"a": {"b": 1}}', f"@{file}"]
    settings = resolve_settings({"hf_overrides": given}, {})
    assert settings.engine_args.hf_overrides == {"a": {"b": 1, "c": 2}}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("max_num_seqs", "0", "at least 1"),
        ("max_num_seqs", "many", "a whole number"),
        ("port", "65536", "from 0 to 65535"),
        ("port", "80.5", "a whole number"),
        ("log_stats_interval", "nan", "a number"),
        ("kv_cache_memory_bytes", "1 parsec", "512MiB"),
        ("max_model_len", "4KiB", "4096"),
        ("max_model_len", "9" * 400 + "k", "4096"),
        ("kv_cache_memory_bytes", "9" * 400 + "G", "512MiB"),
        ("plugin_config", '{"a":' * 100_000, "a JSON object"),
        ("disable_plugins", "[" * 100_000, "names"),
        ("dtype", "int8", "bfloat16"),
        ("hf_overrides", "[1]", "a JSON object"),
        ("hf_overrides", "@/no/such/file", "a file"),
        ("log_level", "LOUD", "WARNING"),
    ],
)
def test_a_wrong_value_names_key_origin_and_expectation(
    name: str, text: str, expected: str
) -> None:
    spec = next(spec for spec in all_specs() if spec.name == name)
    with pytest.raises(UsageError) as by_flag:
        resolve_settings({name: text}, {})
    with pytest.raises(ConfigError) as by_environment:
        resolve_settings({}, {spec.env: text})
    assert by_flag.value.exit_code == 2
    assert by_environment.value.exit_code == 78
    for message in (str(by_flag.value), str(by_environment.value)):
        assert spec.key in message and expected in message, message
    assert spec.env in str(by_environment.value)


def test_a_long_value_is_not_repeated_whole() -> None:
    with pytest.raises(UsageError) as caught:
        resolve_settings({"port": "9" * 5000}, {})
    assert len(str(caught.value)) < 400


# -- the file ----------------------------------------------------------------------------------


def test_a_toml_file_has_types_of_its_own(tmp_path: Path) -> None:
    file = write(
        tmp_path / "c.toml",
        'plugins = ["a", "b"]\nenable-prefix-caching = false\nkv-cache-memory-bytes = "1GiB"\n'
        'served-model-name = "x"\nlog-stats-interval = 2\n[hf-overrides]\nrope_theta = 5\n',
    )
    settings = resolve_settings({"config": file}, {})
    assert settings.plugins.allow == ("a", "b")
    assert settings.engine_args.enable_prefix_caching is False
    assert settings.engine_args.kv_cache_memory_bytes == 2**30
    assert settings.engine_args.served_model_name == ("x",)
    assert settings.engine_args.hf_overrides == {"rope_theta": 5}
    assert settings.server.log_stats_interval == 2.0


@pytest.mark.parametrize(
    ("value", "names"), [('""', ()), ('" a "', ("a",)), ('[" a ", ""]', ("a",)), ("[]", ())]
)
def test_a_list_in_a_file_is_trimmed_as_a_flag_is(
    value: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    file = write(tmp_path / "c.toml", f"plugins = {value}\n")
    assert resolve_settings({"config": file}, {}).plugins.allow == names


def test_a_yaml_file_is_read(tmp_path: Path) -> None:
    file = write(tmp_path / "c.yaml", "port: 9\nplugins: [a]\n")
    settings = resolve_settings({"config": file}, {})
    assert (settings.server.port, settings.plugins.allow) == (9, ("a",))


def test_a_yaml_file_without_pyyaml_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match="PyYAML"):
        resolve_settings({"config": write(tmp_path / "c.yaml", "port: 9\n")}, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1\n", "unknown key 'prot'; did you mean 'port'"),
        ("port = true\n", "port True"),
        ('port = "high"\n', "a whole number"),
        ("max-num-seqs = 1.5\n", "a whole number"),
        ("plugins = [1]\n", "names"),
        ("log-stats-interval = nan\n", "a number"),
        ("shutdown-timeout = inf\n", "a number"),
        ("enforce-eager = 1\n", "true or false"),
        ("port = \n", "no valid TOML"),
        ("config = 'x.toml'\n", "unknown key 'config'"),
        ("[server]\nport = 1\n", "unknown key 'server'"),
        ("port = {a = 1}\n", "port {'a': 1}"),
        ("max-num-seqs = 4\nmax_num_seqs = 5\n", "are one key"),
    ],
)
def test_a_wrong_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    file = write(tmp_path / "c.toml", text)
    with pytest.raises(ConfigError) as caught:
        resolve_settings({"config": file}, {})
    assert message in str(caught.value)
    assert file in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port: 1\nseed: 2\nport: 3\n", "'port' stands there twice (line 3)"),
        ("hf-overrides: {a: [{b: 1, b: 2}]}\n", "'b' stands there twice (line 1)"),
        ("port: {a: 1}\n", "port {'a': 1}"),
        ("served-model-name: 2024-01-01\n", "names"),
        ("model: null\n", "a text"),
        ("a: &a [*a]\n", "unknown key 'a'"),
        ("1: 2\n", "a table of keys"),
    ],
)
def test_a_wrong_yaml_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    file = write(tmp_path / "c.yaml", text)
    with pytest.raises(ConfigError) as caught:
        resolve_settings({"config": file}, {})
    assert message in str(caught.value)
    assert file in str(caught.value)


def test_a_refused_flag_is_refused_in_the_file_too(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="enable-lora"):
        resolve_settings({"config": write(tmp_path / "a.toml", "enable-lora = true\n")}, {})
    fine = write(tmp_path / "b.toml", "enable-lora = false\npipeline_parallel_size = 1\n")
    assert resolve_settings({"config": fine}, {}).notes == ()
    idle = write(tmp_path / "c.toml", "optimization-level = 3\n")
    (note,) = resolve_settings({"config": idle}, {}).notes
    assert "optimization-level" in note and "compiled" in note


def test_a_missing_file_and_an_unknown_suffix(tmp_path: Path) -> None:
    for path in (str(tmp_path / "no.toml"), write(tmp_path / "c.ini", "")):
        with pytest.raises(ConfigError, match="--config"):
            resolve_settings({"config": path}, {})


# -- the environment ---------------------------------------------------------------------------


def test_an_unknown_variable_is_warned_about_with_the_nearest() -> None:
    settings = resolve_settings({}, {"HOOKSERVE_MAX_NUM_SEQ": "3", "VLLM_X": "1", "PATH": ""})
    (warning,) = settings.warnings
    assert "HOOKSERVE_MAX_NUM_SEQ " in warning and "'HOOKSERVE_MAX_NUM_SEQS'" in warning
    assert settings.engine_args.max_num_seqs == 32


def test_no_two_settings_share_a_name() -> None:
    for names in (
        [spec.name for spec in all_specs()],
        [spec.env for spec in all_specs()],
        [option for spec in all_specs() for option in (spec.flag, *spec.setting.aliases)],
    ):
        assert len(names) == len(set(names))


# -- keys --------------------------------------------------------------------------------------


def test_keys_come_from_everywhere_and_are_taken_as_they_are(tmp_path: Path) -> None:
    """A comma is a part of a key: two shorter keys would open the server too."""
    file = write(tmp_path / "c.toml", 'api-key = ["one", "two", "one"]\nadmin-key = "root"\n')
    by_file = resolve_settings({"config": file}, {}).server
    assert by_file.api_key == (Secret("one"), Secret("two"))
    assert by_file.admin_key == (Secret("root"),)
    by_env = resolve_settings({"config": file}, {"HOOKSERVE_API_KEY": "a,b"}).server
    assert by_env.api_key == (Secret("a,b"),)
    by_flag = resolve_settings({"api_key": ["x", "[y]"]}, {"HOOKSERVE_API_KEY": "a"}).server
    assert by_flag.api_key == (Secret("x"), Secret("[y]"))


def test_no_settings_show_a_key() -> None:
    settings = resolve_settings({"api_key": ["sesame"]}, {"HOOKSERVE_ADMIN_KEY": "open-up"})
    assert settings.server.api_key and settings.server.admin_key
    for shown in (repr(settings), str(settings.values), str(settings.server.api_key[0])):
        assert "sesame" not in shown and "open-up" not in shown


@pytest.mark.parametrize("key", ["", " ", "two words", "tab\t", "ключ", "line\n"])
def test_a_key_that_could_not_be_sent_is_refused_and_not_shown(key: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--api-key .*: expected a key of visible ASCII") as flag:
        resolve_settings({"api_key": ["sesame", key]}, {})
    with pytest.raises(ConfigError, match="environment HOOKSERVE_ADMIN_KEY"):
        resolve_settings({}, {"HOOKSERVE_ADMIN_KEY": key})
    file = write(tmp_path / "c.toml", "api-key = 7\n")
    with pytest.raises(ConfigError, match=r"c.toml\): expected a key") as number:
        resolve_settings({"config": file}, {})
    for caught in (flag, number):
        assert not {"words", "ключ", "tab", "line", "sesame", "7"} & set(str(caught.value).split())
