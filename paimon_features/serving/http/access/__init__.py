"""Who may send requests, and how many: hosts, tokens, OIDC, quotas, admission."""
