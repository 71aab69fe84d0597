"""What counts as a secret, and that none gets out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casebook.launch import REDACTED, Launch, Redactor
from casebook.launch.secrets import is_secret_name, is_secret_option

SECRET = "sk-0123456789"


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "admin_api_key",
        "ssl_keyfile_password",
        "watermark_key",
        "watermark_key_b",
        "HF_TOKEN",
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN",
        "WANDB_API_KEY",
        "GITHUB_TOKEN",
        "EXA_API_KEY",
        "HUGGING_FACE_HUB_TOKEN",
        "SECRET_KEY",
        "MINIO_SECRET_KEY",
        "CLIENT_SECRET",
        "PGPASSWORD",
        "GH_PAT",
        "token",
        "password",
        "OPENAI_API_KEY_2",
        "AZURE_OPENAI_KEY",
        "STORAGE_ACCOUNT_KEY",
        "DB_PASSWD",
        "SSH_PRIVATE_KEY",
        "Authorization",
        "--api-key",
        "api.key",
    ],
)
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer_path",
        "tokenizer_mode",
        "tokenizer_worker_num",
        "max_total_tokens",
        "max_prefill_tokens",
        "speculative_token_map",
        "speculative_num_draft_tokens",
        "chat_template",
        "skip_tokenizer_init",
        "ssl_keyfile",
        "kt_max_deferred_experts_per_token",
        "bucket_time_to_first_token",
        "bucket_inter_token_latency",
        "token_map",
        "SGLANG_USE_AITER_FP8_PER_TOKEN",
        "SGLANG_LOG_DECODE_GRAPH_KEY",
        "eos_token",
        "eos_token_id",
        "image_token_id",
        "pad_token",
        "keypath",
        "monkey_key",
        "passes",
        "enable_forward_pass_metrics",
        "PATH",
        "HOME",
        "model_path",
        "author",
        "tokenizer_metrics_custom_labels_header",
        "swa_full_tokens_ratio",
        "max_new_tokens",
    ],
)
def test_names_that_are_no_secrets(name: str) -> None:
    assert not is_secret_name(name)
    assert not is_secret_option("--" + name.replace("_", "-"))


@pytest.mark.parametrize(
    "option", ["--api-k", "--api", "--admin-api", "--ssl-keyfile-pass", "--api_k"]
)
def test_an_abbreviated_option_is_secret_too(option: str) -> None:
    assert is_secret_option(option)


@pytest.mark.parametrize(
    "word", ["api-key", "--tp", "--a", "-", "--", "", "--model-path", "--ssl-keyfile"]
)
def test_words_that_are_no_secret_options(word: str) -> None:
    assert not is_secret_option(word)


@pytest.mark.parametrize(
    "text",
    [
        f"--api-key {SECRET}",
        f"--api-key={SECRET}",
        f"--api-k {SECRET}",
        f"--api-k={SECRET}",
        f"--api_key {SECRET}",
        f"--tp 8 --admin-api-key {SECRET} --ep 8",
        f"HF_TOKEN={SECRET} --tp 8",
        f"env HF_TOKEN={SECRET} python -m sglang.launch_server --name {SECRET}",
        f"""--hicache-storage-backend-extra-config '{{"s3": {{"secret_key": "{SECRET}"}}}}'""",
        f"""--model-loader-extra-config='{{"api_key": "{SECRET}"}}'""",
        f"--model-path https://user:{SECRET}@host/model",
        f"HTTPS_PROXY=http://user:{SECRET}@proxy:80 --tp 8",
        f"--model-path https://{SECRET}@host/model",
    ],
)
def test_a_secret_is_shown_nowhere(text: str) -> None:
    launch = Launch.from_text(text)
    redact = Redactor.of(launch)
    assert SECRET not in str(launch) + repr(launch) + launch.lines() + repr(
        redact.words(launch.argv)
    )
    if "@" not in text or "user" in text:
        record = {"a": [f"got {SECRET!r}"], SECRET: {"b": SECRET}, "n": 1, "none": None}
        assert SECRET not in json.dumps(redact.value(record))


def test_what_is_kept() -> None:
    launch = Launch.from_text(f"A=b --tp 8 --api-key {SECRET} --tokenizer-path x --api-key")
    redact = Redactor.of(launch)
    assert redact.words(launch.argv) == [
        *("--tp", "8", "--api-key", REDACTED, "--tokenizer-path", "x", "--api-key")
    ]
    assert redact.value({"a": ["x", 1, 1.5, True, None]}) == {"a": ["x", 1, 1.5, True, None]}
    assert redact.env("A", "b") == "b"
    assert redact.env("HF_TOKEN", "anything") == REDACTED


def test_an_option_behind_a_secret_one_is_no_value() -> None:
    launch = Launch.from_text("--api-key --tp 8")
    assert Redactor.of(launch).secrets == ()


def test_a_short_secret_is_hidden_where_it_stands_alone() -> None:
    launch = Launch.from_text("--api-key abc --name abcd")
    assert "abc " not in str(launch)
    assert Redactor.of(launch).value(["abc", "abcd"]) == [REDACTED, "abcd"]


def test_secrets_that_the_command_did_not_hold_are_known_by_the_fields_they_are_in() -> None:
    # As from a --config file: only SGLang's answer holds them.
    record = {
        "initial": {"api_key": SECRET, "tp_size": 8},
        "events": [
            {"kind": "assign", "field": "admin_api_key", "old": None, "new": "adm-987654"},
            {"kind": "log", "message": f"keys {SECRET} adm-987654"},
        ],
        "command_line": {
            "typed": [{"dest": "ssl_keyfile_password", "value": "pass-phrase"}],
            "flags": {"api_key": ["--api-key"], "tp_size": ["--tp"]},
        },
        "output": "pass-phrase",
    }
    shown = Redactor(()).value(record)
    for secret in (SECRET, "adm-987654", "pass-phrase"):
        assert secret not in json.dumps(shown)
    assert shown["command_line"]["flags"] == record["command_line"]["flags"]
    assert shown["initial"]["tp_size"] == 8


def test_a_secret_is_found_as_repr_and_json_write_it() -> None:
    secret = "a'b\\c\"\n\u00e9"
    redact = Redactor((secret,))
    assert redact.text(f"x {secret} {secret!r} {json.dumps(secret)}").count(REDACTED) == 3


@given(st.lists(st.text(min_size=4), max_size=4), st.text())
def test_no_text_is_left_with_a_secret(secrets: list[str], around: str) -> None:
    launch = Launch(tuple(f"--api-key={secret}" for secret in secrets))
    text = around.join(["", *secrets, ""])
    shown = Redactor.of(launch).text(text)
    for secret in secrets:
        assert secret not in shown.replace(REDACTED, "\0")


@given(st.text(alphabet='{}[]":,a1 =\\', max_size=60))
def test_any_word_can_be_redacted(word: str) -> None:
    launch = Launch(("--x", word))
    assert len(Redactor.of(launch).words(launch.argv)) == 2
