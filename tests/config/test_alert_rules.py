"""Alert files: what they may have, and what an error says."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.config.alert_rules import AlertRule, read_alerts
from fairlead.core.errors import InputError

GOOD = """
name: lab
rules:
  - {on: job-failed, to: ["https://chat.example.org/hook", "mailto:operators@example.org"]}
  - {on: job-ended, users: [ann], accounts: [vision], to: ["mailto:{user}@example.org"]}
  - {on: deadline, bound: 10m, repeat: 6h, to: ["http://127.0.0.1:9/x"]}
  - {on: unfairness, bound: 0.3, to: ["https://chat.example.org/hook"]}
  - {on: silent-node, to: ["https://chat.example.org/hook"]}
webhook: {secret_file: secret, timeout: 5s}
mail: {host: smtp.example.org, from: fairlead@example.org, user: fairlead, password_file: secret}
"""


def read(folder: Path, text: str):
    (folder / "secret").write_text("abc\n")
    (folder / "empty").write_text("\n")
    (folder / "alerts.yaml").write_text(text)
    return read_alerts(folder / "alerts.yaml")


def test_a_file_with_everything(tmp_path):
    found = read(tmp_path, GOOD)
    assert found.name == "lab"
    assert [(rule.on, rule.bound) for rule in found.rules[2:]] == [("deadline", 600), ("unfairness", 0.3), ("silent-node", 60)]
    assert found.rules[2].repeat_s == 6 * 3600
    assert found.rules[1].covers("ann", "vision")
    assert not found.rules[1].covers("ann", "speech")
    assert len(found.targets) == 4, "each once"
    assert (found.webhook.secret, found.webhook.timeout_s) == (b"abc", 5.0)
    assert found.mail is not None
    assert (found.mail.port, found.mail.tls, found.mail.password) == (587, "starttls", "abc")
    assert "abc" not in repr(found)


RULE = "rules: [{on: job-ended, to: ['https://x.org']}]\n"
MAIL = "rules: [{on: job-ended, to: ['mailto:a@x.org']}]\nmail: "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "rules: a list of alerts"),
        ("rules: []", "at least one rule"),
        ("rules: [{on: job-ended}]", "'to' in each rule"),
        ("rules: [{on: job-end, to: ['https://x.org']}]", "did you mean 'job-ended'"),
        ("rules:\n  - on: job-ended\n    to: ['https://x.org']\n    bounds: 3", "alerts.yaml:4"),
        ("rules: [{on: job-ended, to: ['https://x.org'], bound: 3}]", "no 'bound' in a rule on job-ended"),
        ("rules: [{on: silent-node, to: ['https://x.org'], users: [ann]}]", "no 'users' in a rule on silent-node"),
        ("rules: [{on: silent-node, to: ['https://x.org'], bound: soon}]", "a duration such as"),
        ("rules: [{on: deadline, to: ['https://x.org'], repeat: 1s}]", "at least 60 s"),
        ("rules: [{on: unfairness, to: ['https://x.org'], bound: 20}]", "a share from 0 to 1"),
        ("rules: [{on: unfairness, to: ['https://x.org'], users: [a], accounts: [b]}]", "either 'users' or 'accounts'"),
        ("rules: [{on: job-ended, to: []}]", "at least one address"),
        ("rules: [{on: job-ended, to: ['ftp://x.org']}]", "https://…"),
        ("rules: [{on: job-ended, to: ['https://']}]", "https://…"),
        ("rules: [{on: job-ended, to: ['https://x:99999/']}]", "https://…"),
        ("rules: [{on: job-ended, to: ['http://example.org/x']}]", "http:// is only for servers on this machine"),
        ("rules: [{on: job-ended, to: ['mailto:ann']}]", "mailto:NAME@HOST"),
        ("rules: [{on: silent-node, to: ['mailto:{user}@x.org']}]", "an address without {user}"),
        ("rules: [{on: job-ended, to: ['mailto:a@x.org']}]", "mail: {host: …, from: …}"),
        (RULE + "webhook: {secret_file: absent}", "a readable file (No such file or directory)"),
        (RULE + "webhook: {secret_file: empty}", "it is empty"),
        (RULE + "webhook: {ca_file: absent}", "a file of certificates"),
        (RULE + "webhook: {ca_file: empty}", "a file of certificates"),
        (RULE + "webhook: {timeout: 1000000d}", "at most 3600 s"),
        ("rules: [{on: job-ended, to: ['https://a..b/']}]", "https://…"),
        (MAIL + "{host: a..b, from: a@x.org}", "the name of a mail server"),
        (MAIL + "{host: x.org, from: a@x.org, port: 70000}", "from 1 to 65535"),
        (MAIL + "{host: x.org, from: a@x.org, timeout: 2h}", "at most 3600 s"),
        (MAIL + "{host: x.org}", "'from' of the mail server"),
        (MAIL + "{host: x.org, from: me}", "a mail address"),
        (MAIL + "{host: x.org, from: a@x.org, user: a}", "both 'user' and 'password_file'"),
        (MAIL + "{host: x.org, from: a@x.org, tls: ssl}", "starttls or implicit or none"),
        (MAIL + "{host: x.org, from: a@x.org, tls: none}", "none is only for a mail server on this machine"),
    ],
)
def test_an_error_says_what_is_wrong_and_where(tmp_path, text, expected):
    with pytest.raises(InputError) as problem:
        read(tmp_path, text)
    assert expected in str(problem.value)
    assert "alerts.yaml" in str(problem.value)


def test_addresses_are_few(tmp_path):
    many = ", ".join(f"'https://x{n}.org'" for n in range(40))
    with pytest.raises(InputError, match="at most 32 addresses"):
        read(tmp_path, f"rules: [{{on: job-ended, to: [{many}]}}]")


def test_a_rule_on_an_account_is_about_those_below_it_too():
    rule = AlertRule("unfairness", ("mailto:a@b.c",), accounts=frozenset({"vision", "lab/x"}))
    named = ["vision/ann/1", "lab/x", "lab", "visions"]
    assert [rule.account_for(account) for account in named] == ["vision", "lab/x", "lab", "visions"]
    assert [rule.covers("ann", account) for account in named] == [True, True, False, False]
