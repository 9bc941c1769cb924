"""What it costs a request that a client has a token: processor time, without HTTP.

    python -m benchmarks.tokens            # some seconds

A token of a file with 1, 20 and 500 of them is looked up and counted; a request and its rows are
counted against a quota; a JWT is validated for the first time, and again.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from paimon_features.core.configuration.project_config import OidcConfig
from paimon_features.serving.http.access.oidc import OidcIssuer, _keys_of
from paimon_features.serving.http.access.quotas import Quotas
from paimon_features.serving.http.access.tokens import NewToken, Tokens, add_token


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count in (1, 20, 500):
            tokens, authorization = _file_of(folder / f"{count}.toml", count)
            took = _best(partial(_use, tokens, authorization), 2_000)
            print(f"a token of {count:>3}: {took:8.2f} us")
        path = folder / "quota.toml"
        token = add_token(path, "a", NewToken(["*"], requests_per_s=1e9, rows_per_s=1e9), "today")
        rights, quotas = Tokens(path).rights(f"Bearer {token}".encode()), Quotas()

        def count_both() -> None:
            quotas.take_request(rights)
            quotas.take_rows(rights, 1)

        print(f"both quotas:    {_best(count_both, 2_000):8.2f} us")
        for algorithm, key in (
            ("RS256", rsa.generate_private_key(65_537, 2_048)),
            ("ES256", ec.generate_private_key(ec.SECP256R1())),
        ):
            issuer, encoded = _jwt(algorithm, key)
            took = _best(partial(issuer.subject_of, encoded), 200)
            print(f"a new JWT {algorithm}:{took:8.2f} us")
        path.write_text('[role.a]\nservices = ["a"]\noidc = ["r"]\n')
        known = Tokens(path, issuer)
        took = _best(partial(_use, known, b"Bearer " + encoded), 2_000)
        print(f"a known JWT:    {took:8.2f} us")


def _use(tokens: Tokens, authorization: bytes) -> None:
    rights = tokens.rights(authorization)
    rights.usage.requests += 1


def _file_of(path: Path, count: int) -> tuple[Tokens, bytes]:
    made = [secrets.token_urlsafe(32) for _ in range(count)]
    path.write_text(
        "".join(
            f'[[token]]\nname = "t{number}"\nservices = ["a"]\n'
            f'sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\n'
            for number, token in enumerate(made)
        )
    )
    return Tokens(path), f"Bearer {made[count // 2]}".encode()


def _jwt(algorithm: str, key: Any) -> tuple[OidcIssuer, bytes]:
    kind: Any = {
        "RS256": jwt.algorithms.RSAAlgorithm,
        "ES256": jwt.algorithms.ECAlgorithm,
    }[algorithm]
    issuer = OidcIssuer(OidcConfig("https://issuer", ("audience",)))
    issuer._keys = _keys_of({"keys": [{**json.loads(kind.to_jwk(key.public_key())), "kid": "k"}]})
    issuer._fetched_s = time.monotonic()
    claims = {"iss": "https://issuer", "aud": "audience", "sub": "s", "roles": ["r"],
              "exp": int(time.time()) + 900}  # fmt: skip
    return issuer, jwt.encode(claims, key, algorithm, {"kid": "k"}).encode()


def _best(action: Callable[[], object], repeat: int) -> float:
    """Microseconds of processor time of one call, the best of ten rounds."""
    best = float("inf")
    for _ in range(10):
        started_s = time.process_time()
        for _ in range(repeat):
            action()
        best = min(best, (time.process_time() - started_s) / repeat)
    return best * 1e6


if __name__ == "__main__":
    main()
