"""The topics of ``check``, each imported when it is checked."""
