from __future__ import annotations

from pathlib import Path

import pytest

from matrix.index.login import Logins, from_address, shown

ME = "Basic bWU6cEBzcw=="


@pytest.fixture(autouse=True)
def _no_netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.mark.parametrize(
    ("url", "bare", "header"),
    [
        ("https://me:p%40ss@host/x?y#z", "https://host/x?y", ME),
        ("https://me@host:8443/x", "https://host:8443/x", "Basic bWU6"),
        ("https://host/x", "https://host/x", ""),
    ],
)
def test_credentials_in_an_address(url: str, bare: str, header: str) -> None:
    assert shown(url) == bare
    assert from_address(url) == header
    assert Logins().header(url) == header


@pytest.mark.parametrize(
    ("url", "header"),
    [
        ("https://index.example/files/a.whl", ME),
        ("https://index.example:443/files/a.whl", ME),
        ("https://index.example:8443/files/a.whl", ""),
        ("http://index.example/files/a.whl", ""),
        ("https://files.example/a.whl", ""),
    ],
)
def test_remembered_credentials_go_to_their_origin_only(url: str, header: str) -> None:
    logins = Logins()
    assert logins.remember("https://me:p%40ss@index.example/simple") == "https://index.example/simple"
    assert logins.remember("https://index.example/other") == "https://index.example/other"
    assert logins.header(url) == header


@pytest.mark.parametrize(
    ("content", "header"),
    [
        ("machine index.example login me password p@ss\n", ME),
        ("machine other.example login me password p@ss\n", ""),
        ("default login me password p@ss\n", ME),
        ("this is not one", ""),
        ("", ""),
    ],
)
def test_credentials_from_netrc(tmp_path: Path, content: str, header: str) -> None:
    path = tmp_path / "netrc"
    path.write_text(content)
    path.chmod(0o600)
    assert Logins().header("https://index.example/simple") == header


def test_an_address_that_names_somebody_goes_before_netrc(tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine index.example login other password other\n")
    (tmp_path / "netrc").chmod(0o600)
    assert Logins().header("https://me:p%40ss@index.example/") == ME
