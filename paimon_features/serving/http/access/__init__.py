"""Access control: hosts, tokens, OIDC, quotas, admission."""
