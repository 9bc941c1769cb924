"""Who may send requests, and how many: tokens, OIDC, quotas, admission."""
